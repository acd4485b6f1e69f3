"""Sequence-to-sequence translation in which the token mixer is the only thing that changes."""

__version__ = "0.1.0"
