"""Operators with a short slow twin each: `<op>/reference.py` is the definition, the others are fast."""
