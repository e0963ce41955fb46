"""The backends do the arithmetic: each turns a :class:`~normgrad.problem.Problem` into a program
that runs on addresses."""
