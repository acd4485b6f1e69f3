"""The bounds of a run, the share of them that is used, and the clocks that measure it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from seq2seq.distributed import Agreement

if TYPE_CHECKING:
    import lightning as L

    from seq2seq.config.trainer import TrainerSettings

# The settings that may end a run. Where several are reached, the last one is named.
BOUNDS = ("max_time", "patience", "max_epochs", "max_steps")
# What ends a run that a callback of the user's has stopped before it reached any of them.
CALLBACKS = "callbacks"


class Stopwatch:
    """Stopwatch of the seconds that passed while it ran, and of this process' CPU seconds; it starts stopped."""

    def __init__(self) -> None:
        self._total, self._cpu_total = 0.0, 0.0
        self._mark, self._cpu_mark = time.monotonic(), time.process_time()
        self._running = False

    @property
    def seconds(self) -> float:
        """Seconds counted so far."""
        return self._total + (time.monotonic() - self._mark if self._running else 0.0)

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds counted so far, of all threads of this process and of no other; nan if a part is unknown."""
        return self._cpu_total + (time.process_time() - self._cpu_mark if self._running else 0.0)

    @property
    def running(self) -> bool:
        """True between `start` and `stop`."""
        return self._running

    def start(self) -> None:
        """Count from now on; a stopwatch that runs goes on."""
        self._switch(True)

    def stop(self) -> None:
        """Count no longer."""
        self._switch(False)

    def _switch(self, running: bool) -> None:
        # Read with the old marks, so before the marks are moved.
        self._total, self._cpu_total = self.seconds, self.cpu_seconds
        self._mark, self._cpu_mark = time.monotonic(), time.process_time()
        self._running = running

    def load(self, seconds: float, cpu_seconds: float = math.nan) -> None:
        """Continue from the seconds of an earlier part of the run."""
        self._total, self._cpu_total = seconds, cpu_seconds


class Budget:
    """Bounds of a run: updates, epochs, time and patience.

    Time is that of `clock`, which counts training and validation over all parts of a resumed run.

    Args:
        callbacks: The section `callbacks`: a run that they have stopped goes on with others.
    """

    def __init__(self, settings: TrainerSettings, callbacks: Mapping[str, Any] | None = None) -> None:
        self.settings = settings
        self.callbacks = dict(callbacks or {})
        self.clock = Stopwatch()
        self.agreement = Agreement()
        self.bad_validations = 0  # in a row without a better score; `Stopping` counts them
        self.ended_by: str | None = None  # one of BOUNDS, or CALLBACKS
        # Clocks differ between ranks: the share that all of them agreed on after the last update.
        self.agreed_share = 0.0
        self.validation_seconds = 0.0  # of the last one

    def used_share(self, trainer: L.Trainer) -> float:
        """Return the used share, 0 to 1, of the bound that will be reached first."""
        return min(1.0, max(self._counted_share(trainer), self._time_share()))

    def schedule_share(self, trainer: L.Trainer) -> float:
        """Return the share that an annealed learning rate follows.

        It is that of updates or epochs if they bound the run, else that of time. So a run that is bounded by a count
        repeats bit for bit, even if the clock ends it before.
        """
        # A count is the same on every rank and in every repetition.
        if self.settings.max_steps or self.settings.max_epochs:
            return min(1.0, self._counted_share(trainer))
        # Ranks must have one learning rate, so none follows its own clock.
        return self.agreed_share if trainer.world_size > 1 else min(1.0, self._time_share())

    def agree(self, trainer: L.Trainer) -> None:
        """Agree with all ranks, which call this together, on the used share."""
        self.agreed_share = self.agreement.maxima([self.used_share(trainer)])[0]

    @property
    def out_of_patience(self) -> bool:
        """True after `trainer.patience` validations without a better score."""
        patience = self.settings.patience
        return patience is not None and self.bad_validations >= patience

    @property
    def by_clock_alone(self) -> bool:
        """True if the clock ends the run and no count does."""
        return bool(self.settings.max_time) and not (self.settings.max_steps or self.settings.max_epochs)

    def updates_left(self, trainer: L.Trainer) -> float:
        """Return the updates up to the bound of updates or epochs that is reached first, infinite without one."""
        left = math.inf
        if self.settings.max_steps:
            left = self.settings.max_steps - trainer.global_step
        if self.settings.max_epochs:
            window = trainer.accumulate_grad_batches
            # The last window of an epoch may be shorter.
            epoch = -(-trainer.num_training_batches // window)
            done = -(-(trainer.fit_loop.epoch_loop.batch_idx + 1) // window)
            left = min(left, (self.settings.max_epochs - trainer.current_epoch) * epoch - done)
        return left

    def reserve(self, validation_seconds: float) -> None:
        """Reserve time for a last validation that takes as long as the one before."""
        self.validation_seconds = validation_seconds

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
        # A number, so that ranks can agree on it by a maximum; the last of BOUNDS wins.
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
            "bad_validations": self.bad_validations,
            "validation_seconds": self.validation_seconds,
            "agreed_share": self.agreed_share,
            # With its value: a resumed run under another value of the same bound goes on.
            "ended": [self.ended_by, self._limit(self.ended_by)] if self.ended_by else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from an earlier part of the run."""
        self.clock.load(state["elapsed"])
        self.bad_validations = state["bad_validations"]
        self.validation_seconds = state["validation_seconds"]
        # Older checkpoints lack it: until the next agreement, the rate is that of a run that begins.
        self.agreed_share = state.get("agreed_share", 0.0)
        # The clock may disagree: a last validation shorter than the time reserved for it leaves some of it unused.
        bound, limit = state.get("ended") or (None, None)
        self.ended_by = bound if bound and self._limit(bound) == limit else None

    def _limit(self, ended_by: str) -> Any:
        """Return the value of a bound; of all bounds, and the callbacks, for a run that a callback has stopped."""
        if ended_by == CALLBACKS:
            return [*(getattr(self.settings, bound) for bound in BOUNDS), self.callbacks]
        return getattr(self.settings, ended_by)

    def _counted_share(self, trainer: L.Trainer) -> float:
        steps = self.settings.max_steps
        epochs = self.settings.max_epochs
        # Whichever of the two counts is nearer to its bound.
        share = trainer.global_step / steps if steps else 0.0
        return max(share, epochs_done(trainer) / epochs if epochs else 0.0)

    def _time_share(self) -> float:
        limit = self.settings.max_time
        if not limit:
            return 0.0
        # At most a twentieth is reserved: an early validation takes longer, for its translations do not end.
        return (self.clock.seconds + min(self.validation_seconds, limit / 20)) / limit


def epochs_done(trainer: L.Trainer) -> float:
    """Return the number of epochs, the finished part of the current one included."""
    # Infinite for a stream, of which no epoch ever ends: x / inf is 0.
    batches = trainer.num_training_batches
    epoch = trainer.fit_loop.epoch_loop
    # Lightning still has the number of the last batch.
    if batches == epoch.batch_idx + 1 and between_epochs(trainer):
        return float(trainer.current_epoch)
    return trainer.current_epoch + ((epoch.batch_idx + 1) / batches if batches else 0.0)


def between_epochs(trainer: L.Trainer) -> bool:
    """Return True if Lightning has counted an epoch, and has not begun the next one."""
    counts: Any = trainer.fit_loop.epoch_progress.current
    return counts.processed == counts.ready
