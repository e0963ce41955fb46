"""The backends, each of which turns a :class:`~normgrad.problem.Problem` into a schedule."""
