"""Settings at the top level: seed, folders, and what a run starts from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from seq2seq.config.settings import Section, setting
from seq2seq.config.values import shown


@dataclasses.dataclass(frozen=True)
class RunSettings(Section):
    """Settings of a run that belong to no section.

    Raises:
        ValueError: a value outside its range, or a folder outside `runs`.
    """

    seed: int = setting(1, "seed of weights, order of the data, and dropout", least=0, most=2**32 - 1)
    resume: str | None = setting(None, "auto continues the run of these settings if there is one; or a checkpoint")
    force: bool = setting(False, "continue a run although settings have changed: each change is reported")
    init_from: str | None = setting(None, "a checkpoint whose weights and tokenizer a new run starts from")
    runs: str = setting("runs", "where run folders are")
    run: str | None = setting(None, "a run folder's name; null = <data>-<mixer>-<hash of these settings>")
    callbacks: Mapping[str, Any] = setting(
        {}, "callbacks of your own, {name: {_target_: a class, argument: value}}; on the command line with +"
    )
    cache: str = setting(".cache", "where prepared data is kept; the variable SEQ2SEQ_CACHE changes it")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.run is not None:
            parts = PurePath(self.run).parts
            # `.` is the folder of all runs; file systems take 255 bytes, of which a copy's name needs some.
            too_long = any(len(part.encode()) > 200 for part in parts)
            if not parts or PurePath(self.run).is_absolute() or ".." in parts or too_long:
                raise ValueError(
                    f"run={shown(self.run)} is not the name of a folder below runs={shown(self.runs)}: "
                    "give a name, and choose where the folders of runs are with runs=<folder>"
                )
