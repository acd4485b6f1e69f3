"""Launchers for sweeps, and settings for those of other packages. Hydra looks for plugins in this namespace only."""
