"""Checkpoints of Lightning through `seq2seq.checkpoint`: atomic, plain and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.fabric.plugins import CheckpointIO
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

from seq2seq import checkpoint as checkpoints

# The callbacks that do what one named `Control` did in checkpoints written before it was split, and their state.
_PARTS_OF_CONTROL = {
    "Stopping": ("elapsed", "bad_validations", "validation_seconds", "ended"),
    "RecordScores": ("best", "best_step", "best_scores"),
    "Validation": ("validated", "validated_step", "pending"),
    "AverageWeights": ("average",),
}


class AtomicCheckpointIO(CheckpointIO):
    """Write checkpoints with `checkpoint.save` and read them with `checkpoint.read`."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write `checkpoint` to `path`."""
        checkpoints.save(path, checkpoint)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read `path` to the CPU."""
        # Always to the CPU, whatever `map_location` says: Lightning moves the weights itself.
        payload = checkpoints.read(path)
        # Absent from files of weights alone.
        if "callbacks" in payload:
            payload["callbacks"] = _split_control(payload["callbacks"])
        return payload

    def remove_checkpoint(self, path: Any) -> None:
        """Delete `path`."""
        Path(path).unlink(missing_ok=True)


def plugins() -> list[Any]:
    """Return the plugins that Lightning writes checkpoints and, under SLURM, finds its peers with.

    Requeueing is not left to it: a run has one owner of signals, `Signals` (Lightning's issue 14610).
    """
    environment = [SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() else []
    return [AtomicCheckpointIO(), *environment]


def _split_control(states: dict[str, Any]) -> dict[str, Any]:
    """Distribute the state of an earlier `Control` over the callbacks it was split into."""
    control = states.get("Control")
    if control is None:
        return states
    # An older file may lack keys that were added later.
    parts = {name: {key: control[key] for key in keys if key in control} for name, keys in _PARTS_OF_CONTROL.items()}
    return {name: state for name, state in (states | parts).items() if name != "Control" and state}
