"""Benchmark of the GPU kernels of LightConv and DynamicConv: speed next to other implementations."""
