"""The language that kernels are written in: instructions, vectors of lanes, parts of rows."""
