"""Loggers of a run: the entries of conf/logger, and a CSV logger that a resumed run appends to."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers.logger import Logger

from seq2seq.config.loggers import class_name
from seq2seq.experiments.folder import RunFolder
from seq2seq.files import write_text


def make_loggers(loggers: Mapping[str, Any] | None, folder: RunFolder, *, step: int) -> list[Logger]:
    """Make the loggers, which continue after update `step` of an earlier part of the run.

    Args:
        loggers: The section `logger`: a class and its arguments by name.
        step: 0 for a new run.
    """
    made = []
    for node in (loggers or {}).values():
        # A run has one page there, however often it is resumed.
        page = {"name": folder.path.name, "id": folder.path.name} if class_name(node) == "WandbLogger" else {}
        # TensorBoard hides what an earlier part logged from this update on.
        purge = {"purge_step": step + 1} if class_name(node) == "TensorBoardLogger" and step else {}
        logger = instantiate(node, save_dir=str(folder.path), **page, **purge)
        # The run repeats the updates after its checkpoint, and would log them twice.
        if isinstance(logger, CsvLogger):
            logger.keep_until(step)
        made.append(logger)
    return made


class CsvLogger(Logger):
    """Logger that writes `metrics.csv`: one row per call, one column per metric.

    Rows of an earlier part of the run stay; Lightning's own logger deletes them. A metric has one value per update: a
    row that comes again, as that of a validation which a kill interrupted, replaces the one before.
    """

    def __init__(self, *, save_dir: str, filename: str = "metrics.csv") -> None:
        super().__init__()
        self.path = Path(save_dir) / filename
        self._rows: list[dict[str, Any]] = []
        self._columns = ["step"]
        if self.path.exists():
            with open(self.path, newline="", encoding="utf-8") as file:
                reader = csv.DictReader(file)
                self._columns = list(reader.fieldnames or self._columns)
                # A write that was cut short leaves a row without all its columns.
                self._rows = [row for row in reader if None not in row.values() and row.get("step", "").isdigit()]

    @property
    def name(self) -> str:
        """Name of the logger, which Lightning requires."""
        return "csv"

    @property
    def version(self) -> str:
        """Empty version, which Lightning requires: the run's folder is the version."""
        return ""

    @rank_zero_only
    def keep_until(self, step: int) -> None:
        """Drop the rows after `step`: the run is about to repeat them."""
        self._rows = [row for row in self._rows if int(row["step"]) <= step]
        self._rewrite()

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add a row; a metric seen for the first time adds a column."""
        row: dict[str, Any] = {"step": step or 0}
        row.update((key, f"{value:.6g}" if isinstance(value, float) else value) for key, value in metrics.items())
        again = self._drop(row)
        self._rows.append(row)
        # A new column changes the header, so the file is written again; else one line is appended.
        new = [key for key in row if key not in self._columns]
        if new or again or not self.path.exists():
            self._columns += new
            self._rewrite()
            return
        with open(self.path, "a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._columns).writerow(row)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Log nothing: config.yaml has them."""

    def _drop(self, row: Mapping[str, Any]) -> bool:
        """Remove the earlier row of this update with the same metrics; return True if there was one."""
        # Rows are in the order of their updates, and an update has few.
        for number in range(len(self._rows) - 1, -1, -1):
            earlier = self._rows[number]
            if int(earlier["step"]) < row["step"]:
                return False
            if int(earlier["step"]) == row["step"] and any(earlier.get(key) for key in row if key != "step"):
                del self._rows[number]
                return True
        return False

    def _rewrite(self) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns)
        writer.writeheader()
        writer.writerows(self._rows)
        write_text(self.path, text.getvalue())
