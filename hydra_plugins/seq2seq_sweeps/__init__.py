"""How sweeps run: launchers, and settings for those of other packages. Hydra finds plugins in this namespace alone."""
