"""Check the sections `logger` and `callbacks`, whose entries are classes of Lightning with their arguments."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from seq2seq.config.values import shown

# Packages that loggers of Lightning need and that do not come with it.
_PACKAGES = {"WandbLogger": "wandb", "TensorBoardLogger": "tensorboard", "MLFlowLogger": "mlflow"}


def check_entries(entries: Mapping[str, Any], section: str) -> None:
    """Raise ValueError, naming the remedy, for an entry that names no class."""
    for name, node in entries.items():
        key = f"{section}.{name}"
        if node is None:
            raise ValueError(f"{key}=null is not an entry; ~{key} removes it")
        if not isinstance(node, Mapping):
            raise ValueError(f"{key}={shown(node)} is not a mapping {{_target_: a class, argument: value}}")
        target = node.get("_target_")
        if not isinstance(target, str) or not all(part.isidentifier() for part in target.split(".")):
            raise ValueError(f"{key}._target_={shown(target)} is not a class, as in package.module.Class")


def require_installed(loggers: Mapping[str, Any] | None) -> None:
    """Raise ValueError, naming the remedy, for a logger whose package is not installed."""
    for name, node in (loggers or {}).items():
        # Classes of other packages are left to `instantiate`.
        package = _PACKAGES.get(class_name(node))
        if package and importlib.util.find_spec(package) is None:
            raise ValueError(f"the logger '{name}' needs {package}: pip install {package}, or use logger=default")


def class_name(node: Mapping[str, Any]) -> str:
    """Return the class name of an entry, without its module."""
    return str(node.get("_target_")).rpartition(".")[2]
