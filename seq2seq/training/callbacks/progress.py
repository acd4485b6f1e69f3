"""Show and log the progress of a run: a bar on a terminal, plain lines elsewhere, and rows of metrics."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

import lightning as L
import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from seq2seq.evaluation.evaluator import Evaluation
from seq2seq.settings.trainer import TrainerSettings
from seq2seq.settings.values import clock
from seq2seq.training.bounds.budget import Budget, epochs_done
from seq2seq.training.callbacks.samples import samples
from seq2seq.training.callbacks.window_end import window_ends
from seq2seq.training.lightning_parts.run_state import RunState
from seq2seq.training.lightning_parts.task import TranslationTask
from seq2seq.training.machine.compilation import is_compiled
from seq2seq.training.machine.throughput import Meter

log = logging.getLogger(__name__)

_REFRESH = 0.5  # seconds between updates of the bar: each one waits for the device
# Seconds after which the rate of a run is known well enough to say how long it will take.
_RATE_KNOWN = 5.0
# Share of a limit of time from which on the time of the first update is told.
_TOLD = 0.1


class IntervalAverages:
    """Averages of the sums that the task keeps, over the time since they were last taken."""

    def __init__(self) -> None:
        self._sums, self._seconds = (0.0, 0.0, 0.0), 0.0

    def take(self, task: TranslationTask, seconds: float) -> dict[str, float]:
        """Return loss and nll per target token (nats), and target tokens/s; waits for the device.

        Args:
            seconds: Of training so far.
        """
        sums = tuple(task.train_sums.tolist()[:3])
        loss, nll, tokens = (new - old for new, old in zip(sums, self._sums, strict=True))
        passed, self._sums, self._seconds = seconds - self._seconds, sums, seconds  # type: ignore[assignment]
        share = 1 / max(tokens, 1.0)
        return {"loss": loss * share, "nll": nll * share, "tokens_per_second": tokens / max(passed, 1e-9)}

    def state(self) -> list[float]:
        """Return the sums and seconds at the end of the last interval, for `load`."""
        return [*self._sums, self._seconds]

    def load(self, state: list[float]) -> None:
        """Continue from an earlier part's last interval."""
        self._sums, self._seconds = (state[0], state[1], state[2]), state[3]


