"""Tensors of any framework: their specs, strides, memory and devices."""
