"""Jacobian of any mixer: derivatives of output positions with respect to input positions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from seq2seq.network.introspection import freeze_mixing

# The copies of the input in one backward pass have at most this many numbers: 8 MB in float32.
NUMBERS = 1 << 21


def jacobian(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    directions: Tensor | None = None,
    routed_by: Tensor | None = None,
    kept: Callable[[Tensor], Tensor] = lambda gradient: gradient,
) -> Tensor:
    """Differentiate a function of a sequence with its mixing held constant: d(u_r . f(x)_i) / dx_j.

    Each row of the Jacobian is the gradient with respect to its own copy of x. The T R copies are sentences of a batch,
    which is processed in pieces.

    Args:
        function: f, (B, S, D) -> (B, T, D').
        x: The sequence (S, D).
        directions: u (R, D'); a unit vector for each channel of the output if None.
        routed_by: The sequence (S, D) that decides the mixing; x if None.
        kept: What is kept of some rows (n, S, D), for which all rows together may be too large.

    Returns:
        The blocks (T, R, S, D).
    """
    with torch.no_grad():
        length, width = function(x[None]).shape[1:]
    if directions is None:
        directions = torch.eye(width, dtype=x.dtype, device=x.device)
    # Row r of the Jacobian is output position r // R in direction r % R
    count = len(directions)
    rows = torch.arange(length * count, device=x.device)
    size = max(1, NUMBERS // x.numel())
    parts = []
    for part in rows.split(size):
        copies = x.detach().expand(len(part), *x.shape).clone().requires_grad_()  # (n, S, D)
        marked = None
        # Record the mixing of the other sequence, then replay it for x
        if routed_by is not None:
            with torch.no_grad(), freeze_mixing() as marked:
                function(routed_by.expand_as(copies))
        # Callers may be inside no_grad
        with torch.enable_grad(), freeze_mixing(marked):
            y = function(copies)  # (n, T, D')
            chosen = y[torch.arange(len(part), device=x.device), part // count]  # (n, D')
            # Copies are separate sentences, so the gradient of the sum has separate rows
            total = (chosen * directions[part % count]).sum()
            # An output that does not depend on x has no graph, and a Jacobian of zeros
            gradient = torch.zeros_like(copies)
            if total.requires_grad:
                (gradient,) = torch.autograd.grad(total, copies, materialize_grads=True)
        parts.append(kept(gradient))
    return torch.cat(parts).unflatten(0, (length, count))  # (T R, S, D) -> (T, R, S, D)
