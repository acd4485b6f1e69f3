"""Check the sections `callbacks` and `logger`, whose entries name classes, before anything heavy is imported."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from typing import Any

# Packages that loggers of Lightning need and that do not come with it.
_PACKAGES = {"WandbLogger": "wandb", "TensorBoardLogger": "tensorboard", "MLFlowLogger": "mlflow"}


def entries(section: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    """Return the entries of a section by name; null turns one off."""
    return {str(name): node for name, node in (section or {}).items() if node is not None}


def require_classes(config: Mapping[str, Any]) -> None:
    """Check what can be known of the entries of `callbacks` and `logger` without importing their classes.

    Raises:
        ValueError: An entry names no class, or one of a package that is not installed; names entry and remedy.
    """
    for section in ("callbacks", "logger"):
        for name, node in entries(config[section]).items():
            _require_class(f"{section}.{name}", node)
            package = _PACKAGES.get(class_name(node)) if section == "logger" else None
            if package and not _installed(package):
                raise ValueError(f"the logger '{name}' needs {package}: pip install {package}, or use logger=default")


def _require_class(key: str, node: Any) -> None:
    target = node.get("_target_") if isinstance(node, Mapping) else None
    if target is None:
        raise ValueError(f"{key}={node} names no class: write {{_target_: package.module.Class, argument: value}}")
    if not isinstance(target, str) or not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", target):
        raise ValueError(f"{key}._target_={target} is not a class: write package.module.Class")
    package = target.split(".")[0]
    if not _installed(package):
        raise ValueError(
            f"{key}._target_={target}: there is no package '{package}'; install it, or start the command in the folder "
            "that contains it (or name that folder in PYTHONPATH)"
        )


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:
        # Imported already, as __main__ is, and not found by its name.
        return True


def class_name(node: Mapping[str, Any]) -> str:
    """Return the class name of an entry, without its module."""
    return str(node.get("_target_")).rpartition(".")[2]
