"""The campaign of real files: encodings, markup, compression, separators, shifts and scripts, with known outcomes."""
