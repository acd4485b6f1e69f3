"""Operations that are torch operators in graphs, and plain functions in eager calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Operation:
    """Operation on tensors that is one node of a graph, torch.ops.seq2seq.<name>.

    A call through torch's registry of operators costs the host twice as much as the implementation itself
    (docs/kernels.md), so an eager call takes an autograd function around the implementation.

    Args:
        name: The operator's name.
        compute: The implementation. Its annotations define the operator's schema; the first argument is a tensor, and
            no result shares memory with an argument.
        fake: Computes the shapes, types and strides of the results, without data.
    """

    def __init__(self, name: str, compute: Callable[..., Any], *, fake: Callable[..., Any]) -> None:
        self.name = name
        self._compute = self._eager = compute
        self._registered = torch.library.custom_op(f"seq2seq::{name}", compute, mutates_args=())
        self._registered.register_fake(fake)
        self._operator = getattr(torch.ops.seq2seq, name).default

    def differentiate(self, save: Callable[..., None], backward: Callable[..., Any]) -> None:
        """Register the gradient: `save(ctx, inputs, output)` after the forward pass, and `backward(ctx, *grads)`."""
        self._registered.register_autograd(backward, setup_context=save)
        compute = self._compute

        def forward(ctx: Any, *given: Any) -> Any:
            found = compute(*given)
            save(ctx, given, found)
            return found

        # With a separate `setup_context`, torch would inspect the signature at each call
        methods = {"forward": staticmethod(forward), "backward": staticmethod(once_differentiable(backward))}
        self._eager = type(self.name, (torch.autograd.Function,), methods).apply

    def __call__(self, *given: Any) -> Any:
        """Compute the operation, given all arguments."""
        if is_traced(given[0]):
            return self._operator(*given)
        return self._eager(*given) if torch.is_grad_enabled() else self._compute(*given)


def is_traced(x: Tensor) -> bool:
    """Return True if a compiler, a dispatch mode or a tensor without data has to see the operator."""
    if torch.compiler.is_compiling():
        return True
    return x.is_meta or torch._C._len_torch_dispatch_stack() > 0 or type(x) not in (Tensor, torch.nn.Parameter)
