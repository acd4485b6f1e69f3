"""A CSV logger that a resumed run appends to: one row per call, one column per metric."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers.logger import Logger


class CsvLogger(Logger):
    """Writes `metrics.csv` in `save_dir`; rows of an earlier run stay (Lightning's own logger deletes them)."""

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
        """Lightning asks for it."""
        return "csv"

    @property
    def version(self) -> str:
        """Lightning asks for it."""
        return ""

    @rank_zero_only
    def keep_until(self, step: int) -> None:
        """Drop rows after `step`: the run is about to repeat them."""
        self._rows = [row for row in self._rows if int(row["step"]) <= step]
        self._rewrite()

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add a row; a metric seen for the first time adds a column."""
        row: dict[str, Any] = {"step": step or 0}
        row.update((key, f"{value:.6g}" if isinstance(value, float) else value) for key, value in metrics.items())
        self._rows.append(row)
        new = [key for key in row if key not in self._columns]
        if new or not self.path.exists():
            self._columns += new
            self._rewrite()
            return
        with open(self.path, "a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._columns).writerow(row)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: config.yaml has them."""

    def _rewrite(self) -> None:
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        with open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(self._rows)
        os.replace(temporary, self.path)
