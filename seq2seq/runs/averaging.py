"""Average the weights of checkpoints, in float64."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from seq2seq import checkpoint
from seq2seq.data.context import context_size
from seq2seq.data.languages import target_languages
from seq2seq.data.tokenizer import same_pieces
from seq2seq.kernels.precision import at_least_float32
from seq2seq.network.make_mixer import model_differences
from seq2seq.settings.dicts import differences
from seq2seq.settings.values import shown

# Names that training gives its checkpoints.
_TRAINING = r"last\.ckpt|(best|step-\d+|top-\d+)\.safetensors"

Weights = dict[str, torch.Tensor]


def average(paths: Sequence[Path]) -> checkpoint.Stored:
    """Average checkpoints: w = (1 / n) sum_i w_i for every weight, summed in float64.

    Weights have their type, or float32 if that is narrower; the description is the first checkpoint's.

    Args:
        paths: Checkpoints of one model, two or more.

    Raises:
        ValueError: They are not two or more checkpoints of one model, tokenizer and direction.
    """
    if len(paths) < 2:
        raise ValueError(f"an average needs two checkpoints or more, not {len(paths)}")
    first = checkpoint.read(paths[0])
    # Whole numbers (counters, tables of positions) have no mean: they are copied
    sums = {name: weight.double() if weight.is_floating_point() else weight for name, weight in first.weights.items()}
    # One checkpoint is in memory at a time, besides the sums
    for path in paths[1:]:
        meta, weights = checkpoint.read(path)
        _require_same(first.meta, meta, paths[0], path)
        _add(sums, weights, paths[0], path)
    mean = {
        name: (sums[name] / len(paths)).to(at_least_float32(weight.dtype)) if weight.is_floating_point() else weight
        for name, weight in first.weights.items()
    }
    # An average belongs to no update
    return checkpoint.Stored({key: value for key, value in first.meta.items() if key != "step"}, mean)


def latest_checkpoints(run: Path, count: int) -> list[Path]:
    """Return the latest `count` step checkpoints of the folder of a run, oldest first.

    Raises:
        ValueError: The run kept fewer than `count`, or the folder does not exist.
    """
    if not run.is_dir():
        raise ValueError(f"{run} is not a run's folder; without --last, name checkpoints and --out")
    paths = step_checkpoints(run / "checkpoints")
    if len(paths) < count:
        raise ValueError(
            f"{run} kept {len(paths)} step checkpoints, not {count}; train with trainer.keep_last={count}, "
            "or name the checkpoints to average"
        )
    return paths[-count:]


def step_checkpoints(folder: Path) -> list[Path]:
    """List `step-<update>.safetensors` in `folder`, by update."""
    # By number, since by name step-900 would follow step-1000
    paths = [path for path in folder.glob("step-*.safetensors") if path.stem.removeprefix("step-").isdigit()]
    return sorted(paths, key=update_of)


def update_of(path: Path) -> int:
    """Return the update that is in the name of a step checkpoint."""
    return int(path.stem.removeprefix("step-"))


def is_from_training(path: Path) -> bool:
    """Return True for an existing checkpoint that a run wrote and may need."""
    # A link to a run's checkpoint counts as the checkpoint
    path = Path(os.path.realpath(path))
    return path.is_file() and path.parent.name == "checkpoints" and bool(re.fullmatch(_TRAINING, path.name))


def _require_same(one: Mapping[str, Any], other: Mapping[str, Any], first: Path, path: Path) -> None:
    # The state of a tokenizer is long and binary, so the message does not print the difference
    if not same_pieces(one["tokenizer"], other["tokenizer"]):
        raise ValueError(f"{path} has another tokenizer than {first}; average checkpoints of one run")
    labels = differences(_labels(one), _labels(other))
    for name, mine, theirs in chain(model_differences(one["model"], other["model"]), labels):
        raise ValueError(
            f"{path} cannot be averaged with {first}: {name} is {shown(theirs)} there and {shown(mine)} "
            "here; average checkpoints of one model"
        )


def _labels(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return what must be equal in two descriptions, besides tokenizer and model."""
    # Sorted, so that only real differences count
    languages = {
        "src_lang": meta["src_lang"],
        "tgt_lang": meta["tgt_lang"],
        "tgt_langs": sorted(target_languages(meta)),
    }
    return languages | {"context": context_size(meta), "terms": meta.get("terms") is True}


def _add(sums: Weights, weights: Weights, first: Path, path: Path) -> None:
    """Add `weights` to `sums`; raise ValueError unless names, shapes and whole numbers agree."""
    shapes, others = ({name: [*weight.shape] for name, weight in each.items()} for each in (sums, weights))
    for name, mine, theirs in differences(shapes, others):
        raise ValueError(
            f"{path} and {first} have different weights ({name}: {theirs} and {mine}); average checkpoints of one model"
        )
    for name, weight in weights.items():
        if weight.is_floating_point() and sums[name].is_floating_point():
            sums[name] += weight
        elif not weight.equal(sums[name]):
            raise ValueError(f"{path}: '{name}' holds whole numbers that differ from {first}, and have no mean")
