"""Linear layers in 8-bit integers for ONNX graphs, with one scale per row of activations.

A row is a position of a sentence, so that the result of a sentence does not depend on the other sentences of its batch.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.network.model import Seq2Seq

# Activations have 8 bits, weights 7: the sum of two of their products fits into 16 bits, in which processors without
# VNNI add them.
_ACTIVATION, _WEIGHT = 127, 63
_ZERO = 128  # the unsigned activation that represents 0
_TINY = torch.finfo(torch.float32).tiny
# Name of the layer that recurrent mixers apply to their state in a loop over positions.
LOOPED = "recurrent"


class Int8Linear(nn.Module):
    """Linear layer y = s_x (q_x Q') s_w + b with integers q_x = round(x / s_x) and s_x = max |x| / 127 of each row.

    Q = round(W / s_w), with s_w = max |W| / 63 of each output. A graph uses ONNX Runtime's operator; here, whole
    numbers in floating point give the same result, exactly up to 2,096 inputs.

    Args:
        linear: The layer in floating point; its weight and bias stay attributes.
    """

    integers: Tensor
    scale: Tensor
    step: Tensor
    zero: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        weight = linear.weight.detach()
        scale = weight.abs().amax(1).clamp(min=_TINY) / _WEIGHT  # s_w, (out,)
        self.register_buffer("scale", scale)
        self.register_buffer("integers", (weight / scale[:, None]).round().to(torch.int8).t().contiguous())  # (in, out)
        self.register_buffer("step", torch.tensor(1.0 / _ACTIVATION))
        self.register_buffer("zero", torch.tensor(_ZERO, dtype=torch.uint8))

    def forward(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """Transform x (..., in), or only the given rows of x (N, in), possibly no rows."""
        if not torch.compiler.is_exporting():
            x = x if rows is None else x.index_select(0, rows)
            return int8_linear(x, self.integers.t().to(x.dtype), self.scale, self.bias)
        size = x.abs().amax(-1, keepdim=True)  # max |x|, (..., 1)
        # A row of zeros: 0 / 0 becomes some integer, and its product with 0 is 0
        x = x / size
        if rows is not None:
            # Selected after the maximum, whose shape is wrong in ONNX Runtime if there are no rows
            x, size = x.index_select(0, rows), size.index_select(0, rows)
        symbolic = torch.onnx.ops.symbolic
        rounded = symbolic("QuantizeLinear", [x, self.step, self.zero], dtype=torch.uint8, shape=x.shape)
        given = [rounded, self.integers, self.step, self.scale, self.zero]
        shape = (*x.shape[:-1], self.integers.shape[1])
        name = "com.microsoft::MatMulIntegerToFloat"
        y = symbolic(name, given, dtype=torch.float32, shape=shape, version=1) * size
        return y if self.bias is None else y + self.bias


def int8_linear(x: Tensor, integers: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """Transform x (..., D) like an `Int8Linear`, with integers (U, D) as floating-point numbers."""
    # A row of zeros stays zero
    size = x.abs().amax(-1, keepdim=True).clamp(min=_TINY)
    step = torch.tensor(1.0 / _ACTIVATION)
    y = F.linear((x / size / step).round(), integers) * (step * scale) * size
    return y if bias is None else y + bias


def in_int8(model: Seq2Seq) -> Seq2Seq:
    """Return a copy of a model with linear layers in integers, except those in an encoder's recurrence."""
    model = copy.deepcopy(model)
    # Loops of a graph cannot contain ONNX Runtime's own operators
    looped = {child for module in model.encoder.modules() for name, child in module.named_children() if name == LOOPED}
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and child not in looped:
                setattr(module, name, Int8Linear(child))
    return model
