"""The plan of a run: its settings, with what is known of them before anything heavy is imported."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from seq2seq.data.multi_corpus import NamedCorpus
from seq2seq.data.preflight import open_corpora
from seq2seq.runs.folder import RunFolder, folder_of
from seq2seq.settings.classes import mixers_of, packages_of
from seq2seq.settings.compose import is_chosen
from seq2seq.settings.declare import plain, require_used
from seq2seq.settings.run import Settings, read_settings
from seq2seq.settings.tokenizer import TokenizerSettings
from seq2seq.settings.values import shown
from seq2seq.system.files import require_creatable


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunPlan(Settings):
    """Checked settings of one run.

    Args:
        mixer: Label of the mixer, for the name of the run's folder.
        command: The command line that repeats the run; None for a run from Python.
        job: The folder of this job of a sweep.
        chosen: Keys that the user chose (see `seq2seq.settings.compose`), where a run starts from a checkpoint; None if
            unknown.
        parts: The corpora, once they were opened.
    """

    mixer: str
    command: str | None = None
    job: Path | None = None
    chosen: frozenset[str] | None = None
    parts: tuple[NamedCorpus, ...] | None = None

    @cached_property
    def config(self) -> dict[str, Any]:
        """The plain configuration, as config.yaml and checkpoints keep it."""
        return self.plain()

    @property
    def trust(self) -> tuple[str, ...]:
        """Packages whose mixers may be imported: those that the settings name, which the user has written."""
        return packages_of(self.mixers)

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
        return {"model": plain(self.model), "mixer": self.config["mixer"], **sizes}

    def opened(self, tokenizer: TokenizerSettings | None = None) -> RunPlan:
        """Return the plan with its corpora opened; ValueError if one cannot be used.

        Args:
            tokenizer: In place of the settings' own.
        """
        if self.parts is not None:
            return self
        parts = open_corpora(self.data, tokenizer=tokenizer or self.tokenizer, cache_dir=Path(self.run.cache))
        return dataclasses.replace(self, parts=parts)


def make_plan(
    config: Mapping[str, Any],
    *,
    mixer: str,
    command: str | None = None,
    job: Path | None = None,
    chosen: frozenset[str] | None = None,
    typed: Collection[str] = (),
) -> RunPlan:
    """Read a resolved, plain configuration, and check it as far as that needs no torch.

    Args:
        config: The composed settings.
        mixer: See `RunPlan`, as for command, job and chosen.
        typed: Keys of settings that the user typed one by one, each of which must have an effect.

    Raises:
        ValueError: A key or value is wrong; the message names it and what to write instead.
    """
    settings = read_settings(config)
    start, resume = settings.run.init_from, settings.run.resume
    if start is not None and not os.path.exists(start) and resume in (None, "auto"):
        # The folder that `auto` looks in has a name that follows from the checkpoint
        rest = "; a run that began from it goes on without it by resume=<run>" if resume else ""
        raise ValueError(f"init_from={start}: no such file{rest}")
    require_creatable(Path(settings.run.runs), "runs")
    # One that cannot be written serves while it is whole.
    if not os.path.isdir(settings.run.cache):
        require_creatable(Path(settings.run.cache), "cache")
    plan = RunPlan(mixer=mixer, command=command, job=job, chosen=chosen, **vars(settings))
    try:
        _require_effect(plan, typed)
    except ValueError:
        # A resumed run goes on with what it was begun with.
        if not _resumes(plan):
            raise
    return plan


def _resumes(plan: RunPlan) -> bool:
    """Return True if the run continues from a named checkpoint or, with `auto`, the last one of its folder."""
    # A link that leads nowhere, too, as in `resolve_resume`.
    return os.path.lexists(plan.folder.last) if plan.run.resume == "auto" else plan.run.resume is not None


def _require_effect(plan: RunPlan, typed: Collection[str]) -> None:
    """Check that each setting that the user typed has an effect beside the others.

    Raises:
        ValueError: One has none.
    """
    for section in (plan.data, plan.tokenizer, plan.optim, plan.search, plan.trainer):
        require_used(section, typed)
    _require_vocabulary(plan.tokenizer, typed)
    _require_effect_of_mixers(plan.mixers, typed)
    if "trainer.median_stop" in typed and plan.trainer.median_stop and plan.job is None:
        raise ValueError(
            f"trainer.median_stop={plan.trainer.median_stop} has no effect on a run that is no job of a sweep: leave "
            "it out, or sweep over a setting with -m"
        )


def _require_vocabulary(tokenizer: TokenizerSettings, typed: Collection[str]) -> None:
    """Check that a size that the user typed is that of the existing models, if there are any."""
    if not tokenizer.ready_models or not {"data.vocab_size", "tokenizer.vocab_size"} & set(typed):
        return
    from seq2seq.data.tokenizer import load_tokenizer

    loaded = load_tokenizer(tokenizer)
    sizes = {loaded.tgt_vocab_size, loaded.tgt_vocab_size if tokenizer.patches else loaded.src_vocab_size}
    if tokenizer.vocab_size not in sizes:
        pieces = " and ".join(map(str, sorted(sizes)))
        raise ValueError(
            f"data.vocab_size={tokenizer.vocab_size} has no effect: {tokenizer.named_models} has {pieces} pieces; "
            "leave it out"
        )


def _require_effect_of_mixers(mixers: Mapping[str, Any], typed: Collection[str]) -> None:
    """Check that no argument of a mixer that the user typed stands beside a list of it for each layer."""
    for _, path, values in mixers_of(mixers):
        listed = values.get("per_layer")
        for name, entries in listed.items() if isinstance(listed, Mapping) else ():
            if f"{path}.{name}" in typed:
                raise ValueError(
                    f"{path}.{name}={shown(values.get(name))} has no effect beside {path}.per_layer.{name}="
                    f"{shown(entries)}: set {path}.per_layer.{name}=[...] alone"
                )


def cut_lists(config: Mapping[str, Any], typed: Collection[str]) -> dict[str, Any]:
    """Return plain settings in which the `per_layer` lists of presets are cut to the depth of a model of fewer layers.

    Lists whose keys are among `typed` are left as they are, and refused when the model is built if they are too long.
    """
    result = copy.deepcopy(dict(config))
    mixer, model = result.get("mixer"), result.get("model")
    if not isinstance(mixer, dict) or not isinstance(model, dict):
        return result
    depths = {"encoder": [model.get("encoder_layers"), mixer.get("extra_encoder_layers", 0)]}
    depths["decoder"] = depths["cross"] = [model.get("decoder_layers")]
    for slot, path, values in mixers_of(mixer):
        lists = values.get("per_layer")
        # Wrong values are refused by the checks that follow
        if not isinstance(lists, dict) or not all(isinstance(each, int) for each in depths[slot]):
            continue
        for key, entries in lists.items():
            if isinstance(entries, list) and not is_chosen(f"{path}.per_layer.{key}", typed):
                lists[key] = entries[: max(1, sum(depths[slot]))]
    return result