class TimeLeft:
    """Estimate of the time to the end of a run, from its rate since `begin`."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._seconds = self._share = 0.0

    @property
    def passed(self) -> float:
        """Seconds since `begin`."""
        return self.budget.clock.seconds - self._seconds

    def begin(self, trainer: L.Trainer) -> None:
        """Count from now on: at the beginning of this part of the run, and again after its first update."""
        self._seconds, self._share = self.budget.clock.seconds, self.budget.used_share(trainer)

    def shown(self, trainer: L.Trainer) -> str:
        """Return the time left; a question mark if nothing of the run was done since."""
        done = self.budget.used_share(trainer)
        if done <= self._share:
            return "?"
        return clock(self.passed * (1 - done) / (done - self._share))

    def announcement(self, trainer: L.Trainer) -> str:
        """Return the time left, and of what."""
        settings = self.budget.settings
        bounds = {"epoch": settings.max_epochs, "update": settings.max_steps}
        words = [f"{count:,} {name}{'s' if count > 1 else ''}" for name, count in bounds.items() if count]
        if settings.max_time:
            words.append(f"{clock(settings.max_time)} at most")
        return f"about {self.shown(trainer)} left of {', '.join(words)}"


class ProgressLog(L.Callback):
    """Callback that shows and logs tokens/s, loss, learning rate, time left, scores and samples of validations."""

    def __init__(self, *, state: RunState, settings: TrainerSettings, console: Console) -> None:
        self.state = state
        self.settings = settings
        self.console = console
        self.watch = state.budget.training
        # Of intervals of their own: rows go by updates, the bar by seconds.
        self._for_log = IntervalAverages()
        self._for_bar = IntervalAverages()
        self._shown = 0.0
        self._time_left = TimeLeft(state.budget)
        self._tokens = 0.0  # before this part of the run
        self._first = True  # update of this part
        # Two updates need no announcement
        self._announced = settings.dry_run
        self._logged_step = 0
        self._meter_state: dict[str, Any] | None = None  # of a resumed run, until there is a meter
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clocks and, on a terminal, the bar."""
        assert isinstance(pl_module, TranslationTask)
        meter = _new_meter(trainer, pl_module)
        if self._meter_state:
            meter.load(self._meter_state)
        self.state.meter = meter
        # Forgets an earlier part's sums; those of the log go on, as its rows do.
        self._for_bar.take(pl_module, self.watch.seconds)
        self._tokens = float(pl_module.train_sums[2])
        self._begin(trainer)
        self.watch.start()
        if self.console.is_terminal:
            words = [
                TextColumn(t) for t in ("{task.description}", "{task.percentage:>3.0f}%", "{task.fields[left]} left")
            ]
            bar = Progress(words[0], BarColumn(bar_width=24), *words[1:], console=self.console, auto_refresh=False)
            self._task = bar.add_task("starting", total=1.0, left="?")
            bar.start()
            self._bar = bar

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Restart the watch, which a validation or a save has stopped."""
        self.watch.start()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log every `log_steps` updates, and show progress every few seconds."""
        assert self.state.meter is not None
        self.state.meter.add(batch)
        # Sums and gradient norm are those of whole updates.
        if not window_ends(trainer, batch_idx):
            return
        assert isinstance(pl_module, TranslationTask)
        if self._first:
            self._first = False
            self._end_start(trainer, pl_module)
        step = trainer.global_step
        if step % self.settings.log_steps == 0:
            self._log(trainer, pl_module)
        if not self._announced and self._time_left.passed >= _RATE_KNOWN:
            self._announced = True
            self.console.print(self._time_left.announcement(trainer), highlight=False, soft_wrap=True)
        wait = _REFRESH if self._bar else self.settings.line_time
        if time.monotonic() - self._shown >= wait:
            self._show(trainer, pl_module)
            # After the work, which waits for the device.
            self._shown = time.monotonic()

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop the watch of training, and log a row about training for every validation."""
        self.watch.stop()
        if trainer.state.fn != "fit":
            return
        assert isinstance(pl_module, TranslationTask)
        # Unless this update has its row already.
        if trainer.global_step != self._logged_step:
            self._log(trainer, pl_module)
        if self._bar:
            self._bar.update(self._task, description=f"step {trainer.global_step:,}  validating")
            self._bar.refresh()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Report the scores and a few translations."""
        assert isinstance(pl_module, TranslationTask)
        assert pl_module.evaluation is not None
        result, step = pl_module.evaluation, trainer.global_step
        for logger in trainer.loggers:
            logger.log_metrics({f"val/{k}": v for k, v in result.numbers().items()}, step)
        self.console.print(
            f"[bold]validation[/] at update {step:,}: BLEU {result.bleu.value:.2f}  chrF {result.chrf.value:.2f}  "
            f"loss {result.loss:.3f}  perplexity {result.perplexity:.2f}  (best {self.best(result):.2f})",
            highlight=False,
            soft_wrap=True,
        )
        for line in sample_lines(result, self.settings.samples):
            self.console.print(line, highlight=False, soft_wrap=True)

    def best(self, result: Evaluation) -> float:
        """Return the best BLEU so far, this validation included, in whatever order callbacks are called."""
        return max(self.state.best.bleu, result.bleu.value)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop the watch, close the bar, and keep the tokens of the whole run for results.json."""
        assert isinstance(pl_module, TranslationTask)
        self.watch.stop()
        self.state.target_tokens = float(pl_module.train_sums[2])
        self._close()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Close the bar."""
        self._close()

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run continues from."""
        return {
            "seconds": self.watch.seconds,
            # Of this process alone: unknown to a run that goes on in another number of them
            "cpu_seconds": math.nan if self.settings.processes > 1 else self.watch.cpu_seconds,
            "epochs": self.state.epochs,
            "start_tokens": self.state.start_tokens,
            "logged_step": self._logged_step,
            "logged": self._for_log.state(),
            "meter": self.state.meter.state() if self.state.meter else self._meter_state,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from an earlier part of the run."""
        self.watch.load(state_dict["seconds"], state_dict["cpu_seconds"])
        self.state.epochs = state_dict["epochs"]
        self._logged_step = state_dict["logged_step"]
        self._for_log.load(state_dict["logged"])
        self.state.start_tokens = state_dict["start_tokens"]
        # Lightning restores callbacks before `on_train_start` builds the meter.
        self._meter_state = state_dict.get("meter")

    def _begin(self, trainer: L.Trainer) -> None:
        """Report where a resumed run continues."""
        budget = self.state.budget
        share = budget.used_share(trainer)
        self._time_left.begin(trainer)
        # A new run has nothing to report, nor has one that is over.
        if trainer.global_step and share < 1 and not budget.ended_by:
            log.info(
                "continuing at update %s, epoch %.2f: %.0f%% of the run is done, after %s of training and validation",
                f"{trainer.global_step:,}", epochs_done(trainer), 100 * share, clock(budget.clock.seconds),
            )  # fmt: skip

    def _end_start(self, trainer: L.Trainer, task: TranslationTask) -> None:
        """Count rates from here on, and tell what the first update took of a limit of time."""
        budget = self.state.budget
        self._time_left.begin(trainer)
        self.state.start_tokens += float(task.train_sums[2]) - self._tokens
        if text := _start_text(budget, compiled=is_compiled(task.model)):
            self.console.print(text, highlight=False, soft_wrap=True)

    def _close(self) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None

    def _log(self, trainer: L.Trainer, task: TranslationTask) -> None:
        self._logged_step = trainer.global_step
        self.state.epochs = epochs_done(trainer)
        assert self.state.meter is not None
        # Rates of training alone; `seconds` counts validations too, as budgets do.
        values = self._for_log.take(task, self.watch.seconds) | self.state.meter.take(self.watch.seconds)
        values = {f"train/{key}": value for key, value in values.items()} | {
            "train/grad_norm": float(task.grad_norm),
            "lr": _rate(trainer),
            "epoch": self.state.epochs,
            "seconds": self.state.budget.clock.seconds,
            "train/seconds": self.watch.seconds,
            "train/seconds_after_start": self.state.budget.trained_seconds,
            **({} if (cpu := self.state.cpu_seconds) is None else {"train/cpu_seconds": cpu}),
        }
        for logger in trainer.loggers:
            logger.log_metrics(values, trainer.global_step)

    def _show(self, trainer: L.Trainer, task: TranslationTask) -> None:
        now = self._for_bar.take(task, self.watch.seconds)
        share = self.state.budget.used_share(trainer)
        left = self._time_left.shown(trainer)
        text = (
            f"step {trainer.global_step:,}  epoch {epochs_done(trainer):.2f}  loss {now['loss']:.3f}  "
            f"lr {_rate(trainer):.2e}  {now['tokens_per_second']:,.0f} tokens/s"
        )
        if self._bar:
            self._bar.update(self._task, completed=share, description=text, left=left)
            self._bar.refresh()
        else:
            self.console.print(f"{100 * share:3.0f}%  {text}  {left} left", highlight=False, soft_wrap=True)


