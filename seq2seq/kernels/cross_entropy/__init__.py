"""Cross entropy of rows of logits: both of its sums and the gradient in one kernel, on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from seq2seq.kernels.dispatch import takes_triton
from seq2seq.kernels.operation import Operation

OP = "cross entropy"


def is_served(logits: Tensor, backend: str = "auto") -> bool:
    """Return True if `cross_entropy_` takes logits (n, V): on a GPU, or with backend="triton" in the interpreter."""
    # On a CPU there is no choice that a log should report
    return (backend != "auto" or logits.is_cuda) and takes_triton(OP, backend, logits)


def cross_entropy_(
    logits: Tensor, labels: Tensor, mask: Tensor, *, at_label: float, share: float = 0.0, gradient: bool = True
) -> Tensor:
    """Compute -log p_y and -mean_v log p_v of every row, p = softmax(logits); overwrite the logits by a gradient.

    The gradient of row i is mask_i * (p - at_label * onehot(y_i) - share). With smoothing e, at_label is 1 - e, and
    share e / V, or 0 where the caller takes it off by itself. `is_served` says whether it can be called;
    `cross_entropy_reference` is its reference implementation.

    Args:
        labels: y, from 0 to V - 1 also where the mask is False.
        mask: False for padding, whose costs and gradient are 0.
        gradient: False leaves the logits as they are.

    Returns:
        The two costs of each row, in float32, (2, n).

    Shape:
        logits (n, V) with adjacent columns; labels (n,) int64; mask (n,) bool.
    """
    if logits.dim() != 2 or logits.stride(1) != 1 or labels.shape != logits.shape[:1] or mask.shape != labels.shape:
        raise ValueError(
            f"logits {tuple(logits.shape)}, labels {tuple(labels.shape)} and mask {tuple(mask.shape)} are not "
            "(n, V) with adjacent columns, (n,) and (n,)"
        )
    return _cross_entropy_(logits, labels.contiguous(), mask.contiguous(), at_label, share, gradient)


def _compute(logits: Tensor, labels: Tensor, mask: Tensor, at_label: float, share: float, gradient: bool) -> Tensor:
    # Imported on use: a machine without a GPU may lack Triton
    from seq2seq.kernels.cross_entropy import triton

    return triton.cross_entropy(logits, labels, mask, at_label=at_label, share=share, gradient=gradient)


def _fake(logits: Tensor, labels: Tensor, mask: Tensor, at_label: float, share: float, gradient: bool) -> Tensor:
    return logits.new_empty((2, logits.shape[0]), dtype=torch.float32)


_cross_entropy_ = Operation("cross_entropy_", _compute, fake=_fake, mutates=("logits",))
