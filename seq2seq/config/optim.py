"""Settings of the section `optim`: optimizer, learning-rate schedule, clipping and label smoothing."""

from __future__ import annotations

import dataclasses

from seq2seq.config.settings import setting

# Choices of `schedule`, and of `name`.
SCHEDULES = ("inverse_sqrt", "cosine", "anneal", "constant")
OPTIMIZERS = ("adam", "adadelta")


@dataclasses.dataclass(frozen=True)
class OptimSettings:
    """Settings of the optimizer and its schedule; `learning_rate` in training/optim.py has the formulas.

    Raises:
        ValueError: an unknown name, or a value outside its range.
    """

    # The optimizer.
    name: str = setting("adam", "adam (AdamW) or adadelta")
    lr: float = setting(5e-4, "highest learning rate")
    peak_lr: float = setting(5e-4, "highest learning rate of optim=anneal, which the size of the model sets")
    betas: tuple[float, float] = setting((0.9, 0.98), "decay rates of Adam's two moments")
    rho: float = setting(0.95, "decay rate of AdaDelta's squares")
    eps: float = setting(1e-9, "added to the denominator")
    weight_decay: float = setting(0.0, "decoupled weight decay, times the learning rate")
    # The schedule, counted in updates, or for anneal in shares of the budget.
    schedule: str = setting("inverse_sqrt", f"{', '.join(SCHEDULES[:-1])} or {SCHEDULES[-1]}")
    warmup_steps: int = setting(4000, "updates of linear warm-up (anneal has warmup_share instead)")
    warmup_share: float = setting(0.05, "share of the run in which the rate of anneal rises")
    warmup_init_lr: float = setting(1e-7, "learning rate before the first update")
    min_lr: float = setting(0.0, "lowest learning rate after the warm-up")
    period: int = setting(20000, "updates of cosine from the end of the warm-up down to min_lr")
    # Gradient and loss.
    clip_norm: float = setting(0.0, "largest norm of the gradient; 0 = off")
    label_smoothing: float = setting(0.1, "share of the target distribution spread over all pieces")

    def __post_init__(self) -> None:
        _one_of("optim.name", self.name, OPTIMIZERS)
        _one_of("optim.schedule", self.schedule, SCHEDULES)
        # A learning rate of 0 trains nothing; an eps of 0 may divide by 0.
        for key in ("lr", "peak_lr", "eps"):
            _at_least(f"optim.{key}", getattr(self, key), 0, above=True)
        for key in ("weight_decay", "warmup_steps", "warmup_init_lr", "min_lr", "clip_norm"):
            _at_least(f"optim.{key}", getattr(self, key), 0)
        _at_least("optim.period", self.period, 1)
        if len(self.betas) != 2 or not all(isinstance(b, int | float) and 0 <= b < 1 for b in self.betas):
            raise ValueError(f"optim.betas={list(self.betas)} must be two numbers, each at least 0 and below 1")
        # Below 1: at 1 the rise of anneal never ends, and the true token has no share of the target.
        for key in ("rho", "warmup_share", "label_smoothing"):
            if not 0 <= getattr(self, key) < 1:
                raise ValueError(f"optim.{key}={getattr(self, key)} must be at least 0 and below 1")


def _one_of(key: str, value: str, names: tuple[str, ...]) -> None:
    if value not in names:
        raise ValueError(f"{key}={value} is unknown; choose one of {', '.join(names)}")


def _at_least(key: str, value: float, bound: float, *, above: bool = False) -> None:
    # Written so that NaN, which compares as false, fails too.
    if not (value > bound if above else value >= bound):
        raise ValueError(f"{key}={value} must be {'above' if above else 'at least'} {bound}")
