"""Show and log the progress of a run: a bar on a terminal, plain lines elsewhere, and rows of metrics."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from typing import Any

import lightning as L
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID

from seq2seq.settings.trainer import TrainerSettings
from seq2seq.settings.values import clock
from seq2seq.training.bounds.budget import Budget, epochs_done
from seq2seq.training.callbacks.window_end import window_ends
from seq2seq.training.lightning_parts.run_state import RunState
from seq2seq.training.lightning_parts.task import TranslationTask
from seq2seq.training.machine.throughput import Meter

log = logging.getLogger(__name__)

_REFRESH = 0.5  # seconds between updates of the bar: each one waits for the device
_RATE_KNOWN = 5.0  # seconds after which the rate of a run is known well enough to announce the time left
# A first update that takes this many seconds, or this share of a limit of time, is slow, and is reported.
_SLOW_SECONDS = 10.0
_SLOW_SHARE = 0.1


class IntervalAverages:
    """Averages of the sums that the task keeps, over the time since they were last taken."""

    def __init__(self) -> None:
        # Sums of loss, nll and target tokens, and seconds, at the end of the last interval.
        self.last = [0.0, 0.0, 0.0, 0.0]

    def take(self, task: TranslationTask, seconds: float) -> dict[str, float]:
        """Return loss and nll per target token (nats), and target tokens/s, after `seconds` of training.

        Waits for the device.
        """
        now = [*task.train_sums.tolist()[:3], seconds]
        loss, nll, tokens, passed = (new - old for new, old in zip(now, self.last, strict=True))
        self.last = now
        # All updates may have been skipped
        share = 1 / tokens if tokens else math.nan
        return {"loss": loss * share, "nll": nll * share, "tokens_per_second": tokens / max(passed, 1e-9)}


class Pace:
    """Pace of a run between its last two marks, or since the first: the load of a machine changes.

    Args:
        seconds: Time at which the first interval begins.
        share: Used share of the run at that time.
    """

    def __init__(self, seconds: float, share: float) -> None:
        self._marks = deque([(seconds, share)], maxlen=2)

    def mark(self, seconds: float, share: float) -> None:
        """End an interval, such as the updates from one validation to the next."""
        self._marks.append((seconds, share))

    def left(self, seconds: float, share: float) -> float | None:
        """Return the seconds to the end of the run, None if they are unknown."""
        # Whole intervals, each with its validation, once there is one
        (began, begun), (ends, end) = [*self._marks, (seconds, share)][:2]
        return (ends - began) * (1 - share) / (end - begun) if end > begun else None


class ProgressLog(L.Callback):
    """Callback that shows and logs tokens/s, loss, learning rate, time left and the scores of validations."""

    def __init__(self, state: RunState, console: Console) -> None:
        self.state = state
        self.settings = state.settings
        self.console = console
        self.watch = state.budget.training
        # Rows of metrics follow updates and the bar follows seconds, so each has its own intervals.
        self._for_log = IntervalAverages()
        self._for_bar = IntervalAverages()
        self._shown = 0.0
        self._pace = Pace(0.0, 0.0)
        self._began = 0.0  # seconds at the end of the first update of this part
        self._tokens = 0.0  # target tokens before this part of the run
        self._started = False  # the first update of this part is done
        self._announced = state.settings.dry_run  # the time left was printed; a dry run needs no estimate
        self._logged_step = 0
        self._meter_state: dict[str, Any] | None = None  # saved state of the meter, until the meter is made
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the watch and, on a terminal, the bar; report where a resumed run continues."""
        assert isinstance(pl_module, TranslationTask)
        budget = self.state.budget
        # A frozen weight saves a part of the backward pass, which FLOPs of the whole model would count
        whole = all(weight.requires_grad for weight in pl_module.model.parameters())
        self.state.meter = Meter(
            pl_module.description["model"] if whole else None,
            device=pl_module.device,
            dtype=torch.bfloat16 if "bf16" in str(trainer.precision) else torch.float32,
            passes=2 if pl_module.optim.r_drop else 1,
        )
        if self._meter_state:
            self.state.meter.load(self._meter_state)
        # The bar skips the sums of an earlier part; the log continues from them, because its rows continue.
        self._for_bar.take(pl_module, self.watch.seconds)
        self._tokens = float(pl_module.train_sums[2])
        share = budget.used_share(trainer)
        self._pace = Pace(budget.clock.seconds, share)
        if trainer.global_step and share < 1 and not budget.ended_by:
            log.info(
                "continuing at update %s%s: %.0f%% of the run is done, after %s of training and validation",
                f"{trainer.global_step:,}", _epoch(trainer, ", "), 100 * share, clock(budget.clock.seconds),
            )  # fmt: skip
        loader = trainer.train_dataloader
        assert loader is not None
        if loader.num_workers:
            # The CPU time of data workers is unknown, like the time of other ranks
            self.watch.load(self.watch.seconds)
        self.watch.start()
        if self.console.is_terminal:
            self._bar = Progress(
                "{task.description}", BarColumn(bar_width=24), "{task.percentage:>3.0f}%", "{task.fields[left]} left",
                console=self.console, auto_refresh=False,
            )  # fmt: skip
            self._task = self._bar.add_task("starting", total=1.0, left="?")
            self._bar.start()

    def on_train_batch_start(self, *_: Any) -> None:
        """Restart the watch, which a validation or a save has stopped."""
        self.watch.start()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log every `log_steps` updates, and show progress every few seconds."""
        assert self.state.meter is not None
        assert isinstance(pl_module, TranslationTask)
        self.state.meter.add(batch)
        # Sums and gradient norm belong to whole updates.
        if not window_ends(trainer, batch_idx):
            return
        budget = self.state.budget
        if not self._started:
            self._started = True
            # The first update does not count for the rate.
            self._began = budget.clock.seconds
            self._pace = Pace(self._began, budget.used_share(trainer))
            self.state.start_tokens += float(pl_module.train_sums[2]) - self._tokens
            if text := slow_start(budget):
                self._print(text)
        if trainer.global_step % self.settings.log_steps == 0:
            self._log(trainer, pl_module)
        if not self._announced and budget.clock.seconds - self._began >= _RATE_KNOWN:
            self._announced = True
            self._print(f"about {self._left(trainer)} left of {_bounds(self.settings)}")
        wait = _REFRESH if self._bar else self.settings.line_time
        if time.monotonic() - self._shown >= wait:
            self._show(trainer, pl_module)
            # Read the time after `_show`, which waits for the device.
            self._shown = time.monotonic()

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop the watch of training, and log a row about training for every validation."""
        assert isinstance(pl_module, TranslationTask)
        # Updates that the device has still queued are training, too
        pl_module.train_sums.tolist()
        self.watch.stop()
        # This update may have its row already.
        if trainer.global_step != self._logged_step:
            self._log(trainer, pl_module)
        if self._bar:
            self._bar.update(self._task, description=f"step {trainer.global_step:,}  validating")
            self._bar.refresh()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Show and log the scores."""
        assert isinstance(pl_module, TranslationTask)
        assert pl_module.evaluation is not None
        result = pl_module.evaluation
        self._pace.mark(self.state.budget.clock.seconds, self.state.budget.used_share(trainer))
        step = trainer.global_step
        for logger in trainer.loggers:
            logger.log_metrics({f"val/{name}": value for name, value in result.numbers().items()}, step)
        # `RecordScores` is called later: the best score may be this one.
        best = max(self.state.best.bleu, result.bleu.value)
        self._print(
            f"[bold]validation[/] at update {step:,}: BLEU {result.bleu.value:.2f}  chrF {result.chrf.value:.2f}  "
            f"loss {result.loss:.3f}  perplexity {result.perplexity:.2f}  (best {best:.2f})"
        )

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop the watch, close the bar, and keep the tokens of the whole run for results.json."""
        assert isinstance(pl_module, TranslationTask)
        self.watch.stop()
        self.state.target_tokens = float(pl_module.train_sums[2])
        self._close()

    def on_exception(self, *_: Any) -> None:
        """Close the bar."""
        self._close()

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run continues from."""
        return {
            "seconds": self.watch.seconds,
            # The CPU time of this process alone: with several processes, the time of the run is unknown.
            "cpu_seconds": math.nan if self.settings.processes > 1 else self.watch.cpu_seconds,
            "epochs": self.state.epochs,
            "start_tokens": self.state.start_tokens,
            "logged_step": self._logged_step,
            "logged": self._for_log.last,
            "meter": self.state.meter.state() if self.state.meter else self._meter_state,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from an earlier part of the run."""
        self.watch.load(state_dict["seconds"], state_dict["cpu_seconds"])
        self.state.epochs = state_dict["epochs"]
        self.state.start_tokens = state_dict["start_tokens"]
        self._logged_step = state_dict["logged_step"]
        self._for_log.last = state_dict["logged"]
        # Lightning restores callbacks before `on_train_start` builds the meter.
        self._meter_state = state_dict["meter"]

    def _print(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)

    def _close(self) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None

    def _log(self, trainer: L.Trainer, task: TranslationTask) -> None:
        assert self.state.meter is not None
        self._logged_step = trainer.global_step
        self.state.epochs = epochs_done(trainer)
        # Rates of training alone; `seconds` counts validations too, as budgets do.
        rates = self._for_log.take(task, self.watch.seconds) | self.state.meter.take(self.watch.seconds)
        values = {f"train/{key}": value for key, value in rates.items()} | {
            "train/grad_norm": float(task.grad_norm),
            "lr": _rate(trainer),
            "epoch": self.state.epochs,
            "seconds": self.state.budget.clock.seconds,
            "train/seconds": self.watch.seconds,
            "train/seconds_after_start": self.state.budget.trained_seconds,
        }
        if self.state.cpu_seconds is not None:
            values["train/cpu_seconds"] = self.state.cpu_seconds
        for logger in trainer.loggers:
            logger.log_metrics(values, trainer.global_step)

    def _show(self, trainer: L.Trainer, task: TranslationTask) -> None:
        now = self._for_bar.take(task, self.watch.seconds)
        share = self.state.budget.used_share(trainer)
        left = self._left(trainer)
        text = (
            f"step {trainer.global_step:,}{_epoch(trainer, '  ')}  loss {now['loss']:.3f}  "
            f"lr {_rate(trainer):.2e}  {now['tokens_per_second']:,.0f} tokens/s"
        )
        if self._bar:
            self._bar.update(self._task, completed=share, description=text, left=left)
            self._bar.refresh()
        else:
            self._print(f"{100 * share:3.0f}%  {text}  {left} left")

    def _left(self, trainer: L.Trainer) -> str:
        """Estimate the time to the end of the run from its rate; "?" if it is unknown."""
        left = self._pace.left(self.state.budget.clock.seconds, self.state.budget.used_share(trainer))
        return "?" if left is None else clock(left)


