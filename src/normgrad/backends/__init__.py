"""The backends, which compute: each turns a :class:`~normgrad.problem.Problem` into a program."""
