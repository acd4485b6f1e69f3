"""Cross entropy of rows of logits: on a GPU, one kernel computes two costs of each row and the gradient."""

from __future__ import annotations

from torch import Tensor

from seq2seq.kernels.dispatch import takes_triton

OP = "cross entropy"


def is_served(logits: Tensor, backend: str = "auto") -> bool:
    """Return True if `cross_entropy_` takes logits (n, V): on a GPU, or with backend="triton" in the interpreter."""
    # On a CPU there is no choice to report in a log
    return (backend != "auto" or logits.is_cuda) and takes_triton(OP, backend, logits)


def cross_entropy_(logits: Tensor, labels: Tensor, mask: Tensor, *, at_label: float, gradient: bool = True) -> Tensor:
    """Compute -log p_y and -mean_v log p_v of every row of p = softmax(logits); overwrite the logits with a gradient.

    The gradient of row i is mask_i * (p - at_label * onehot(y_i)); with smoothing e, at_label is 1 - e, and the caller
    subtracts e / V. Call it only if `is_served`. `cross_entropy_reference` is the reference implementation.

    Args:
        labels: y, from 0 to V - 1, also where the mask is False.
        mask: False for padding, whose costs and gradient are 0.
        gradient: False leaves the logits unchanged.

    Returns:
        The two costs of each row, in float32, (2, n).

    Shape:
        logits (n, V) with adjacent columns; labels (n,) int64; mask (n,) bool.
    """
    assert logits.stride(1) == 1
    assert labels.shape == mask.shape == logits.shape[:1]
    # Imported on use: a machine without a GPU may lack Triton
    from seq2seq.kernels.cross_entropy import triton

    return triton.cross_entropy(logits, labels.contiguous(), mask.contiguous(), at_label=at_label, gradient=gradient)
