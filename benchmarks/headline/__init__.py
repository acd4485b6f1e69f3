"""Benchmark of one visit to a GPU: quality and speed of the four mixers."""
