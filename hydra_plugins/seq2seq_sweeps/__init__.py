"""Launchers for sweeps, and defaults for launchers of other packages. Hydra looks for plugins in this namespace."""
