"""The loggers of a run, the functions that log to them, and a CSV logger to which a resumed run appends."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.loggers.logger import Logger

from seq2seq.runs.folder import RunFolder
from seq2seq.runs.results import read_metrics
from seq2seq.settings.classes import class_name, entries
from seq2seq.settings.dicts import flat
from seq2seq.system.files import write_text
from seq2seq.system.ranks import is_first_process
from seq2seq.training.lightning_parts.user_classes import accepted, make, require_call


def check_loggers(section: Mapping[str, Any] | None) -> None:
    """Import the classes of the section `logger` and check their arguments, but make no logger, as some would write.

    Raises:
        ValueError: A class is missing, is not a logger, or takes other arguments.
    """
    for name, node in entries(section).items():
        require_call(f"logger.{name}", node, Logger)


def make_loggers(section: Mapping[str, Any] | None, folder: RunFolder, *, step: int) -> list[Logger]:
    """Make the loggers of the section `logger`, which continue after update `step` (0 for a new run)."""
    made = []
    for name, node in entries(section).items():
        target = require_call(f"logger.{name}", node, Logger)
        given = accepted(target, {"save_dir": str(folder.path)})
        # A run has one page at wandb, however often it is resumed.
        if class_name(node) == "WandbLogger":
            given |= {"name": folder.path.name, "id": folder.path.name}
        # TensorBoard hides what an earlier part of the run logged from this update on.
        if class_name(node) == "TensorBoardLogger" and step:
            given["purge_step"] = step + 1
        logger = make(f"logger.{name}", node, Logger, **given)
        # The run repeats the updates after its checkpoint, which would be logged twice.
        if isinstance(logger, CsvLogger):
            logger.keep_until(step)
        made.append(logger)
    return made


def log_settings(loggers: Sequence[Logger], config: Mapping[str, Any]) -> None:
    """Log the settings of a new run to the loggers that take them without scores."""
    for logger in loggers:
        if not _takes(logger, "log_hyperparams", "metrics"):
            logger.log_hyperparams(flat(config))


def log_samples(loggers: Sequence[Logger], rows: Sequence[tuple[str, str, str]], step: int) -> None:
    """Log (source, hypothesis, reference) of a few sentences, on rank 0.

    A logger needs `log_text(key, columns, data, step)`, like Lightning's WandbLogger, or an experiment with
    `add_text(tag, text, step)`, like TensorBoardLogger.
    """
    columns = ["source", "hypothesis", "reference"]
    for logger in loggers:
        if _takes(logger, "log_text", "key", "columns", "data", "step"):
            table = [list(row) for row in rows]
            logger.log_text(key="val/samples", columns=columns, data=table, step=step)  # type: ignore[attr-defined]
        elif callable(add_text := getattr(getattr(logger, "experiment", None), "add_text", None)):
            # In an indented Markdown block, <unk> is not markup.
            lines = [[f"    {name:<10} {text}" for name, text in zip(columns, row, strict=True)] for row in rows]
            blocks = ["\n".join(each) for each in lines]
            add_text("val/samples", "\n    \n".join(blocks), step)


def log_image(loggers: Sequence[Logger], key: str, draw: Callable[[], np.ndarray | None], step: int) -> None:
    """Log the gray levels (height, width) uint8 of `draw`, if any, to the loggers that take images, on rank 0.

    A logger needs `log_image(key, images, step)`, like Lightning's WandbLogger, or an experiment with
    `add_image(tag, image, step, dataformats=)`, like TensorBoardLogger.
    """
    for logger in loggers:
        own = _takes(logger, "log_image", "key", "images", "step")
        add_image = getattr(getattr(logger, "experiment", None), "add_image", None)
        image = draw() if own or callable(add_image) else None
        if own and image is not None:
            logger.log_image(key=key, images=[image], step=step)  # type: ignore[attr-defined]
        elif image is not None:
            add_image(key, image, step, dataformats="HW")  # type: ignore[misc]


def log_results(loggers: Sequence[Logger], config: Mapping[str, Any], results: Mapping[str, Any], step: int) -> None:
    """Log the final scores of results.json, on rank 0: with the settings, as a summary, or as metrics."""
    scores = {
        f"final/{split}_{name}": value
        for split in ("valid", "test")
        for name, value in results.get(split, {}).items()
        if isinstance(value, float)  # neither signatures nor the number of sentences
    }
    for logger in loggers:
        # metrics.csv needs no final scores, because results.json lies next to it.
        if isinstance(logger, CsvLogger):
            continue
        summary = getattr(getattr(logger, "experiment", None), "summary", None)
        if _takes(logger, "log_hyperparams", "metrics"):
            # TensorBoard's table of hyperparameters has a row for each run.
            also = accepted(logger.log_hyperparams, {"step": step})
            logger.log_hyperparams(flat(config), metrics=scores, **also)
        elif summary is not None and callable(getattr(summary, "update", None)):
            summary.update(scores)
        else:
            logger.log_metrics(scores, step)
        logger.save()


def _takes(logger: Logger, method: str, *names: str) -> bool:
    """Return True if a logger has a method with these parameters."""
    found = getattr(logger, method, None)
    return callable(found) and len(accepted(found, dict.fromkeys(names))) == len(names)


class CsvLogger(Logger):
    """Logger that writes `metrics.csv`: one row per call, one column per metric.

    Unlike Lightning's logger, it keeps the rows of earlier parts of the run. A metric has one value per update: a row
    that is logged again, after a killed validation, replaces the earlier one.
    """

    def __init__(self, *, save_dir: str, filename: str = "metrics.csv") -> None:
        super().__init__()
        self.path = Path(save_dir) / filename
        self._rows: list[dict[str, Any]] = []
        self._columns = ["step"]
        if is_first_process() and self.path.exists():
            columns, rows = read_metrics(self.path)
            self._columns = columns or self._columns
            # A write that was cut short leaves an incomplete row.
            self._rows = [row for row in rows if None not in row.values() and row.get("step", "").isdecimal()]

    @property
    def name(self) -> str:
        """Return the name that Lightning requires."""
        return "csv"

    @property
    def version(self) -> str:
        """Return the version that Lightning requires, empty because a run has its own folder."""
        return ""

    def keep_until(self, step: int) -> None:
        """Drop the rows after `step`, which the run is about to repeat."""
        if not is_first_process():
            return
        self._rows = [row for row in self._rows if int(row["step"]) <= step]
        self._rewrite()

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add a row; a metric seen for the first time adds a column."""
        if not is_first_process():
            return
        row: dict[str, Any] = {"step": step or 0}
        row.update((key, f"{value:.6g}" if isinstance(value, float) else value) for key, value in metrics.items())
        # Rows are in the order of their updates, so the rows of this update are among the last.
        latest = itertools.takewhile(lambda earlier: int(earlier["step"]) >= row["step"], reversed(self._rows))
        mine = (earlier for earlier in latest if int(earlier["step"]) == row["step"])
        again = next((earlier for earlier in mine if any(earlier.get(key) for key in row if key != "step")), None)
        if again is not None:
            self._rows.remove(again)
        self._rows.append(row)
        # A new column changes the header: the file is written again. Otherwise one line is appended.
        new = [key for key in row if key not in self._columns]
        if new or again is not None or not self.path.exists():
            self._columns += new
            self._rewrite()
            return
        with open(self.path, "a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._columns).writerow(row)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Log nothing: config.yaml has the settings."""

    def _rewrite(self) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns)
        writer.writeheader()
        writer.writerows(self._rows)
        write_text(self.path, text.getvalue())
