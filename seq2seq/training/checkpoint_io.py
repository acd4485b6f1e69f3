"""Checkpoints of Lightning through `seq2seq.checkpoint`: atomic, plain and checked."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.fabric.plugins import CheckpointIO
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

from seq2seq import checkpoint as checkpoints
from seq2seq import distributed
from seq2seq.experiments.folder import ORIGIN
from seq2seq.experiments.training_state import StateError, is_count
from seq2seq.training.errors import TrainingFault

if TYPE_CHECKING:
    import lightning as L

# The callbacks with a state that every run has had, whatever its settings.
_ALWAYS = ("ProgressLog", "RecordScores", "Stopping", "Validation")


class AtomicCheckpointIO(CheckpointIO):
    """Write checkpoints with `checkpoint.save` and read them with `checkpoint.read`."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write `checkpoint` to `path`.

        Raises:
            TrainingFault: Its weights are not finite: nothing could translate with it or continue from it.
        """
        # A callback such as ModelCheckpoint leaves it to the writer.
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        try:
            checkpoints.save(path, checkpoint)
        except checkpoints.NotFiniteWeightsError:
            raise TrainingFault(
                f"training has diverged: at update {checkpoint.get('global_step')} the weights are not finite, and "
                f"{path} is not written; lower optim.lr, lengthen its rise (optim.warmup_share or warmup_steps), or "
                "set optim.clip_norm=1"
            ) from None

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read `path` to the CPU."""
        # Always to the CPU, whatever `map_location` says: Lightning moves the weights itself.
        return checkpoints.read(path)

    def remove_checkpoint(self, path: Any) -> None:
        """Delete `path`."""
        Path(path).unlink(missing_ok=True)


def require_restorable(payload: Mapping[str, Any], trainer: L.Trainer) -> None:
    """Check the states of loops and callbacks before Lightning restores the first of them.

    Raises:
        ValueError: One is missing or of other contents; names it.
    """
    path = trainer.ckpt_path
    loops = payload["loops"].get("fit_loop")
    # Lightning's own, which knows what this version reads.
    _require_like(loops, trainer.fit_loop.state_dict(), "loops.fit_loop", path)
    steps = loops["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]["total"]["completed"]
    if steps != payload["global_step"]:
        raise StateError(path, "loops", f"are at update {steps}, the rest at {payload['global_step']}")
    # Averages cannot be made up for; a run that begins to average (force=true) has none to restore.
    averaged = payload[ORIGIN]["settings"].get("trainer", {}).get("ema")
    required = (*_ALWAYS, "AverageWeights") if averaged else _ALWAYS
    callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    # Those that a user adds know what they accept.
    for callback in (each for each in callbacks if type(each).__module__.startswith("seq2seq.")):
        state = payload["callbacks"].get(callback.state_key)
        if state is None and callback.state_key in required:
            raise StateError(path, f"callbacks.{callback.state_key}", "is missing")
        _require_accepted(callback, state, path)


def _require_accepted(callback: L.Callback, state: Any, path: Any) -> None:
    """Refuse the state of a callback that it cannot restore; nothing is restored where it has none."""
    name = f"callbacks.{callback.state_key}"
    if state is None:
        return
    own = callback.state_dict()
    if not isinstance(state, dict) or any(not _same_kind(state[key], own[key]) for key in own if key in state):
        raise StateError(path, name, "is not the state of this callback")
    try:
        # As Lightning will do it again. A copy: what is restored may be changed in place.
        callback.load_state_dict(copy.deepcopy(state))
    except Exception as error:  # whatever wrong contents make it raise
        raise StateError(path, name, f"cannot be restored ({type(error).__name__}: {str(error)[:200]})") from None


def _require_like(value: Any, example: Any, place: str, path: Any) -> None:
    """Refuse a value that lacks a part of `example` or has one of another kind."""
    if isinstance(example, dict):
        for key, part in example.items():
            if not isinstance(value, dict) or key not in value:
                raise StateError(path, f"{place}.{key}", "is missing")
            _require_like(value[key], part, f"{place}.{key}", path)
    elif not _same_kind(value, example):
        raise StateError(path, place, "is of the wrong type")


def _same_kind(value: Any, example: Any) -> bool:
    """Return True if a value can stand where `example` does; None in either place says nothing."""
    if value is None or example is None:
        return True
    if isinstance(example, bool) or isinstance(value, bool):
        return type(value) is type(example)
    # Counts are never negative; -1 stands for none, as in a validated step.
    if isinstance(example, int):
        return is_count(value) or value == -1
    if isinstance(example, float):
        return isinstance(value, int | float)
    return isinstance(value, type(example))


def plugins() -> list[Any]:
    """Return the plugins that Lightning writes checkpoints with, and by which its processes find each other.

    Requeueing is not left to it: a run has one owner of signals, `Signals` (Lightning's issue 14610).
    """
    environment: list[Any] = []
    if distributed.launcher() == "srun":
        environment = [SLURMEnvironment(auto_requeue=False)]
    # Lightning would take any other job of SLURM for one whose processes SLURM has started.
    elif "SLURM_NTASKS" in os.environ and not distributed.launcher():
        environment = [LightningEnvironment()]
    return [AtomicCheckpointIO(), *environment]
