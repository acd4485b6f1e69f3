"""Bound a run by updates, epochs, time and patience, and measure the used share."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from seq2seq.system.ranks import Agreement

if TYPE_CHECKING:
    import lightning as L

    from seq2seq.settings.trainer import TrainerSettings

# The settings that may end a run. If several are reached, the last one in this order is named.
BOUNDS = ("max_time", "patience", "max_epochs", "max_steps")
# Named if a user's callback stopped the run before it reached any bound.
CALLBACKS = "callbacks"
# Attributes of a budget that a resumed run continues from, besides the clock.
_KEPT = ("start_seconds", "bad_validations", "validation_seconds", "validations_spent")


class Stopwatch:
    """Stopwatch of the seconds that passed while it ran, and of this process' CPU seconds; it starts stopped."""

    def __init__(self) -> None:
        self.running = False
        self.load(0.0, 0.0)

    @property
    def seconds(self) -> float:
        """Seconds counted so far."""
        return self._total + (time.monotonic() - self._mark if self.running else 0.0)

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of all threads of this process counted so far; nan if a part is unknown."""
        return self._cpu_total + (time.process_time() - self._cpu_mark if self.running else 0.0)

    def start(self) -> None:
        """Start to count; has no effect on a running stopwatch."""
        self.load(self.seconds, self.cpu_seconds)
        self.running = True

    def stop(self) -> None:
        """Stop counting."""
        self.load(self.seconds, self.cpu_seconds)
        self.running = False

    def load(self, seconds: float, cpu_seconds: float = math.nan) -> None:
        """Continue from these seconds."""
        self._total = seconds
        self._cpu_total = cpu_seconds
        self._mark = time.monotonic()
        self._cpu_mark = time.process_time()


class Budget:
    """Bounds of a run: updates, epochs, time and patience.

    `clock` counts training, validation and saving over all parts of a resumed run, `training` counts training alone.
    The limit of time bounds the clock. A learning rate that follows time ignores the start: the first update of each
    part, which compiles, loads and tunes.

    Args:
        callbacks: The section `callbacks`: a run that a callback stopped continues if this section is changed.
    """

    def __init__(self, settings: TrainerSettings, callbacks: Mapping[str, Any] | None = None) -> None:
        self.settings = settings
        self.callbacks = dict(callbacks or {})
        self.clock = Stopwatch()
        self.training = Stopwatch()
        self.start_seconds = 0.0  # of training, in the first updates of all parts
        # Seconds of training when this part began, and when its first update ended
        self._begun = 0.0
        self._first_ended = 0.0
        self.updates = 0  # in this part
        self.agreement = Agreement()
        self.bad_validations = 0  # in a row without a better score; `Stopping` counts them
        self.ended_by: str | None = None  # one of BOUNDS, or CALLBACKS
        # Used share of the time, on which all ranks agreed after the last update, because their clocks differ.
        self.agreed_share = 0.0
        # In seconds
        self.validation_seconds = 0.0  # of the last validation, or an estimate of the first
        self.validation_interval = math.inf  # of training between two validations
        self.validations_spent = 0.0  # of all validations so far
        self._spent_before = 0.0  # of all validations before the last one
        self._validation_began = 0.0  # by the clock

    def begin(self) -> None:
        """Begin a part of the run."""
        self._begun = self.training.seconds
        self.updates = 0

    def end_update(self) -> None:
        """Count an update; the first one ends the start."""
        self.updates += 1
        if self.updates == 1:
            self._first_ended = self.training.seconds
            self.start_seconds += self.first_update_seconds

    def begin_validation(self) -> None:
        """Start to measure a validation."""
        self._validation_began = self.clock.seconds
        self._spent_before = self.validations_spent

    def end_validation(self) -> None:
        """Record the time of the validation; a second call includes the checkpoints that were saved since."""
        self.validation_seconds = self.clock.seconds - self._validation_began
        self.validations_spent = self._spent_before + self.validation_seconds

    @property
    def first_update_seconds(self) -> float:
        """Seconds of this part's first update."""
        return self._first_ended - self._begun

    @property
    def trained_seconds(self) -> float:
        """Seconds of training without the start of any part."""
        return (self.training.seconds if self.updates else self._begun) - self.start_seconds

    @property
    def update_seconds(self) -> float:
        """Mean seconds of an update of this part after its first; 0 before the second."""
        return (self.training.seconds - self._first_ended) / (self.updates - 1) if self.updates > 1 else 0.0

    def used_share(self, trainer: L.Trainer) -> float:
        """Return the used share, 0 to 1, of the bound that will be reached first."""
        return min(1.0, max(self._counted_share(trainer), self._time_share()))

    def schedule_share(self, trainer: L.Trainer) -> float:
        """Return the share, 0 to 1, that an annealed learning rate follows.

        If the run has a bound of updates or epochs, this is the share of that bound, so that the run is reproducible
        bit for bit, even if the clock ends it first. Otherwise it is `trained_share`.
        """
        if self.settings.max_steps or self.settings.max_epochs:
            return min(1.0, self._counted_share(trainer))
        # All ranks must have the same learning rate, and their clocks differ.
        return self.agreed_share if trainer.world_size > 1 else self.trained_share()

    def agree(self) -> None:
        """Let all ranks, which call this together, agree on the share of time."""
        self.agreed_share = self.agreement.maxima([self.trained_share()])[0]

    def trained_share(self) -> float:
        """Return the used share of the time for training, 0 to 1; 0 without a limit of time.

        This is the time trained after the start, divided by the whole time for training: the limit minus the start and
        all validations, past and future.
        """
        limit = self.settings.max_time
        if not limit:
            return 0.0
        left = max(0.0, limit - self.clock.seconds - self._reserve())
        # Subtract the validations before the last one: at the present interval, and at most `val_share` of the run
        took = self.validation_seconds
        between = left * took / (took + self.validation_interval) if took else 0.0
        left -= min(between, max(0.0, self.settings.val_share * limit - self.validations_spent))
        trained = self.trained_seconds
        return trained / (trained + left) if left else 1.0

    @property
    def out_of_patience(self) -> bool:
        """True after `trainer.patience` validations without a better score."""
        patience = self.settings.patience
        return patience is not None and self.bad_validations >= patience

    def updates_left(self, trainer: L.Trainer) -> float:
        """Return the updates up to the bound of updates or epochs that is reached first, infinite without one."""
        left = math.inf
        if self.settings.max_steps:
            left = self.settings.max_steps - trainer.global_step
        if self.settings.max_epochs:
            batches = trainer.num_training_batches
            done = trainer.current_epoch * batches + trainer.fit_loop.epoch_loop.batch_idx + 1
            left = min(left, (self.settings.max_epochs * batches - done) / trainer.accumulate_grad_batches)
        return left

    def reached(self, trainer: L.Trainer) -> int:
        """Return which of BOUNDS is reached, counted from 1; 0 for none."""
        steps = self.settings.max_steps
        epochs = self.settings.max_epochs
        reached = {
            "max_time": self._time_share() >= 1,
            "patience": self.out_of_patience,
            "max_epochs": epochs is not None and epochs_done(trainer) >= epochs,
            "max_steps": steps is not None and trainer.global_step >= steps,
        }
        # A number, so that ranks can agree on its maximum.
        return max((number for number, bound in enumerate(BOUNDS, 1) if reached[bound]), default=0)

    def end_by(self, number: int) -> None:
        """Record the bound that `reached` returned, unless the run has ended before."""
        if number and not self.ended_by:
            self.ended_by = BOUNDS[number - 1]

    def is_spent(self, trainer: L.Trainer) -> bool:
        """Decide, all ranks together, if a bound is reached, and record it."""
        self.end_by(int(self.agreement.maxima([self.reached(trainer)])[0]))
        return self.ended_by is not None

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run continues from."""
        return {
            "elapsed": self.clock.seconds,
            **{name: getattr(self, name) for name in _KEPT},
            # The bound with its value: a run that is resumed with another value of the same bound continues.
            "ended": [self.ended_by, self._limit(self.ended_by)] if self.ended_by else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from an earlier part of the run."""
        self.clock.load(state["elapsed"])
        for name in _KEPT:
            setattr(self, name, state[name])
        # The clock alone does not tell: it is below the limit if the last validation took less time than was reserved.
        bound, limit = state.get("ended") or (None, None)
        self.ended_by = bound if bound and self._limit(bound) == limit else None

    def _limit(self, ended_by: str) -> Any:
        """Return the value of a bound, or all values and the section `callbacks` if a callback stopped the run."""
        if ended_by == CALLBACKS:
            return [*(getattr(self.settings, bound) for bound in BOUNDS), self.callbacks]
        return getattr(self.settings, ended_by)

    def _counted_share(self, trainer: L.Trainer) -> float:
        steps = self.settings.max_steps
        epochs = self.settings.max_epochs
        by_steps = trainer.global_step / steps if steps else 0.0
        by_epochs = epochs_done(trainer) / epochs if epochs else 0.0
        return max(by_steps, by_epochs)

    def _time_share(self) -> float:
        limit = self.settings.max_time
        if not limit:
            return 0.0
        # The last update is the one that ends nearest to the limit.
        return (self.clock.seconds + self.update_seconds / 2) / (limit - self._reserve())

    def _reserve(self) -> float:
        """Return the seconds reserved for the last validation, at most half of the limit."""
        return min(self.validation_seconds, (self.settings.max_time or 0.0) / 2)


def epochs_done(trainer: L.Trainer) -> float:
    """Return the number of epochs, including the finished part of the current epoch."""
    # Infinite for a stream, which has no epochs: x / inf is 0.
    batches = trainer.num_training_batches
    epoch = trainer.fit_loop.epoch_loop
    # Lightning keeps the number of the last batch until the next epoch begins.
    if batches == epoch.batch_idx + 1 and between_epochs(trainer):
        return float(trainer.current_epoch)
    return trainer.current_epoch + ((epoch.batch_idx + 1) / batches if batches else 0.0)


def between_epochs(trainer: L.Trainer) -> bool:
    """Return True if Lightning has counted an epoch but not begun the next one."""
    counts: Any = trainer.fit_loop.epoch_progress.current
    return counts.processed == counts.ready
