"""The public operators, a norm to a file, with their oracle and their error bounds."""
