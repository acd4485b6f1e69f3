"""Prepare a model for training, and make Lightning's trainer for a run."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import subprocess
import time
from typing import TYPE_CHECKING, Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint, ProgressBar
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from torch import Tensor
from torch.utils.checkpoint import checkpoint as activation_checkpoint

from seq2seq import checkpoint
from seq2seq.data.batching import longest_width
from seq2seq.data.context import context_size
from seq2seq.data.languages import target_languages
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.network.build import max_positions
from seq2seq.network.model import Seq2Seq
from seq2seq.settings.search import SearchSettings
from seq2seq.settings.trainer import TrainerSettings
from seq2seq.training.callbacks.window_end import NO_VALIDATION
from seq2seq.training.lightning_parts.checkpoint_io import plugins
from seq2seq.training.machine.fsdp import make_strategy
from seq2seq.training.machine.weight_copies import cast_together
from seq2seq.training.plan import RunPlan

if TYPE_CHECKING:
    from seq2seq.training.run import TrainingRun


def load_teacher(plan: RunPlan, tokenizer: Tokenizer, *, longest: int) -> Seq2Seq | None:
    """Load the model of `optim.teacher`, in evaluation mode and without gradients.

    Args:
        longest: Pieces of the longest training sentence.

    Raises:
        ValueError: It has another tokenizer, so that its predictions are of other pieces, translates between other
            languages or with another context, or has too few positions.
    """
    path = plan.optim.teacher
    if path is None:
        return None
    teacher = checkpoint.load(path, trust=plan.trust)
    if teacher.tokenizer.fingerprint != tokenizer.fingerprint:
        raise ValueError(
            f"optim.teacher={path} has another tokenizer than this run: start from it (init_from={path}), or learn "
            "from its translations (python -m seq2seq.distill)"
        )
    src, tgt, context = str(teacher.meta["src_lang"]), target_languages(teacher.meta), context_size(teacher.meta)
    data = plan.data
    if src != data.src or data.tgt not in tgt or context != data.context:
        raise ValueError(
            f"optim.teacher={path} translates {src} to {', '.join(tgt)} with data.context={context}, this run "
            f"{data.src} to {data.tgt} with {data.context}: choose a teacher of the run's own task"
        )
    most = max_positions(teacher.meta["model"], trust=plan.trust)
    if most and longest > longest_width(most):
        raise ValueError(
            f"optim.teacher={path} has {most} positions, too few for training sentences of up to {longest} pieces: set "
            f"data.clean.max_length={longest_width(most)}"
        )
    return teacher.model.requires_grad_(False)


def prepare_for_training(model: Seq2Seq, settings: TrainerSettings) -> None:
    """Change how a model computes in training, in place; its weights and their names do not change.

    Raises:
        ValueError: The statistics of a batch norm would be wrong.
    """
    split = "trainer.checkpoint_activations=true" if settings.checkpoint_activations else "trainer.strategy=fsdp"
    if (settings.checkpoint_activations or settings.sharded) and any(
        getattr(module, "counts_batches", False) for module in model.modules()
    ):
        raise ValueError(f"{split} does not work with batch_norm=true of a mixer: set one of them to false")
    if settings.bf16_residual:
        keep_stream_in_bf16(model, on_gpus_alone=settings.bf16_residual == "auto")
    # Sharded and recomputed layers read their weights again in the backward pass
    if not (settings.sharded or settings.checkpoint_activations):
        cast_together(model)
    if settings.checkpoint_activations:
        # Set on the instance, so that hooks and names in saved checkpoints do not change
        for layer in (*model.encoder.layers, *model.decoder.layers):
            layer.forward = functools.partial(activation_checkpoint, layer.forward, use_reentrant=False)


def keep_stream_in_bf16(model: Seq2Seq, *, on_gpus_alone: bool = False) -> None:
    """Keep a model's residual stream in the type that autocast uses for matrix products."""

    def to_autocast_type(module: torch.nn.Module, inputs: Any, x: Tensor) -> Tensor:
        device = x.device.type
        # A validation decodes without autocast.
        if not torch.is_autocast_enabled(device) or (on_gpus_alone and device != "cuda"):
            return x
        return x.to(torch.get_autocast_dtype(device))

    # The sums and layer norms that follow an embedding keep its type.
    for part in (model.encoder, model.decoder):
        part.embedding.register_forward_hook(to_autocast_type)


def validation_search(search: SearchSettings, settings: TrainerSettings) -> SearchSettings:
    """Return the search of validations: one beam group, a separate beam size, and lower length limits.

    An untrained model repeats itself up to the length limit, and the limit of the test is generous.
    """
    return dataclasses.replace(
        search,
        beam_size=settings.val_beam_size,
        beam_groups=1,
        max_len_ratio=min(search.max_len_ratio, settings.val_max_len_ratio),
        max_len_extra=min(search.max_len_extra, settings.val_max_len_extra),
    )


def make_trainer(run: TrainingRun, callbacks: list[L.Callback], loggers: list[Any]) -> L.Trainer:
    """Make Lightning's trainer, which leaves budget, validation, checkpoints and progress to our callbacks."""
    settings = run.plan.trainer
    arguments = dataclasses.asdict(settings.lightning)
    # Training uses the weights of a sharded model that a validation gathered, so they cannot be inference tensors.
    arguments["inference_mode"] &= not settings.sharded
    trainer = L.Trainer(
        accelerator=run.accelerator,
        devices=settings.devices,
        num_nodes=settings.nodes,
        strategy=make_strategy(settings),
        precision=run.precision,  # type: ignore[arg-type]
        # `Stopping` and `Validation` own the budget and the validation interval.
        max_epochs=-1,
        min_epochs=0,
        val_check_interval=NO_VALIDATION,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        accumulate_grad_batches=settings.first_window,
        # Our batch samplers know their rank; Lightning would wrap them and change the batches.
        use_distributed_sampler=False,
        callbacks=callbacks,
        plugins=plugins(),
        logger=loggers,
        # Our callbacks have other types; Lightning allows a user's Checkpoint or ProgressBar only with these flags.
        enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks),
        enable_progress_bar=any(isinstance(callback, ProgressBar) for callback in callbacks),
        # For a user's callbacks that log through Lightning.
        log_every_n_steps=settings.log_steps,
        default_root_dir=run.folder.path,
        **arguments,
    )
    # With several ranks the host would wait for the device before each micro-batch; `Signals` handles SIGTERM
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None
    if isinstance(trainer.strategy.launcher, _SubprocessScriptLauncher):
        atexit.register(_end_ranks, trainer.strategy.launcher)
    return trainer


def _end_ranks(launcher: _SubprocessScriptLauncher, seconds: float = 30.0) -> None:
    """Kill the ranks that this process started, if they do not end within `seconds`.

    If this process fails alone, for example on a full disk, they wait for it on their GPUs until the collective
    operation times out.
    """
    deadline = time.monotonic() + seconds
    for process in launcher.procs:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        process.kill()
