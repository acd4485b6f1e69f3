"""Operators, one folder each; `<op>/reference.py`, if there is one, is a short and slow reference implementation."""
