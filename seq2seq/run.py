"""A run's folder: its name, what it is refused for, and the small files in it."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Settings that change neither the data, the model nor the course of training.
HARMLESS = (
    "resume",
    "runs",
    "run",
    "logger",
    "data.num_workers",
    *(f"trainer.{key}" for key in ("accelerator", "devices", "log_steps", "line_time", "samples", "save_time", "test")),
)


class RunFolder:
    """Paths inside one run's folder; nothing is created before `create`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.results = path / "results.json"
        self.best = path / "checkpoints" / "best.ckpt"
        self.last = path / "checkpoints" / "last.ckpt"

    def create(self, config_yaml: str) -> None:
        """Make the folder and write config.yaml."""
        self.best.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.config, config_yaml)

    def refuse_existing(self) -> None:
        """ValueError, naming the remedies, if an earlier run left a checkpoint here."""
        if self.best.exists() or self.last.exists():
            raise ValueError(
                f"{self.path} holds an earlier run of these settings: continue it with resume=auto, "
                "or start another beside it with run=<name> (or delete the folder)"
            )


def run_name(config: Mapping[str, Any], mixer: str) -> str:
    """`<data>-<mixer>-<hash>`, the hash being that of the resolved configuration without its harmless settings."""
    data = re.sub(r"[^\w.+-]+", "_", str(config["data"]["name"]))
    return f"{data}-{re.sub(r'[^0-9A-Za-z_.+-]+', '_', mixer)}-{config_hash(config)}"


def config_hash(config: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits that depend on every setting but the HARMLESS ones, whatever the order of keys."""
    kept = copy.deepcopy(dict(config))
    for key in HARMLESS:
        *parents, leaf = key.split(".")
        node: Any = kept
        for parent in parents:
            node = node.get(parent, {})
        node.pop(leaf, None)
    text = json.dumps(kept, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def mixer_label(choice: str, overrides: Sequence[str]) -> str:
    """The chosen preset, with `+<value>` for every slot that was replaced from the command line."""
    slots = [o.split("=", 1) for o in overrides if re.match(r"\+*mixer/[^=]+=", o)]
    return "+".join([choice, *(value.split("/")[-1] for _, value in slots)])


def resolve_resume(resume: str | None, folder: RunFolder) -> tuple[RunFolder, Path | None]:
    """The folder to run in and the checkpoint to continue from, None for a fresh start.

    A checkpoint named by path continues in its own folder. Raises ValueError for a path that is no file, and for an
    existing run without `resume`.
    """
    if resume is None:
        folder.refuse_existing()
        return folder, None
    if resume == "auto":
        return folder, folder.last if folder.last.exists() else None
    checkpoint = Path(resume)
    if not checkpoint.is_file():
        raise ValueError(f"resume={resume}: no such file; name a last.ckpt, or use resume=auto")
    owner = RunFolder(checkpoint.parent.parent)
    return (owner if owner.config.exists() else folder), checkpoint


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_atomic(path: Path, text: str) -> None:
    """Write `text` so that the file is at every moment the old one or the whole new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def git_revision() -> str | None:
    """The revision of the checkout that this package lies in, `+` when files were changed; None outside git."""
    here = Path(__file__).resolve().parent
    try:
        ask = ["git", "-C", str(here), "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
        return subprocess.run(ask, capture_output=True, text=True, timeout=10, check=True).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


def translate_command(checkpoint: Path) -> str:
    """The command that translates with `checkpoint`."""
    return f"python -m seq2seq.translate --ckpt {shlex.quote(str(checkpoint))}"
