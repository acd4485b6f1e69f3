"""End a run cleanly on Ctrl-C, on kill, and on the signals with which clusters announce the end of a job."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import lightning as L

from seq2seq.system.ranks import SIGNALS
from seq2seq.training.callbacks.checkpointing import SaveLast
from seq2seq.training.lightning_parts.run_state import RunState


class TrainingInterrupt(BaseException):
    """Signal that ended the run; like KeyboardInterrupt, it is not caught by `except Exception`."""

    def __init__(self, signum: int, where: str = "") -> None:
        super().__init__(f"{signal.Signals(signum).name} {where}".rstrip())
        self.signum = signum


def _interrupt(signum: int, frame: Any) -> NoReturn:
    raise TrainingInterrupt(signum)


@contextlib.contextmanager
def interruptible(handler: Callable[[int, Any], Any] | signal.Handlers = _interrupt) -> Iterator[None]:
    """Handle SIGNALS in this block, by raising TrainingInterrupt: Lightning exits with 1 on a KeyboardInterrupt."""
    # Python sets handlers in the main thread alone.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = {signum: signal.signal(signum, handler) for signum in SIGNALS}
    try:
        yield
    finally:
        for signum, before in earlier.items():
            signal.signal(signum, before)


class Signals(L.Callback):
    """Callback that ends a run after a signal to any rank: between two windows, or two batches of a validation or test.

    Lightning's own handler of SIGTERM would send the other ranks a message for which they do not wait.
    """

    def __init__(self, state: RunState, last: SaveLast) -> None:
        self.state = state
        self.last = last
        self.agreement = state.budget.agreement
        self._signum = 0
        self._handlers = contextlib.ExitStack()

    def on_train_start(self, *_: Any) -> None:
        """Replace the handlers of SIGNALS."""
        self._handlers.enter_context(interruptible(self._note))

    def on_test_start(self, *_: Any) -> None:
        """Replace the handlers of SIGNALS."""
        self.on_train_start()

    def votes(self, trainer: L.Trainer) -> Sequence[float]:
        """Return the signal that arrived, 0 for none."""
        return (float(self._signum),)

    def decide(self, trainer: L.Trainer, agreed: Sequence[float], *, save: bool = True) -> None:
        """Save and end the run if any rank received a signal: it can be resumed exactly from here."""
        if agreed[0]:
            self._signum = 0
            if save:
                self.last.save(trainer)
            raise TrainingInterrupt(int(agreed[0]), f"at update {trainer.global_step}")

    def on_validation_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        """Obey a signal between two batches of a validation, which may be long."""
        self.decide(trainer, self.agreement.maxima(self.votes(trainer)))

    def on_test_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        """Obey a signal between two batches of the test; there is nothing to save."""
        if batch_idx + 1 < sum(trainer.num_test_batches):
            self.decide(trainer, self.agreement.maxima(self.votes(trainer)), save=False)

    def on_exception(self, *_: Any) -> None:
        """Restore the handlers."""
        self._handlers.close()

    def on_train_end(self, trainer: L.Trainer, *_: Any) -> None:
        """Restore the handlers; a signal that arrived after the last validation ends the run before its test."""
        self._handlers.close()
        self.decide(trainer, self.agreement.maxima(self.votes(trainer)), save=False)

    def on_test_end(self, trainer: L.Trainer, *_: Any) -> None:
        """Restore the handlers; a signal during the last batch ends the run when its results are written."""
        self._handlers.close()
        self.state.signum = int(self.agreement.maxima(self.votes(trainer))[0])

    def _note(self, signum: int, frame: Any) -> None:
        # Only noted: a handler may run in the middle of an update.
        self._signum = signum
        # A second Ctrl-C does not wait for the end of the window.
        signal.signal(signal.SIGINT, _interrupt)
