"""The loggers that conf/logger names, each writing in the run's folder."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from hydra.utils import instantiate

from seq2seq.experiments.folder import RunFolder

# What a logger of Lightning needs that does not come with Lightning.
_PACKAGES = {"WandbLogger": "wandb", "TensorBoardLogger": "tensorboard", "MLFlowLogger": "mlflow"}


def require_installed(loggers: Mapping[str, Any] | None) -> None:
    """ValueError, naming the remedy, for a logger whose package is not there."""
    for name, node in (loggers or {}).items():
        package = _PACKAGES.get(_class(node))
        if package and importlib.util.find_spec(package) is None:
            raise ValueError(f"the logger '{name}' needs {package}: pip install {package}, or use logger=default")


def make_loggers(loggers: Mapping[str, Any] | None, folder: RunFolder, *, step: int) -> list[Any]:
    """Loggers that go on after the update `step` of an earlier part of the run, 0 for a new one."""
    from seq2seq.training.csv_logger import CsvLogger

    found = []
    for node in (loggers or {}).values():
        # a run has one page there, whatever the number of its parts
        page = {"name": folder.path.name, "id": folder.path.name} if _class(node) == "WandbLogger" else {}
        found.append(instantiate(node, save_dir=str(folder.path), **page))
        if isinstance(found[-1], CsvLogger):
            found[-1].keep_until(step)
    return found


def _class(node: Mapping[str, Any]) -> str:
    return str(node.get("_target_")).rpartition(".")[2]
