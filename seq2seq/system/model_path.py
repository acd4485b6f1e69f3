"""Find the file of a model by the path of a checkpoint, a run or an exported folder. Imports no torch."""

from __future__ import annotations

from pathlib import Path

# Files in a run's folder: the best checkpoint, the state that training resumes from, and the previous state.
BEST = Path("checkpoints", "best.safetensors")
LAST = Path("checkpoints", "last.ckpt")
PREVIOUS = Path("checkpoints", "previous.ckpt")
# The checkpoint in a folder that export has written.
WEIGHTS = Path("model.safetensors")
# A file of each exported folder without a checkpoint, with its content and what reads it.
CT2_MODEL = Path("model.bin")
_EXPORTED = {
    Path("step.onnx"): "ONNX graphs, which translate, score and serve read",
    CT2_MODEL: "a CTranslate2 model, which ctranslate2.Translator reads",
}


class CheckpointError(ValueError):
    """Checkpoint that cannot be used; the message is one line."""

    def __init__(self, message: str) -> None:
        # Names and values from the file may be long and have line breaks
        line = " ".join(message.split())
        super().__init__(line if len(line) <= 1000 else f"{line[:600]} ... {line[-300:]}")


def checkpoint_file(path: Path) -> Path:
    """Return the checkpoint at `path`: a file, or the best checkpoint of a run, or the weights of an exported folder.

    Raises:
        CheckpointError: The file does not exist, is not a regular file, or is a training state.
    """
    file = path
    if path.is_dir():
        file = next((path / name for name in (BEST, WEIGHTS) if (path / name).exists()), None)
        if file is None and (path / LAST).is_file():
            raise CheckpointError(f"{path}: has no {BEST} yet, which the first validation writes")
        if file is None:
            for name, what in _EXPORTED.items():
                if (path / name).is_file():
                    raise CheckpointError(f"{path}: holds {what}; name the checkpoint that it was exported from")
            inner = sorted(path.glob(str("*" / BEST)))
            remedy = f"name {inner[0].parent.parent}" if inner else "name a checkpoint, a run, or a folder of export"
            raise CheckpointError(f"{path}: is a folder without {BEST} or {WEIGHTS}; {remedy}")
    if not file.exists():
        raise CheckpointError(f"{file}: no such file")
    # Opening a pipe would wait for its writer
    if not file.is_file():
        raise CheckpointError(f"{file}: is not a regular file")
    if file.suffix == ".ckpt":
        run = file.absolute().parent.parent
        other = path.parent.parent if (run / BEST).is_file() else "a run's folder, or a .safetensors file"
        raise CheckpointError(f"{file}: holds a training state, which only resume reads; name {other}")
    return file


def is_model_file(path: Path) -> bool:
    """Return True for a file that begins like a checkpoint or a training state."""
    with path.open("rb") as file:
        start = file.read(9)
    # A zip file, or safetensors: the length of the header in 8 bytes, then its brace
    return start.startswith(b"PK\3\4") or (start[4:8] == bytes(4) and start[8:] == b"{")
