"""Check a run's settings against its model, data and device, before any work."""

from __future__ import annotations

import copy
import dataclasses
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seq2seq.checkpoint import Loaded
from seq2seq.data.batching import longest_width, padded_width
from seq2seq.data.extension import origins
from seq2seq.data.multi_corpus import Direction
from seq2seq.data.plan import DataPlan
from seq2seq.data.tokenizer import load_tokenizer
from seq2seq.data.vocabulary_fit import report_fit
from seq2seq.evaluation.reference_checks import text_warnings
from seq2seq.metrics.moses_bleu import check_convention
from seq2seq.metrics.scorers import check_tokenize, tokenize_for
from seq2seq.network.build import bounds, build_model, max_positions, on_meta_device
from seq2seq.network.conformance import try_mixers
from seq2seq.network.mixer import CrossMixer
from seq2seq.network.model import Seq2Seq
from seq2seq.settings.tokenizer import PatchGrid
from seq2seq.settings.trainer import TrainerSettings
from seq2seq.system.ranks import is_first_process
from seq2seq.training import finetune
from seq2seq.training.objective.guided_alignment import guided_mixer
from seq2seq.training.objective.trained_weights import choose_trained
from seq2seq.training.plan import RunPlan

if TYPE_CHECKING:
    from seq2seq.training.lightning_parts.datamodule import TranslationDataModule

log = logging.getLogger(__name__)

# Updates below which a model from scratch hardly begins to translate.
_FEW_UPDATES = 500


def check_model(plan: RunPlan, start: Loaded | None) -> Seq2Seq:
    """Build the model on the meta device, to detect impossible sizes before any work, and return it.

    Args:
        start: The checkpoint that a new run starts from.

    Raises:
        ValueError: The model cannot be built, differs from the model of `start`, or has a mixer that breaks its
            contract.
    """
    # Any vocabulary will do: the tokenizer may not exist yet.
    sizes = {"src_vocab_size": 8, "tgt_vocab_size": 8, "pad_id": 0, "joint": plan.tokenizer.joint}
    sizes |= image_sizes(plan.tokenizer.patches) | {"factors": list(map(len, (plan.tokenizer.factors or {}).values()))}
    swapped: list[str] = []
    if start:
        before = start.meta["model"]
        sizes = {key: value for key, value in before.items() if key not in ("model", "mixer")}
        swapped = finetune.swapped_slots(before, plan.config, plan)
        finetune.require_same_model(before, plan.config, plan, swapped=swapped)
    config = plan.model_config(sizes)
    with on_meta_device():
        model = build_model(config, trust=plan.trust)
        # Refuses patterns that match nothing
        if plan.optim.freeze or plan.optim.lora:
            new = finetune.new_weights(model, start.model.state_dict()) if start else ()
            choose_trained(copy.deepcopy(model), plan.optim, new=new)
    try_mixers(config, trust=plan.trust)
    if start and swapped:
        finetune.report_new_weights(model, start.model, str(plan.run.init_from))
    return model


def guides(plan: RunPlan, model: Seq2Seq) -> bool:
    """Return True if a run trains attention on alignments; raise ValueError if it cannot, or does not use the file."""
    weight, file, trainer = plan.optim.guided_alignment, plan.data.alignment, plan.trainer
    if file is not None and not (weight and Path(file).is_file()):
        raise ValueError(f"data.alignment={file}: {'no such file' if weight else 'needs optim.guided_alignment=0.1'}")
    mixer, alpha = type(guided_mixer(model)), plan.tokenizer.sampling_alpha
    obstacles = {
        f"{mixer.__name__}, which has no weights over the source": mixer.read_weights is CrossMixer.read_weights,
        "data.streaming=true": plan.data.streaming,
        "several data.corpora and a file data.alignment": file is not None and plan.data.corpora,
        "data.augment": any(dataclasses.astuple(plan.data.augment)),
        "images as sources": plan.tokenizer.patches,
        f"tokenizer.sampling_alpha={alpha:g}": alpha > 0,
        f"optim.r_drop={plan.optim.r_drop:g}": plan.optim.r_drop > 0,
        "trainer.graphs=true": trainer.graphs is True,
        "trainer.checkpoint_activations=true": trainer.checkpoint_activations,
        "trainer.strategy=fsdp": trainer.sharded,
    }
    if weight and (found := [reason for reason, there in obstacles.items() if there]):
        raise ValueError(f"optim.guided_alignment={weight:g} does not work with {found[0]}: leave one of them out")
    return weight > 0


