"""List the hooks of the training loop in the order of their calls, and make the callbacks of a run.

Lightning runs the loop and calls the hooks below. `TranslationTask` computes; the callbacks watch, decide and save.
All decisions are made between two updates, where a run can be resumed bit for bit. A test compares this list with a
run.

Start of training:

    TranslationTask.configure_model         Shard the model, under FSDP only.
    TranslationTask.configure_optimizers    Make the optimizer and its schedule.
    TranslationTask.on_load_checkpoint      Resumed runs: restore sums, window and the position in the data.
    WarmUp.on_train_start                   Compile kernels and time one validation batch: no clock runs yet.
    ProgressLog.on_train_start              Show the bar or the first line.
    RecordScores.on_train_start             Forget the best score if its weights are gone.
    KeepBest.on_train_start                 Forget further good scores if their weights are gone.
    AverageWeights.on_train_start           Start the moving average (trainer.ema).
    Stopping.on_train_start                 Start the clock of the budget.
    Signals.on_train_start                  From here on a signal waits for the end of an update.
    Validation.on_train_start               Repeat a validation that was interrupted.
    SaveLast.on_train_start                 Count the time to the next save from here.
    TranslationTask.on_train_start          Prepare replayed passes on a GPU; set the first learning rate.
    TranslationTask.on_train_epoch_start    Set the epoch of the batches, at each epoch.

A micro-batch:

    SetResultsAside.on_train_batch_start    Before the first one: set aside results of an earlier part of the run.
    ProgressLog.on_train_batch_start        Start the watch of training time.
    WindowEnd.on_train_batch_start          Correct Lightning's epoch count after a resume at the end of an epoch.
    TranslationTask.training_step           Seed dropout, compute the summed loss; replayed passes do the backward too.
    TranslationTask.optimizer_zero_grad     First micro-batch of a window: drop the old gradients.
    TranslationTask.backward                Add the gradients of this micro-batch.

An update, with the last micro-batch of an accumulation window:

    TranslationTask.on_before_optimizer_step    Divide gradients by the window's tokens over all ranks, clip, judge.
    Optimizer.step                              Update the weights.
    TranslationTask.lr_scheduler_step           Count the update, set the next learning rate and accumulation window.

After each micro-batch, with decisions after each window:

    ProgressLog.on_train_batch_end          Write a row of metrics, if one is due.
    AverageWeights.on_train_batch_end       Add the new weights to the average, after an update.
    WindowEnd.on_train_batch_end            After an update: let all ranks agree on the decisions below, in order.
    Stopping.decide                         Stop, if the budget is spent.
    Validation.decide                       Validate, if a validation is due or the run is about to stop.
    Signals.decide                          Save and end the run, if a signal arrived.
    SaveLast.decide                         Write last.ckpt, if trainer.save_time has passed.

A validation, which follows the decision at once:

    ProgressLog.on_validation_start         Stop the watch of training time.
    AverageWeights.on_validation_start      Put the average in place of the weights.
    Validation.on_validation_start          Start the watch of validations.
    TranslationTask.on_validation_epoch_start
    TranslationTask.validation_step         Decode a batch, and sum its losses.
    Signals.on_validation_batch_end         Obey a signal between two batches.
    TranslationTask.on_validation_epoch_end Gather the translations of all ranks and score them.
    ProgressLog.on_validation_end           Show and log the scores.
    LogSamples.on_validation_end            Print and log a few translations; draw the attention of one.
    RecordScores.on_validation_end          Compare with the best score; save the best checkpoint, if this is the best.
    KeepBest.on_validation_end              Save the weights, if the score is among the best (trainer.keep_best).
    AverageWeights.on_validation_end        Put the trained weights back.
    Stopping.on_validation_end              Stop, if the score has not improved for trainer.patience validations.
    Validation.on_validation_end            Record that this update is validated.
    MedianStop.on_validation_end            Stop a job of a sweep that is worse than the median (trainer.median_stop).
    KeepLast.on_validation_end              Save the weights (trainer.keep_last).
    SaveLast.on_validation_end              Write last.ckpt, with the state of everything above.

End of training, and the test:

    ProgressLog.on_train_end                Close the bar.
    Stopping.on_train_end                   Stop the clock: the test is not part of the budget.
    Signals.on_train_end                    Obey a signal that arrived since the last validation.
    TranslationTask.on_train_end            Free the memory of replayed passes.
    Signals.on_test_start                   Handle signals again.
    TranslationTask.on_test_epoch_start     Prepare to decode; `write_report` has loaded the best weights.
    TranslationTask.test_step               Decode a batch, and sum its losses.
    Signals.on_test_batch_end               Obey a signal between two batches.
    TranslationTask.on_test_epoch_end       Score the test set.
    Signals.on_test_end                     A signal during the last batch ends the run once results are written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import lightning as L
from rich import get_console
from rich.console import Console

from seq2seq.system import ranks
from seq2seq.training.callbacks.checkpointing import KeepBest, KeepLast, SaveLast, SetResultsAside
from seq2seq.training.callbacks.ema import AverageWeights
from seq2seq.training.callbacks.median_stopping import MedianStop
from seq2seq.training.callbacks.profiler import Profile
from seq2seq.training.callbacks.progress import ProgressLog
from seq2seq.training.callbacks.samples import LogSamples
from seq2seq.training.callbacks.signals import Signals
from seq2seq.training.callbacks.stopping import Stopping
from seq2seq.training.callbacks.validation import RecordScores, Validation
from seq2seq.training.callbacks.warm_up import WarmUp
from seq2seq.training.callbacks.window_end import WindowEnd
from seq2seq.training.lightning_parts.run_state import RunState
from seq2seq.training.lightning_parts.task import TranslationTask

if TYPE_CHECKING:
    from seq2seq.training.run import TrainingRun

# Names under which callbacks of a run save their states.
STATE_KEYS = frozenset(
    callback.__qualname__
    for callback in (ProgressLog, RecordScores, KeepBest, AverageWeights, Stopping, Validation, MedianStop)
)


def make_callbacks(run: TrainingRun, state: RunState, task: TranslationTask) -> list[L.Callback]:
    """Make the callbacks of a run, which share their results through `state`.

    In every hook, Lightning calls the callbacks in the order of the list; the comments explain this order. The user's
    callbacks come first: checkpoints that a hook writes include their state after the hook, and at the end of a
    validation they still see the averaged weights. Lightning itself moves a Checkpoint, such as ModelCheckpoint, to
    the end.
    """
    folder, plan, settings = run.folder, run.plan, state.settings
    # A resumed run must agree with these.
    origin = {
        "settings": plan.config,
        "corpus": run.prepared.fingerprint,
        "new": sorted(run.new),
        "start_digest": run.start_digest,
    }
    # Several callbacks share these objects. `LogHandler` prints on the same console.
    console = get_console() if ranks.is_first_process() else Console(quiet=True)
    average = AverageWeights(task.model, settings.ema) if settings.ema else None
    save_last = SaveLast(folder, state, average, origin)
    stopping = Stopping(state)
    validation = Validation(state, save_last)
    signals = Signals(state, save_last)
    # `signals` decides after `validation`, so that a resumed run makes a validation that was due.
    deciders = [stopping, validation, signals, save_last]
    callbacks: list[L.Callback | None] = [
        SetResultsAside(folder, plan.config_yaml),
        # Before the clocks start.
        WarmUp(state.budget),
        # Before the callbacks that write checkpoints, so that these include its state after this update.
        ProgressLog(state, console),
        LogSamples(settings.samples, console=console),
        Profile(folder.path, updates=settings.max_steps) if settings.profile else None,
        # Before `average` puts the trained weights back, so that these two save the validated weights.
        RecordScores(folder, state),
        KeepBest(folder, settings.keep_best) if settings.keep_best else None,
        # After the best weights are saved, and before last.ckpt is written with the trained weights.
        average,
        # After `RecordScores` has compared the score, and before last.ckpt records whether the run has ended.
        stopping,
        # After `stopping` has started or stopped the clock.
        signals,
        # After clock, progress and signals are ready, since it may repeat an interrupted validation at once.
        validation,
        # After `RecordScores` has compared the score.
        MedianStop(state, plan.job) if plan.job and settings.median_stop else None,
        # Before last.ckpt records that this validation is done.
        KeepLast(folder, settings.keep_last) if settings.keep_last else None,
        # After all callbacks with a state, so that last.ckpt has their states after the validation.
        save_last,
        # After the average includes this update's weights and `ProgressLog` has written its row.
        WindowEnd(deciders, state.budget.agreement),
    ]
    return [callback for callback in callbacks if callback]
