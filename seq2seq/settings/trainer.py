"""Settings of the section `trainer`: bounds, validation, checkpoints, hardware and logging."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from seq2seq.settings.declare import SET, Section, setting

PRECISIONS = ("auto", "32", "tf32", "bf16", "bf16-true")
ACCELERATORS = ("auto", "cpu", "gpu")
STRATEGIES = ("ddp", "fsdp")
# A run without any of these bounds ends after DEFAULT_EPOCHS.
_BOUNDS = ("max_steps", "max_epochs", "max_time")
DEFAULT_EPOCHS = 6


@dataclasses.dataclass(frozen=True)
class LightningSettings(Section):
    """Arguments that are passed on to Lightning's Trainer."""

    section: ClassVar[str] = "trainer.lightning"

    detect_anomaly: bool = setting(False, "name the operation whose gradient is NaN; slow")
    deterministic: bool | str = setting(False, "deterministic algorithms: true, or warn", words=("warn",))
    enable_model_summary: bool = setting(False, "print the model's layers and their parameters at the start")
    inference_mode: bool = setting(True, "validate and test under torch.inference_mode; false: under torch.no_grad")
    sync_batchnorm: bool = setting(False, "share statistics of BatchNorm layers in your mixer between processes")


def _does_not_grow(trainer: TrainerSettings) -> str:
    grows = trainer.accumulate_start != trainer.accumulate
    return "" if grows else "without growth: leave it out, or set trainer.accumulate to a multiple of it"


def _by_updates(trainer: TrainerSettings) -> str:
    by_clock = trainer.val_time or not (trainer.max_steps or trainer.max_epochs)
    return "" if by_clock else "in a run by updates or epochs: leave it out, or set trainer.val_time"


@dataclasses.dataclass(frozen=True)
class TrainerSettings(Section):
    """Settings of a training run; durations are in seconds.

    Runs with the same seed are identical if updates or epochs end them. A run that max_time ends depends on the speed
    of the machine.
    """

    section: ClassVar[str] = "trainer"

    # Bounds and updates.
    max_steps: int | None = setting(None, "updates after which the run ends", least=1)
    max_epochs: int | None = setting(None, f"epochs of the run; {DEFAULT_EPOCHS} if it has no limit", least=1)
    max_time: float | None = setting(None, "time of training and validation, such as 10m or 1h30m", duration=True)
    accumulate: int = setting(1, "micro-batches per update", least=1)
    accumulate_start: int | None = setting(
        None, "micro-batches of the first updates, a divisor of accumulate; null = off", least=1, idle=_does_not_grow
    )
    accumulate_share: float = setting(
        0.5, "share of the run with accumulate_start", above=0, below=1, needs={"accumulate_start": SET}
    )
    # Validation.
    val_steps: int | None = setting(None, "updates between validations; every epoch if val_time is null, too", least=1)
    val_time: float | None = setting(None, "time between validations", duration=True)
    val_sentences: int | None = setting(None, "sentences of a validation, spread over the set; null = all", least=1)
    val_beam_size: int = setting(1, "beam of a validation; search.beam_size is the test set's", least=1, most=1000)
    val_max_len_ratio: float = setting(1.3, "search.max_len_ratio of validations, at most that of the test", least=0)
    val_max_len_extra: int = setting(10, "search.max_len_extra of validations, at most that of the test", least=1)
    val_share: float = setting(0.05, "maximum share of the time for validations", above=0, most=1, idle=_by_updates)
    patience: int | None = setting(None, "validations without a better BLEU before the run stops; null = off", least=1)
    # Checkpoints and sweeps.
    save_time: float | None = setting("10m", "time between writes of last.ckpt, besides validations", duration=True)
    keep_last: int | None = setting(None, "number of latest validations to keep, as step-<update>.safetensors", least=1)
    keep_best: int | None = setting(None, "number of best validations to keep, as top-<update>.safetensors", least=1)
    median_stop: int | None = setting(
        None, "sweeps: stop a job below the median of at least this many others; null = off", least=1
    )
    samples: int = setting(3, "translations shown at each validation", least=0)
    # Hardware.
    precision: str = setting(
        "auto", "bf16: autocast; bf16-true: bf16 weights; auto: bf16 if the machine has it, or 32", choices=PRECISIONS
    )
    bf16_residual: bool | str = setting(
        "auto", "with precision=bf16: residual stream and layer norms in bf16; auto: on GPUs", words=("auto",)
    )
    accelerator: str = setting("auto", "device; auto is a GPU if the machine has one", choices=ACCELERATORS)
    devices: int = setting(1, "processes per machine, each with its own device", least=1, most=1024)
    nodes: int = setting(1, "machines; torchrun or SLURM starts the processes there", least=1, most=2**16)
    threads: int | None = setting(
        None, "CPU threads; null: OMP_NUM_THREADS, else one or all, whichever is faster", least=1, most=1024
    )
    strategy: str = setting("ddp", "for several processes: ddp copies the model, fsdp shards it", choices=STRATEGIES)
    graphs: bool | str = setting(
        "auto", "replay captured passes on a GPU, for each shape of batches; auto: if possible", words=("auto",)
    )
    fused: bool = setting(False, "GPU kernels for short attention and for a sublayer's end (not measured yet)")
    checkpoint_activations: bool = setting(False, "recompute activations in the backward pass: less memory, more time")
    # Weights, faults and logs.
    ema: float | None = setting(
        None,
        "decay of a moving average of the weights, such as 0.999; the average is validated and saved",
        above=0,
        below=1,
    )
    max_skipped: int = setting(10, "updates with a non-finite gradient that are skipped before the run ends", least=0)
    profile: bool = setting(False, "profile some updates: write a table and a trace")
    log_steps: int = setting(50, "updates between rows of metrics.csv", least=1)
    line_time: float = setting("10s", "time between lines of progress without a terminal", duration=True)
    dry_run: bool = setting(False, "try all stages: 2 updates, then validation and test of 8 sentences")
    test: bool = setting(True, "score the test set with the best checkpoint at the end")
    lightning: LightningSettings = setting(LightningSettings(), "arguments of Lightning's Trainer")

    def __post_init__(self) -> None:
        super().__post_init__()
        if all(getattr(self, key) is None for key in _BOUNDS):
            object.__setattr__(self, "max_epochs", DEFAULT_EPOCHS)
        if self.accumulate % self.first_window:
            raise ValueError(
                f"trainer.accumulate_start={self.accumulate_start} must divide trainer.accumulate={self.accumulate}"
            )

    @property
    def first_window(self) -> int:
        """Micro-batches of the first update on each process."""
        return self.accumulate_start or self.accumulate

    @property
    def processes(self) -> int:
        """Processes over all machines, each with one device."""
        return self.devices * self.nodes

    @property
    def sharded(self) -> bool:
        """True if each process holds a shard of the model."""
        return self.strategy == "fsdp" and self.processes > 1
