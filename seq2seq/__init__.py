"""Sequence-to-sequence translation in which the token mixer is the only thing that changes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seq2seq.api import Run, compose
    from seq2seq.inference.translator import Translator
    from seq2seq.network.build import build_model
    from seq2seq.network.mixer import CrossMixer, SelfMixer

__version__ = "0.1.0"
__all__ = ["CrossMixer", "Run", "SelfMixer", "Translator", "build_model", "compose"]

# The module of each name. These import torch, so they are imported at the first use of a name.
_MODULES = {
    "CrossMixer": "seq2seq.network.mixer",
    "Run": "seq2seq.api",
    "SelfMixer": "seq2seq.network.mixer",
    "Translator": "seq2seq.inference.translator",
    "build_model": "seq2seq.network.build",
    "compose": "seq2seq.api",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'seq2seq' has no attribute '{name}'")
    from seq2seq.system.packages import naming_training

    with naming_training(name):
        return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
