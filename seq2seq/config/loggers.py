"""Check the section `logger`, whose entries are loggers of Lightning."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

# Packages that loggers of Lightning need and that do not come with it.
_PACKAGES = {"WandbLogger": "wandb", "TensorBoardLogger": "tensorboard", "MLFlowLogger": "mlflow"}


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
