"""Shared parts of tests of equations in float64: a padded batch of random inputs, and equality to rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from composed import lengths_mask
from conftest import jiggle
from torch import Tensor

from seq2seq.network.mixer import SelfMixer

LENGTHS = [7, 3, 5, 1]
MASK = lengths_mask(LENGTHS)
DIM = 6

both_forms = pytest.mark.parametrize("causal", [True, False])


def wide(*shape: int) -> Tensor:
    """Random numbers in float64."""
    return torch.randn(*shape, dtype=torch.float64)


def array(x: Tensor) -> np.ndarray:
    return x.detach().numpy()


def exactly(a: Tensor, b: Tensor) -> None:
    """Equal at real positions, to float64 rounding."""
    torch.testing.assert_close(a[MASK], b[MASK], atol=1e-12, rtol=1e-12)


def close(a: Tensor, b: Tensor, tolerance: float = 1e-10) -> None:
    """Equal numbers of one type, to rounding."""
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def sequences() -> Tensor:
    return torch.randn(*MASK.shape, DIM, dtype=torch.float64)


def made(kind: type[SelfMixer], **given: object) -> SelfMixer:
    """A random mixer in float64, in eval mode."""
    return jiggle(kind(dim=DIM, **given).double()).eval()  # type: ignore[arg-type]
