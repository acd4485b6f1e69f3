"""Operators, a folder each; `<op>/reference.py`, where there is one, is a short and slow reference implementation."""