def _start_text(budget: Budget, *, compiled: bool) -> str | None:
    """Return what the first update took of a limit of time, None if it is not worth telling."""
    limit, took = budget.settings.max_time, budget.first_update_seconds
    if limit is None or took < _TOLD * limit:
        return None
    what = "compiling and the first update" if compiled else "the first update"
    rest = "" if budget.clock.seconds < limit else ": the run ends after it; raise trainer.max_time"
    return f"{what} took {took:.1f} of {limit:g} s (trainer.max_time){rest}"


def _new_meter(trainer: L.Trainer, task: TranslationTask) -> Meter:
    """Build the meter of a run, once a trainer knows the device and the type of the products."""
    dtype = torch.bfloat16 if "bf16" in str(trainer.precision) else torch.float32
    passes = 2 if task.optim.r_drop else 1
    return Meter(task.description["model"], device=task.device, dtype=dtype, passes=passes)


def sample_lines(result: Evaluation, count: int) -> list[str]:
    """List source, reference and hypothesis of `count` sentences spread over the split, as rich markup."""
    lines = []
    for source, hypothesis, reference in samples(result, count):
        for name, text in (("src", source), ("ref", reference), ("hyp", hypothesis)):
            lines.append(f"  [dim]{name}[/] {escape(text)}")
    return lines


def _rate(trainer: L.Trainer) -> float:
    return float(trainer.optimizers[0].param_groups[0]["lr"])