def slow_start(budget: Budget) -> str | None:
    """Say how long the first update took if it was slow; else return None."""
    limit = budget.settings.max_time
    took = budget.first_update_seconds
    if took < min(_SLOW_SECONDS, _SLOW_SHARE * (limit or math.inf)):
        return None
    text = f"the first update took {took:.1f} s"
    if limit is None:
        return text
    end = "" if budget.clock.seconds < limit else ": the run ends after it; raise trainer.max_time"
    return f"{text} of trainer.max_time={limit:g} s{end}"


def _bounds(settings: TrainerSettings) -> str:
    """Name the limits of a run, as in "10 epochs, 0:30:00 at most"."""
    counts = {"epoch": settings.max_epochs, "update": settings.max_steps}
    words = [f"{count:,} {name}{'s' if count > 1 else ''}" for name, count in counts.items() if count]
    if settings.max_time:
        words.append(f"{clock(settings.max_time)} at most")
    return ", ".join(words)


def _epoch(trainer: L.Trainer, gap: str) -> str:
    """Return the epochs that are done, after `gap`; "" for a stream, which has none."""
    done = epochs_done(trainer)
    return f"{gap}epoch {done:.2f}" if done else ""


def _rate(trainer: L.Trainer) -> float:
    return float(trainer.optimizers[0].param_groups[0]["lr"])
