"""Plan a run: check its settings before torch is imported."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from seq2seq.data.multi_corpus import NamedCorpus
from seq2seq.data.preflight import open_corpora
from seq2seq.runs.folder import RunFolder, folder_of, mixer_label
from seq2seq.settings.classes import mixers_of, packages_of
from seq2seq.settings.compose import chosen_settings, cut_lists, typed_mixers, typed_settings
from seq2seq.settings.declare import plain, require_used
from seq2seq.settings.run import Settings, read_settings
from seq2seq.settings.tokenizer import TokenizerSettings
from seq2seq.settings.values import shown


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunPlan(Settings):
    """Checked settings of one run, with its place: command, job of a sweep, folder.

    Args:
        mixer: Label of the mixer, for the name of the run's folder.
        command: The command line that repeats the run; None for a run from Python.
        job: The folder of this job of a sweep.
        chosen: Keys that the user chose (see `seq2seq.settings.compose`), for a run that starts from a checkpoint; None
            if unknown.
        replaced: Places in the section `mixer` for which the user typed a file (see
            `seq2seq.settings.compose.typed_mixers`), whose mixers may differ from the checkpoint's.
        parts: The corpora, once they have been opened.
    """

    mixer: str
    command: str | None = None
    job: Path | None = None
    chosen: frozenset[str] | None = None
    replaced: frozenset[str] = frozenset()
    parts: tuple[NamedCorpus, ...] | None = None

    @cached_property
    def config(self) -> dict[str, Any]:
        """The plain configuration, as config.yaml and checkpoints keep it."""
        return self.plain()

    @property
    def trust(self) -> tuple[str, ...]:
        """Packages whose mixers may be imported: all that the settings name."""
        return packages_of(self.mixers)

    @property
    def start(self) -> str | None:
        """Checkpoint with the model and tokenizer of a fine-tuned run: `init_from`, or its own if that was deleted."""
        start, resume = self.run.init_from, self.run.resume
        own = start and not os.path.exists(start) and resume not in (None, "auto")
        run = RunFolder.of_checkpoint(resume) if own and resume else None
        return str(run.path) if run else start

    @property
    def folder(self) -> RunFolder:
        """The folder that the settings name; a run that `resume` names by path continues in its own folder instead."""
        return RunFolder(folder_of(self.config, self.mixer))

    @cached_property
    def config_yaml(self) -> str:
        """Text of config.yaml."""
        return OmegaConf.to_yaml(self.config)

    def model_config(self, sizes: dict[str, Any]) -> dict[str, Any]:
        """Return the argument of `build_model`, with these sizes of vocabularies and images."""
        return {"model": plain(self.model), "mixer": self.config["mixer"], **sizes}

    def opened(self, tokenizer: TokenizerSettings | None = None) -> RunPlan:
        """Return the plan with its corpora opened; raise ValueError if a corpus cannot be used.

        Args:
            tokenizer: Replaces the tokenizer of the settings.
        """
        if self.parts is not None:
            return self
        parts = open_corpora(self.data, tokenizer=tokenizer or self.tokenizer, cache_dir=Path(self.run.cache))
        return dataclasses.replace(self, parts=parts)


def plan_of_words(
    config: Mapping[str, Any], words: Sequence[str], preset: str, *, command: str | None = None, job: Path | None = None
) -> RunPlan:
    """Make the plan of a run whose settings were composed from the overrides `words`.

    Args:
        config: The composed settings, resolved and plain.
        preset: The chosen file of conf/mixer.
        command: See `RunPlan`, as for `job`.
    """
    typed = typed_settings(words)
    starts = config["init_from"]
    plan = make_plan(
        cut_lists(config, typed),
        # The preset with overrides of its fields, as a label in tables
        mixer=mixer_label(preset, words),
        command=command,
        job=job,
        # With init_from, all other settings are the checkpoint's
        chosen=chosen_settings(words) if starts else None,
        replaced=typed_mixers(words),
        typed=typed,
    )
    # With init_from the checkpoint decides the languages, and so the files
    return plan if starts else plan.opened()


def make_plan(
    config: Mapping[str, Any],
    *,
    mixer: str,
    command: str | None = None,
    job: Path | None = None,
    chosen: frozenset[str] | None = None,
    replaced: frozenset[str] = frozenset(),
    typed: Collection[str] = (),
) -> RunPlan:
    """Read a resolved, plain configuration, and check all that needs no torch.

    Args:
        config: The composed settings.
        mixer: See `RunPlan` for this argument and the next four.
        typed: Keys of settings that the user typed one by one, each of which must have an effect.

    Raises:
        ValueError: A key or value is wrong; the message names it and what to write instead.
    """
    settings = read_settings(config)
    start, resume = settings.run.init_from, settings.run.resume
    if start is not None and not os.path.exists(start) and resume in (None, "auto"):
        # resume=auto needs the checkpoint, which decides the name of the run's folder
        rest = "; a run that began from it continues without it by resume=<run>" if resume else ""
        raise ValueError(f"init_from={start}: no such file{rest}")
    if settings.optim.teacher is not None and not os.path.exists(settings.optim.teacher):
        raise ValueError(f"optim.teacher={settings.optim.teacher}: no such file; name a checkpoint or a run's folder")
    plan = RunPlan(mixer=mixer, command=command, job=job, chosen=chosen, replaced=replaced, **vars(settings))
    try:
        _require_effect(plan, typed)
    except ValueError:
        # A resumed run continues with the settings that it began with.
        resumed = bool(plan.folder.states) if resume == "auto" else resume is not None
        if not resumed:
            raise
    return plan


def _require_effect(plan: RunPlan, typed: Collection[str]) -> None:
    """Raise ValueError for a setting that the user typed but that has no effect with the other settings."""
    for section in (plan.model, plan.data, plan.tokenizer, plan.optim, plan.search, plan.trainer):
        require_used(section, typed)
    for _, path, values in mixers_of(plan.mixers):
        listed = values.get("per_layer")
        for name, entries in listed.items() if isinstance(listed, Mapping) else ():
            if f"{path}.{name}" in typed:
                raise ValueError(
                    f"{path}.{name}={shown(values.get(name))} has no effect next to {path}.per_layer.{name}="
                    f"{shown(entries)}: set {path}.per_layer.{name}=[...] alone"
                )
    if "trainer.median_stop" in typed and plan.trainer.median_stop and plan.job is None:
        raise ValueError(
            f"trainer.median_stop={plan.trainer.median_stop} has no effect on a run that is no job of a sweep: leave "
            "it out, or sweep over a setting with -m"
        )
    tokenizer = plan.tokenizer
    if tokenizer.extend is not None and not (tokenizer.ready_models or plan.run.init_from):
        raise ValueError(
            f"tokenizer.extend={tokenizer.extend} adds to an existing tokenizer: name a checkpoint (init_from), or a "
            "model (tokenizer.model), or leave it out"
        )
    if tokenizer.ready_models and {"data.vocab_size", "tokenizer.vocab_size"} & set(typed):
        from seq2seq.data.tokenizer import load_tokenizer

        loaded = load_tokenizer(tokenizer)
        sizes = {loaded.tgt_vocab_size, loaded.tgt_vocab_size if tokenizer.patches else loaded.src_vocab_size}
        if tokenizer.vocab_size not in sizes:
            pieces = " and ".join(map(str, sorted(sizes)))
            raise ValueError(
                f"data.vocab_size={tokenizer.vocab_size} has no effect: {tokenizer.named_models} has {pieces} pieces; "
                "leave it out"
            )
