"""Find the file of a model that a user names: a checkpoint, a run's folder or an exported one. Imports no torch."""

from __future__ import annotations

from pathlib import Path

# Files in a run's folder: its best checkpoint for use, and the state that training resumes from.
BEST = Path("checkpoints", "best.safetensors")
LAST = Path("checkpoints", "last.ckpt")
# The checkpoint in a folder that export has written.
WEIGHTS = Path("model.safetensors")


class CheckpointError(ValueError):
    """Checkpoint that cannot be used; the message is one line."""

    def __init__(self, message: str) -> None:
        # Names and values in it may be as long as the file, and have line breaks
        line = " ".join(message.split())
        super().__init__(line if len(line) <= 1000 else f"{line[:600]} ... {line[-300:]}")


def checkpoint_file(path: Path) -> Path:
    """Return the checkpoint at `path`: the file itself, the best one of a run's folder, or that of an exported folder.

    Raises:
        CheckpointError: There is no such file, it is not a regular one, or it is the state of a training.
    """
    file = path
    if path.is_dir():
        file = next((path / name for name in (BEST, WEIGHTS) if (path / name).exists()), None)
        if file is None:
            raise CheckpointError(f"{path}: {_no_checkpoint(path)}")
    if not file.exists():
        raise CheckpointError(f"{file}: no such file")
    # A pipe would wait for its writer
    if not file.is_file():
        raise CheckpointError(f"{file}: is not a regular file")
    if file.suffix == ".ckpt":
        run = file.absolute().parent.parent
        other = path.parent.parent if (run / BEST).is_file() else "a run's folder, or a .safetensors file"
        raise CheckpointError(f"{file}: holds the state of a training, for resume alone; name {other}")
    return file


def _no_checkpoint(folder: Path) -> str:
    if (folder / LAST).is_file():
        return f"has no {BEST} yet, which the first validation writes"
    return f"is a folder without {BEST} or {WEIGHTS}; name a checkpoint, a run's folder or a Hugging Face one"


def is_model_file(path: Path) -> bool:
    """Return True for a file that begins as checkpoints do, those for use or those for resume."""
    with path.open("rb") as file:
        start = file.read(9)
    # A zip, or the length of safetensors' header in 8 bytes, and its brace
    return start.startswith(b"PK\3\4") or (start[4:8] == bytes(4) and start[8:] == b"{")
