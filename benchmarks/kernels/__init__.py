"""Benchmark of the GPU kernels of LightConv and DynamicConv: correctness, and speed next to other implementations."""
