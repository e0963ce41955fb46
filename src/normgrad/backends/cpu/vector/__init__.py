"""The language that kernels are written in: instructions, vectors of lanes, segments of rows."""
