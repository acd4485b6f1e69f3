"""Estimate the share of the roofline that the Triton kernels reach, from their machine code, without a GPU."""
