"""Benchmark of the GPU kernels of LightConv and DynamicConv: correctness and speed, also of other implementations."""
