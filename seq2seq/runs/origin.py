"""Read what a run left beside a checkpoint: its scores and its settings."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from seq2seq.runs.folder import RunFolder
from seq2seq.settings.dicts import read_yaml


def read_origin(ckpt: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return results.json and config.yaml of the run that a checkpoint lies in, each {} where there is none.

    Scores are left out where they are those of another checkpoint of the run.
    """
    folder = RunFolder.of_checkpoint(ckpt)
    if folder is None:
        return {}, {}
    results = folder.read_results()
    if not (folder.best.is_file() and (ckpt.is_dir() or (ckpt.is_file() and folder.best.samefile(ckpt)))):
        results = {name: value for name, value in results.items() if name not in ("valid", "test")}
    settings: dict[str, Any] = {}
    # A file of another program, perhaps
    with contextlib.suppress(ValueError, OSError):
        settings = read_yaml(folder.config)
    return results, settings
