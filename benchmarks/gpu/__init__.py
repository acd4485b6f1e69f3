"""Benchmark of a whole visit to a GPU: parts in processes of their own, and a page of verdicts."""
