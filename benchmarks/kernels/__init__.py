"""The GPU kernels of LightConv and DynamicConv: are they right, how fast are they, and against what."""
