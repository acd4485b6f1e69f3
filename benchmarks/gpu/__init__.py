"""Benchmark of a whole visit to a GPU: parts in separate processes, and a page of verdicts."""
