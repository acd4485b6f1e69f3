"""Train and read runs from Python: what `python -m seq2seq.train` does, for scripts and notebooks."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from seq2seq.runs.folder import RunFolder
from seq2seq.settings.compose import compose_settings, cut_lists, typed_settings
from seq2seq.settings.hydra_call import plain_settings, wrong_word
from seq2seq.system.json_file import read_json
from seq2seq.training.machine.environment import VARIABLES
from seq2seq.training.plan import RunPlan, plan_of_words

if TYPE_CHECKING:
    from seq2seq.inference.translator import Translator
    from seq2seq.training.lightning_parts.datamodule import TranslationDataModule
    from seq2seq.training.lightning_parts.task import TranslationTask

# torch reads these when it is imported
os.environ.update(VARIABLES | os.environ)


def compose(overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Compose the settings of `python -m seq2seq.train` with these overrides, as plain values.

    Raises:
        ValueError: Hydra refuses an override, by its key for example; values are checked by `Run`.

    Examples:
        >>> compose(["mixer=lightconv", "model.dim=128"])["model"]["dim"]
        128
    """
    return cut_lists(plain_settings(_composed(overrides)), typed_settings(overrides))


class Run:
    """A run that has ended: its folder, its results, and a translator with its best checkpoint.

    Args:
        path: The run's folder.

    Raises:
        ValueError: There is no run in the folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        folder = RunFolder.of_checkpoint(path)
        if folder is None:
            raise ValueError(f"{path}: no run's folder; Run.train([...]) makes one")
        self.folder = folder

    @classmethod
    def train(cls, overrides: Sequence[str] = ()) -> Run:
        """Train, score the test set, and return the run, as `python -m seq2seq.train` does with these overrides.

        Raises:
            ValueError: A setting is wrong, or has no effect; nothing has been trained.
            TrainingFault: The data or the machine ended the run.
            KeyboardInterrupt: A signal ended the run, which resume=auto continues.
        """
        from seq2seq.training.run import TrainingRun, process_for

        plan = _plan(overrides)
        if plan.trainer.dry_run:
            raise ValueError("trainer.dry_run=true leaves no run; leave it out, or use python -m seq2seq.train")
        try:
            with process_for(plan):
                run = TrainingRun(plan)
                run.execute()
        except SystemExit as stop:
            if not stop.code:
                raise  # a rank other than the first
            raise KeyboardInterrupt(f"stopped (exit status {stop.code}); resume=auto continues the run") from None
        return cls(run.folder.path)

    @staticmethod
    def lightning(overrides: Sequence[str] = ()) -> tuple[TranslationTask, TranslationDataModule]:
        """Return the LightningModule and the LightningDataModule of a run, for a Trainer of your own.

        The corpora are prepared, and nothing else is written. The Trainer must not replace the batch sampler
        (use_distributed_sampler=False). `task.translator()` translates with the current weights, and `task.save(path)`
        writes a checkpoint for all commands.

        Raises:
            ValueError: A setting is wrong, or has no effect.
        """
        from seq2seq.training.run import TrainingRun, process_for

        plan = _plan(overrides)
        with process_for(plan):
            run = TrainingRun(plan)
            run.prepare()
            return run.task(), run.data

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder.path

    @functools.cached_property
    def results(self) -> dict[str, Any]:
        """Scores, times and versions: the content of results.json."""
        return read_json(self.folder.results)

    @functools.cached_property
    def translator(self) -> Translator:
        """Translator with the best checkpoint."""
        from seq2seq.inference.translator import Translator

        return Translator.load(self.path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"


def _composed(overrides: Sequence[str], **options: Any) -> DictConfig:
    """Compose settings, and refuse words that Hydra takes and the command refuses."""
    composed = compose_settings(overrides, **options)
    if message := wrong_word(overrides):
        raise ValueError(message)
    return composed


def _plan(overrides: Sequence[str]) -> RunPlan:
    """Check settings as the command does."""
    composed = _composed(overrides, return_hydra_config=True)
    preset = composed.hydra.runtime.choices["mixer"]
    own = OmegaConf.masked_copy(composed, [key for key in map(str, composed) if key != "hydra"])
    return plan_of_words(plain_settings(own), list(overrides), preset)
