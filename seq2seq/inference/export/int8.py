"""Linear layers in 8-bit integers for ONNX graphs, whose activations have a scale for each row.

A row is a position of a sentence, so that what a sentence gives does not depend on the sentences beside it.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

# Activations have 8 bits, weights 7: the sum of two products of theirs fits into the 16 bits in which processors
# without VNNI add them.
_ACTIVATION, _WEIGHT = 127, 63
_ZERO = 128  # what stands for 0 among the unsigned activations


class Int8Linear(nn.Module):
    """Linear layer y = s_x (q_x Q') s_w + b of integers q_x = round(x / s_x), s_x = max |x| / 127 of a row.

    Q = round(W / s_w), s_w = max |W| / 63 of an output. It has a form in ONNX alone.

    Args:
        linear: The layer in floating point, whose weights stay for those who read them.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        scale = linear.weight.detach().abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / _WEIGHT  # (out,)
        self.register_buffer("scale", scale)
        integers = (linear.weight.detach() / scale[:, None]).round().to(torch.int8)
        self.register_buffer("integers", integers.t().contiguous())  # (in, out)
        self.register_buffer("step", torch.tensor(1.0 / _ACTIVATION))
        self.register_buffer("zero", torch.tensor(_ZERO, dtype=torch.uint8))

    def forward(self, x: Tensor) -> Tensor:
        """Transform x (..., in)."""
        symbolic = torch.onnx.ops.symbolic
        # a row of zeros stays zero
        size = x.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)  # (..., 1)
        rounded = symbolic("QuantizeLinear", [x / size, self.step, self.zero], dtype=torch.uint8, shape=x.shape)
        y = symbolic(
            "com.microsoft::MatMulIntegerToFloat",
            [rounded, self.integers, self.step, self.scale, self.zero],
            dtype=torch.float32,
            shape=(*x.shape[:-1], self.integers.shape[1]),
            version=1,
        )
        y = y * size
        return y if self.bias is None else y + self.bias


def in_int8(model: nn.Module) -> nn.Module:
    """Return a copy of a model whose linear layers compute in integers."""
    model = copy.deepcopy(model)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, Int8Linear(child))
    return model
