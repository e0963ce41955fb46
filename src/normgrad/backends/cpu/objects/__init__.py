"""Object files of machine code: compiled, kept, brought by wheels, and loaded."""
