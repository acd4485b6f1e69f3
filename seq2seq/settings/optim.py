"""Settings of the section `optim`: optimizer, learning-rate schedule, clipping and label smoothing."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from seq2seq.settings.declare import SET, Section, setting

# Choices of `schedule`, and of `name`.
SCHEDULES = ("inverse_sqrt", "cosine", "anneal", "constant")
OPTIMIZERS = ("adam", "adadelta", "muon")
# Values of `needs`: settings that other settings need to have an effect.
_ADAM = {"name": ("adam", "muon")}
_MUON = {"name": ("muon",)}
_ANNEAL = {"schedule": ("anneal",)}
_UPDATES = {"schedule": ("inverse_sqrt", "cosine", "constant")}
_FALLING = {"schedule": ("inverse_sqrt", "cosine", "anneal")}


def _is_no_rate(optim: OptimSettings) -> str:
    used = f"since the peak is optim.lr={optim.lr:g}: set optim.lr, or choose optim=anneal or optim=muon"
    return "" if optim.lr == optim.peak_lr else used


def _lacks_a_warm_up(optim: OptimSettings) -> str:
    warmup = "warmup_share" if optim.schedule == "anneal" else "warmup_steps"
    return "" if getattr(optim, warmup) else f"with optim.{warmup}=0: leave it out, or set optim.{warmup}"


@dataclasses.dataclass(frozen=True)
class OptimSettings(Section):
    """Settings of the optimizer and its schedule; `learning_rate` in training/objective/optim.py has the formulas."""

    section: ClassVar[str] = "optim"

    # The optimizer.
    name: str = setting("adam", "adam is AdamW; muon is Muon for linear layers, AdamW for the rest", choices=OPTIMIZERS)
    lr: float = setting(5e-4, "peak learning rate", above=0)
    peak_lr: float = setting(
        5e-4, "peak learning rate for this model size, used by optim=muon and optim=anneal", above=0, idle=_is_no_rate
    )
    betas: tuple[float, float] = setting((0.9, 0.98), "decay rates of Adam's moments", least=0, below=1, needs=_ADAM)
    rho: float = setting(0.95, "decay rate of AdaDelta's squares", least=0, below=1, needs={"name": ("adadelta",)})
    momentum: float = setting(0.95, "momentum of Muon", least=0, below=1, needs=_MUON)
    adam_lr_scale: float = setting(1.0, "learning rate of Muon's AdamW, as a multiple of lr", above=0, needs=_MUON)
    eps: float = setting(1e-9, "added to the denominator", above=0)
    weight_decay: float = setting(0.0, "decoupled weight decay, times lr; adadelta adds it to the gradient", least=0)
    # The schedule, counted in updates, or for anneal in shares of the budget.
    schedule: str = setting("inverse_sqrt", "schedule of the learning rate", choices=SCHEDULES)
    warmup_steps: int = setting(4000, "updates of linear warm-up", least=0, needs=_UPDATES)
    warmup_share: float = setting(0.05, "share of the run in which the rate rises", least=0, below=1, needs=_ANNEAL)
    decay_share: float = setting(1.0, "last share of the run, in which the rate falls", above=0, most=1, needs=_ANNEAL)
    warmup_init_lr: float = setting(1e-7, "learning rate before the first update", least=0, idle=_lacks_a_warm_up)
    min_lr: float = setting(0.0, "lowest learning rate after the warm-up", least=0, needs=_FALLING)
    period: int = setting(20000, "updates from the warm-up down to min_lr", least=1, needs={"schedule": ("cosine",)})
    # Gradient and loss.
    clip_norm: float = setting(0.0, "largest norm of the gradient; 0 = off", least=0)
    label_smoothing: float = setting(0.1, "share of the target distribution spread over all pieces", least=0, below=1)
    teacher: str | None = setting(None, "a checkpoint whose predictions are part of the target (word distillation)")
    teacher_weight: float = setting(
        0.5, "share of the teacher's predictions in the target", above=0, most=1, needs={"teacher": SET}
    )
    guided_alignment: float = setting(
        0.0, "weight of the loss that trains attention on word alignments, such as 0.1; 0 = off", least=0
    )
    freeze: tuple[str, ...] = setting((), "weights that are not trained, by name with * and ?: [encoder.*]")
    lora: int | None = setting(
        None,
        "rank of low-rank updates (LoRA) of a checkpoint's matrices; other weights are frozen; null = off",
        least=1,
    )
    r_drop: float = setting(0.0, "weight of the divergence of two passes (R-Drop), such as 5; 0 = off", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_lr > self.lr:
            raise ValueError(
                f"optim.min_lr={self.min_lr:g} is above the peak, optim.lr={self.lr:g}: lower optim.min_lr"
            )
