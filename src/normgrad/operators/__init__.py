"""The public operators and their declarations, a norm to a file."""
