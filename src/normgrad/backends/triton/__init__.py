"""The backend for NVIDIA's GPUs, in Triton; experimental."""