def image_sizes(patches: PatchGrid | None) -> dict[str, Any]:
    """Return the model's argument about sources that are images; empty for text."""
    return {"patches": dataclasses.asdict(patches)} if patches else {}


def make_data_plan(plan: RunPlan, start: Loaded | None) -> DataPlan:
    """Open the corpora of a run and plan its data.

    The tokenizer is the one of `start` or, if the settings name a model, that model, which must extend it.
    """
    cache, tokenizer = Path(plan.run.cache), plan.tokenizer
    if start and tokenizer.ready_models:
        origins(start.tokenizer, load_tokenizer(tokenizer))
    elif start:
        # The run's own checkpoint has been extended already
        own = plan.start != plan.run.init_from
        settings = dataclasses.replace(tokenizer, extend=None) if own else tokenizer
        tokenizer = finetune.ready_models(start.tokenizer, settings, cache)
    parts = plan.opened(tokenizer).parts
    return DataPlan.of(plan.data, tokenizer=tokenizer, seed=plan.run.seed, cache_dir=cache, parts=parts)


def plan_data(plan: RunPlan, start: Loaded | None) -> DataPlan:
    """Plan the data of a run, and log how the tokenizer of a checkpoint splits the text.

    Raises:
        ValueError: The corpora cannot be read, are a stream of a run that counts epochs, have longer sentences than
            the model has positions, or several target languages with data.convention.
    """
    data = make_data_plan(plan, start)
    trainer = plan.trainer
    if plan.data.convention and len(data.target_languages) > 1:
        raise ValueError(
            f"data.convention={plan.data.convention} has the rules of one target language, and there are "
            f"{', '.join(data.target_languages)}: set it to null"
        )
    if data.stream and trainer.max_epochs is not None:
        raise ValueError("data.streaming=true has no epochs: set trainer.max_steps or trainer.max_time, not max_epochs")
    if data.stream and trainer.val_steps is None and trainer.val_time is None:
        raise ValueError(
            "data.streaming=true has no epochs to validate after: set trainer.val_steps or trainer.val_time"
        )
    most = max_positions(plan.config, trust=plan.trust)
    # Batches are padded to multiples, so a sentence takes more positions than it has pieces.
    longest = data.longest_allowed
    if most and longest > longest_width(most):
        named = ", ".join(f"{key}={n}" for key, n in bounds(plan.config, trust=plan.trust).items())
        needed = int(padded_width(longest))
        raise ValueError(
            f"{named} is too few for training sentences of up to {longest} pieces, padded to {needed}; set it to "
            f"{needed} or more, set data.clean.max_length={longest_width(most)}, or choose sinusoidal positions and "
            "mixers without max_len"
        )
    if start and data.tokenizer.extend is None and not plan.tokenizer.ready_models:
        report_fit(start.tokenizer, data, str(plan.run.init_from))
    return data


def score_tokenizer(plan: RunPlan, lang: str) -> str:
    """Return sacreBLEU's tokenizer for the target language, and check `data.convention`."""
    tokenize = check_tokenize(tokenize_for(lang, plan.data.tokenize))
    if plan.data.convention:
        check_convention(plan.data.convention, lang)
    return tokenize


def look_at_updates(data: TranslationDataModule, settings: TrainerSettings) -> None:
    """Warn if epochs alone bound the run and have so few updates that a model hardly begins to translate."""
    epochs = settings.max_epochs
    if not epochs or settings.max_steps or settings.dry_run or data.streaming or not is_first_process():
        return
    if (updates := data.updates_per_epoch * epochs) < _FEW_UPDATES:
        name = "batch_tokens" if data.prepared.plan.data.batch_tokens else "max_tokens"
        log.warning(
            "%d updates are few: a small corpus needs a smaller data.%s, or a larger trainer.max_epochs",
            updates,
            name,
        )


def look_at_references(data: TranslationDataModule, tokenize: str) -> None:
    """Warn if the references of the validation set do not suit its scores, which choose the best checkpoint.

    `tokenize` is sacreBLEU's tokenizer of a run with one direction.
    """
    if not is_first_process():
        return
    references = data.prepared.references("valid")
    whole = Direction("references", tokenize, range(len(references)))
    for part in data.directions("valid") or [whole]:
        named = {f"validation set, {part.name}": [references[row] for row in part.rows]}
        for line in text_warnings({}, named, tokenize=part.tokenize, remedy="data.tokenize.<target language>="):
            log.warning(line)
