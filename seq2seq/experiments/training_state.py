"""Check the parts of a training checkpoint: a run continues from all of them, or is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from seq2seq import checkpoint
from seq2seq.build import build_model, hidden_matrices, on_meta_device
from seq2seq.experiments.folder import ORIGIN
from seq2seq.model import Seq2Seq
from seq2seq.settings.classes import packages_of

# The tensors that each optimizer keeps beside a parameter.
_ADAM = ("exp_avg", "exp_avg_sq")
_MOMENTS = {"adam": _ADAM, "muon": _ADAM, "adadelta": ("square_avg", "acc_delta")}
# Of a matrix that Muon updates, without a counter.
_MUON = ("momentum_buffer",)


class StateError(ValueError):
    """Part of a training checkpoint from which no run can continue; the message is one line.

    Args:
        part: Its key in the file.
        problem: A phrase that follows the part.
    """

    def __init__(self, path: object, part: str, problem: str) -> None:
        super().__init__(
            f"resume={path}: its '{part}' {problem}, so training cannot go on from it; name another last.ckpt, or "
            f"start a new run from its weights with init_from={path}"
        )


def require_training_state(payload: Mapping[str, Any], config: Mapping[str, Any], path: Path) -> None:
    """Check that every part is there, and fits the model and the optimizer of `config` and the other parts.

    The states of loops and callbacks are checked when Lightning is there to say what they should be.

    Args:
        payload: The dictionary of a checkpoint, as `checkpoint.read` returns it.

    Raises:
        ValueError: Names the part.
    """
    counts = {key: payload.get(key) for key in ("global_step", "epoch", "skipped", "processes")}
    for part, value in counts.items():
        if not is_count(value) or (part == "processes" and value == 0):
            raise StateError(path, part, "is missing or no whole number")
    sums = payload.get("train_sums")
    if not isinstance(sums, list) or len(sums) != 4 or not all(_is_number(value) for value in sums):
        raise StateError(path, "train_sums", "are missing or no four numbers")
    for part in ("loops", "callbacks"):
        if not isinstance(payload.get(part), dict) or not payload[part]:
            raise StateError(path, part, "is missing or empty")
    _check_schedule(payload, path)
    # The model of the settings, without memory: its parameters are what the optimizer's state belongs to
    sizes = payload[checkpoint.KEY]["model"]
    with on_meta_device():
        # The settings are those of the command, which the user has written
        settings = {**sizes, "model": config["model"], "mixer": config["mixer"]}
        model = build_model(settings, trust=packages_of(config["mixer"]))
    checkpoint.require_weights(model, payload, path)
    # A callback may freeze parameters, which then have no state: torch compares their number when it restores it
    _check_optimizer(payload, config["optim"]["name"], model, path, some_frozen=bool(config.get("callbacks")))


def require_origin(payload: Mapping[str, Any], path: Path) -> None:
    """Check the entry by which a run recognizes its own settings and text.

    Raises:
        ValueError: It is missing or of other contents.
    """
    origin = payload[ORIGIN]
    kinds = {"settings": dict, "corpus": str, "max_tokens": int | None, "threads": int | None, "continued": list | None}
    if not isinstance(origin, dict):
        raise StateError(path, ORIGIN, "is not a dictionary")
    for key, kind in kinds.items():
        # Older files lack the last three
        if not isinstance(origin.get(key), kind):
            raise StateError(path, f"{ORIGIN}.{key}", "is missing or of the wrong type")


def is_count(value: Any) -> bool:
    """Return True for a whole number from 0; True and False are none."""
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _check_schedule(payload: Mapping[str, Any], path: Path) -> None:
    part = "lr_schedulers"
    states = payload.get(part)
    if not isinstance(states, list) or len(states) != 1 or not isinstance(states[0], dict):
        raise StateError(path, part, "is not one schedule of the learning rate")
    share = states[0].get("share")
    if not is_count(states[0].get("last_epoch")) or share is None or not _is_number(share) or not 0 <= share <= 1:
        raise StateError(path, part, "has no position in the schedule")
    if states[0]["last_epoch"] != payload["global_step"]:
        raise StateError(path, part, f"is at update {states[0]['last_epoch']}, the rest at {payload['global_step']}")


def _check_optimizer(payload: Mapping[str, Any], name: str, model: Seq2Seq, path: Path, *, some_frozen: bool) -> None:
    """Refuse an optimizer's state that is not made of the moments of each trained parameter.

    Args:
        some_frozen: The run may train fewer parameters than the model has.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = hidden_matrices(model) if name == "muon" else {}
    part = "optimizer_states"
    states = payload[part]
    if not isinstance(states, list) or len(states) != 1 or not isinstance(states[0], dict):
        raise StateError(path, part, "is not the state of one optimizer")
    groups, state = states[0].get("param_groups"), states[0].get("state")
    if (
        not isinstance(groups, list)
        or len(groups) != 1
        or not isinstance(groups[0], dict)
        or not isinstance(state, dict)
    ):
        raise StateError(path, part, "has no parameter group or no state")
    numbers = groups[0].get("params")
    if some_frozen and isinstance(numbers, list) and 0 < len(numbers) < len(parameters):
        return
    if numbers != list(range(len(parameters))):
        raise StateError(path, part, f"is not of {len(parameters)} parameters, as the model has")
    # None before the first update that was not skipped
    if not state and payload["global_step"] <= payload["skipped"]:
        return
    for number, parameter in enumerate(parameters):
        entry, is_matrix = state.get(number), parameter in matrices
        counted = isinstance(entry, dict) and isinstance(entry.get("step"), torch.Tensor | int | float)
        if not isinstance(entry, dict) or not (counted or is_matrix):
            raise StateError(path, part, f"has no state of parameter {number} of {len(parameters)}")
        for moment in _MUON if is_matrix else _MOMENTS[name]:
            tensor = entry.get(moment)
            if not isinstance(tensor, torch.Tensor) or not checkpoint.is_whole(tensor):
                raise StateError(path, part, f"has no '{moment}' of parameter {number}")
            if tensor.shape != parameter.shape or not tensor.is_floating_point():
                shapes = f"{tuple(tensor.shape)}, not {tuple(parameter.shape)}"
                raise StateError(path, part, f"has '{moment}' of parameter {number} in the shape {shapes}")
