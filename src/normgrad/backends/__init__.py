"""Where the arithmetic is done: each backend turns a :class:`~normgrad.problem.Problem` into a
program that runs on addresses."""
