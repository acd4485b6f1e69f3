"""Choose the weights that a run trains: freeze some by name, or train low-rank updates alone."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection

from torch import nn

from seq2seq.network.low_rank import add_low_rank
from seq2seq.network.model import Seq2Seq
from seq2seq.settings.optim import OptimSettings
from seq2seq.settings.values import suggestion


def choose_trained(model: Seq2Seq, settings: OptimSettings, *, new: Collection[str] = ()) -> None:
    """Freeze weights by `optim.freeze`, and train low-rank updates in place of matrices by `optim.lora`; in place.

    Low-rank updates belong to the linear layers inside encoder and decoder layers, and all other weights are frozen.

    Args:
        new: Names of weights that no checkpoint gave, which are trained whole.

    Raises:
        ValueError: A pattern matches no weight, or nothing is left to train.
    """
    # A tied weight has several names
    named = dict(model.named_parameters(remove_duplicate=False))
    frozen = set[str]()
    for pattern in settings.freeze:
        matched = fnmatch.filter(named, pattern)
        if not matched:
            # Suggest modules of weights, such as encoder.layers.0.mix.*
            parts = [name.split(".") for name in named]
            modules = dict.fromkeys(".".join([*each[:depth], "*"]) for each in parts for depth in range(1, len(each)))
            raise ValueError(f"optim.freeze: no weight is called {pattern}{suggestion(pattern, list(modules))}")
        frozen.update(matched)
    if settings.lora:
        layers = [(name, each) for name, each in model.named_modules() if isinstance(each, nn.Linear)]
        for name, layer in layers:
            weight = f"{name}.weight"
            inner = name.startswith(("encoder.layers.", "decoder.layers."))
            # A matrix with no more rows or columns than the rank would not become smaller
            if inner and weight not in new and weight not in frozen and min(layer.weight.shape) > settings.lora:
                add_low_rank(layer, settings.lora)
        frozen.update(name for name in named if name not in new)
    for name in frozen:
        named[name].requires_grad_(False)
    if not any(each.requires_grad for each in model.parameters()):
        what = "optim.freeze" if settings.freeze else f"optim.lora={settings.lora}"
        raise ValueError(f"{what} leaves no weight to train: freeze fewer, or choose a smaller rank")
