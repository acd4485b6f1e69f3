"""The plan of a run: its settings, checked before anything heavy is imported."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from seq2seq.config.data import DataSettings
from seq2seq.config.mixer import check_mixer, mixers_of, packages_of
from seq2seq.config.sections import SECTIONS, Sections, read_sections
from seq2seq.config.settings import keys, require_used, with_whole_numbers
from seq2seq.config.tokenizer import TokenizerSettings
from seq2seq.config.trainer import TrainerSettings, bounded
from seq2seq.config.values import shown
from seq2seq.experiments.folder import RunFolder, folder_of
from seq2seq.files import require_creatable


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunPlan(Sections):
    """Checked settings of one run.

    Args:
        config: The resolved, plain configuration, as config.yaml and checkpoints keep it.
        mixer: Label of the mixer, for the name of the run's folder.
        command: The command line that repeats the run; None for a run from Python.
        job: The folder of this job of a sweep.
        chosen: Keys that the user chose (see `seq2seq.config.chosen`), where a run starts from a checkpoint; None if
            unknown.
    """

    config: dict[str, Any]
    mixer: str
    command: str | None = None
    job: Path | None = None
    chosen: frozenset[str] | None = None

    @property
    def trust(self) -> tuple[str, ...]:
        """Packages whose mixers may be imported: those that the settings name, which the user has written."""
        return packages_of(self.config["mixer"])

    @property
    def start(self) -> str | None:
        """Checkpoint with the model and the tokenizer of a fine-tuned run: its own, once `init_from` is gone."""
        start, resume = self.run.init_from, self.run.resume
        own = start and not os.path.exists(start) and resume not in (None, "auto")
        run = RunFolder.of_checkpoint(resume) if own and resume else None
        return str(run.path) if run else start

    @property
    def folder(self) -> RunFolder:
        """The folder that the settings name; a checkpoint named by `resume` is continued in its own."""
        return RunFolder(folder_of(self.config, self.mixer))

    @cached_property
    def config_yaml(self) -> str:
        """Text of config.yaml."""
        return OmegaConf.to_yaml(self.config)

    def model_config(self, sizes: dict[str, Any]) -> dict[str, Any]:
        """Return what `build_model` takes, with the sizes of vocabularies and the like."""
        return {"model": self.config["model"], "mixer": self.config["mixer"], **sizes}


def make_plan(
    config: dict[str, Any],
    *,
    mixer: str,
    command: str | None = None,
    job: Path | None = None,
    chosen: frozenset[str] | None = None,
    typed: Collection[str] = (),
) -> RunPlan:
    """Check a resolved, plain configuration, as far as that needs no torch, and fill in the default bound.

    Args:
        config: See `RunPlan`, as for mixer, command, job and chosen.
        typed: Keys of settings that the user typed one by one: in a new run each must have an effect.

    Raises:
        ValueError: a key or value is wrong; the message names it and what to write instead.
    """
    sections = read_sections(config)
    _require_together(sections)
    start, resume = sections.run.init_from, sections.run.resume
    if start is not None and not os.path.exists(start) and resume in (None, "auto"):
        # The folder that `auto` looks in has a name that follows from the checkpoint
        rest = "; a run that began from it goes on without it by resume=<run>" if resume else ""
        raise ValueError(f"init_from={start}: no such file{rest}")
    require_creatable(Path(sections.run.runs), "runs")
    # One that cannot be written serves while it is whole.
    if not os.path.isdir(sections.run.cache):
        require_creatable(Path(sections.run.cache), "cache")
    # The run's name is a hash of the plain values: 1e3 and 1000 must be one run.
    plain = with_whole_numbers(sections.run, config)
    # The top level has no name, and is done.
    for name in filter(None, SECTIONS):
        plain[name] = with_whole_numbers(getattr(sections, name), plain[name])
    plain["mixer"] = check_mixer(plain["mixer"], plain["model"])
    # A resumed run goes on with what it was begun with.
    if not _resumes(plain, mixer):
        _require_effect(sections, typed, alone=job is None)
        _require_effect_of_mixers(plain["mixer"], typed)
    return RunPlan(
        config={**plain, "trainer": bounded(plain["trainer"])},
        mixer=mixer,
        command=command,
        job=job,
        chosen=chosen,
        **vars(sections),
    )


def _require_together(sections: Sections) -> None:
    """Check settings of several sections against each other.

    Raises:
        ValueError: Some exclude each other.
    """
    # The same section serves `translate`, where more than one is allowed.
    if sections.search.n_best != 1:
        raise ValueError(
            f"search.n_best={sections.search.n_best}: a score is that of the best translation alone; leave it at 1 "
            "(seq2seq.translate --n-best lists more)"
        )
    if sections.optim.name == "muon" and sections.trainer.sharded:
        raise ValueError(
            "optim.name=muon updates whole matrices, of which trainer.strategy=fsdp gives each process a part: set "
            "trainer.strategy=ddp, or optim.name=adam"
        )
    trainer, batch = sections.trainer, sections.data.batch_tokens
    for name in ("accumulate", "accumulate_start"):
        if batch is not None and getattr(trainer, name) not in (None, keys(TrainerSettings)[name].default):
            raise ValueError(
                f"trainer.{name}={getattr(trainer, name)} counts micro-batches of an update, and data.batch_tokens="
                f"{batch} its tokens: set one of the two"
            )


def _resumes(config: Mapping[str, Any], mixer: str) -> bool:
    """Say whether the run goes on from a checkpoint: one that is named, or with `auto` the last one of its folder."""
    # A link that leads nowhere, too, as in `resolve_resume`.
    auto = config["resume"] == "auto"
    return os.path.lexists(RunFolder(folder_of(config, mixer)).last) if auto else config["resume"] is not None


def _require_effect(sections: Sections, typed: Collection[str], *, alone: bool) -> None:
    """Check that each setting that the user typed has an effect beside the others.

    Args:
        alone: The run is no job of a sweep.

    Raises:
        ValueError: One has none, or the opposite one.
    """
    for each in (sections.data, sections.optim, sections.search, sections.trainer):
        require_used(each, typed)
    _require_effect_of_data(sections.data, typed)
    require_effect_of_tokenizer(sections.tokenizer, typed)
    optim, trainer = sections.optim, sections.trainer
    if "optim.peak_lr" in typed and optim.lr != optim.peak_lr:
        raise ValueError(
            f"optim.peak_lr={optim.peak_lr:g} has no effect: the peak learning rate of these settings is "
            f"optim.lr={optim.lr:g}: set optim.lr, or choose optim=anneal or optim=muon"
        )
    if "trainer.accumulate_start" in typed and trainer.accumulate_start == trainer.accumulate:
        raise ValueError(
            f"trainer.accumulate_start={trainer.accumulate_start} has no effect with trainer.accumulate="
            f"{trainer.accumulate}: leave it out, or set trainer.accumulate to a multiple of it"
        )

    if optim.min_lr > optim.lr:
        raise ValueError(
            f"optim.min_lr={optim.min_lr:g} is above the peak of the learning rate, optim.lr={optim.lr:g}, from which "
            "it falls: lower optim.min_lr"
        )
    warmup = "warmup_share" if optim.schedule == "anneal" else "warmup_steps"
    if "optim.warmup_init_lr" in typed and not getattr(optim, warmup):
        raise ValueError(
            f"optim.warmup_init_lr={optim.warmup_init_lr:g} has no effect with optim.{warmup}=0: leave it out, or set "
            f"optim.{warmup}"
        )
    if "trainer.median_stop" in typed and trainer.median_stop and alone:
        raise ValueError(
            f"trainer.median_stop={trainer.median_stop} has no effect on a run that is no job of a sweep: leave it "
            "out, or sweep over a setting with -m"
        )
    if "trainer.val_share" in typed and not trainer.val_time and (trainer.max_steps or trainer.max_epochs):
        raise ValueError(
            f"trainer.val_share={trainer.val_share:g} has no effect where updates or epochs end the run and "
            "trainer.val_time is not set: leave it out, or set trainer.val_time"
        )


def _require_effect_of_mixers(mixer: Mapping[str, Any], typed: Collection[str]) -> None:
    """Check that no argument of a mixer that the user typed stands beside a list of it for each layer.

    Raises:
        ValueError: One does, so that it has no effect.
    """
    for _, path, values in mixers_of(mixer):
        for name, entries in (values.get("per_layer") or {}).items():
            if f"{path}.{name}" in typed:
                raise ValueError(
                    f"{path}.{name}={shown(values.get(name))} has no effect beside {path}.per_layer.{name}="
                    f"{shown(entries)}: set {path}.per_layer.{name}=[...] alone"
                )


def require_effect_of_tokenizer(settings: TokenizerSettings, typed: Collection[str]) -> None:
    """Check that no setting of a tokenizer's training stands beside existing models, unless it is what they are.

    Raises:
        ValueError: One that the user typed does.
    """
    if not settings.ready_models:
        return
    models = " and ".join(map(shown, settings.ready_models))
    if {"data.vocab_size", "tokenizer.vocab_size"} & set(typed):
        from seq2seq.data.tokenizer import load_tokenizer

        tokenizer = load_tokenizer(settings)
        sizes = {tokenizer.tgt_vocab_size, tokenizer.tgt_vocab_size if settings.patches else tokenizer.src_vocab_size}
        if settings.vocab_size not in sizes:
            pieces = " and ".join(map(str, sorted(sizes)))
            raise ValueError(
                f"data.vocab_size={settings.vocab_size} has no effect: {models} has {pieces} pieces; leave it out"
            )
    found = {"joint": settings.model is not None}
    trained = ("type", "joint", "byte_fallback", "normalizer", "character_coverage", "input_sentence_size", "seed")
    for name in trained:
        value = getattr(settings, name)
        if f"tokenizer.{name}" in typed and value != found.get(name, keys(TokenizerSettings)[name].default):
            raise ValueError(f"tokenizer.{name}={shown(value)} has no effect beside {models}: leave it out")


def _require_effect_of_data(data: DataSettings, typed: Collection[str]) -> None:
    """Check settings of the text that have an effect only where others are set, or are not.

    Raises:
        ValueError: One that the user typed has none.
    """
    idle: dict[str, str] = {}
    if data.path is None:
        reason = "without data.path: leave it out, or set data.path to the data set of the hub that it belongs to"
        idle |= dict.fromkeys(("config", "data_dir", "revision"), reason)
    if not data.corpora:
        idle["temperature"] = "without data.corpora: leave it out, or name further corpora there"
        if data.valid is not None and data.test is not None:
            idle["holdout"] = "beside data.valid and data.test: leave it out, or set one of them to null"
    for name, reason in idle.items():
        value = getattr(data, name)
        if f"data.{name}" in typed and value != keys(DataSettings)[name].default:
            raise ValueError(f"data.{name}={shown(value)} has no effect {reason}")
