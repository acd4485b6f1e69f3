"""What conf/trainer says, checked: budget, validation, precision and device."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import torch

PRECISIONS = ("auto", "32", "tf32", "bf16", "bf16-true")
ACCELERATORS = ("auto", "cpu", "gpu")
STRATEGIES = ("ddp", "fsdp")
# max_time of a run that nothing bounds.
DEFAULT_TIME = "4m"


@dataclasses.dataclass(frozen=True)
class TrainerSettings:
    """The settings of a training run; durations are in seconds after `from_config`.

    Raises ValueError for a value outside its range, and when nothing bounds the run.
    """

    max_steps: int | None = None
    max_epochs: int | None = None
    max_time: float | None = None
    accumulate: int = 1
    val_steps: int | None = None
    val_time: float | None = None
    val_sentences: int | None = None
    val_beam_size: int = 1
    patience: int | None = None
    save_time: float | None = 600.0
    keep_last: int | None = None
    keep_best: int | None = None
    median_stop: int | None = None
    samples: int = 3
    precision: str = "auto"
    accelerator: str = "auto"
    devices: int = 1
    nodes: int = 1
    strategy: str = "ddp"
    compile: bool = False
    checkpoint_activations: bool = False
    ema: float | None = None
    max_skipped: int = 10
    profile: bool = False
    log_steps: int = 50
    line_time: float = 10.0
    test: bool = True

    def __post_init__(self) -> None:
        if self.max_steps is None and self.max_epochs is None and self.max_time is None:
            raise ValueError("nothing bounds the run: set trainer.max_steps, trainer.max_epochs or trainer.max_time")
        for key in ("max_steps", "max_epochs", "accumulate", "val_steps", "val_sentences", "val_beam_size", "patience",
                    "devices", "nodes", "log_steps", "keep_last", "keep_best", "median_stop"):  # fmt: skip
            value = getattr(self, key)
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"trainer.{key}={value} must be a whole number, at least 1")
        for key in ("samples", "max_skipped"):
            value = getattr(self, key)
            if type(value) is not int or value < 0:
                raise ValueError(f"trainer.{key}={value} must be a whole number, at least 0")
        if self.ema is not None and not (isinstance(self.ema, float) and 0 < self.ema < 1):
            raise ValueError(f"trainer.ema={self.ema} must lie between 0 and 1, 0.999 for example; null = off")
        for key, names in (("precision", PRECISIONS), ("accelerator", ACCELERATORS), ("strategy", STRATEGIES)):
            if getattr(self, key) not in names:
                raise ValueError(f"trainer.{key}={getattr(self, key)} is unknown; choose one of {', '.join(names)}")
        if self.sharded:
            _require_sharding()

    @property
    def processes(self) -> int:
        """Processes over all machines, each with one device."""
        return self.devices * self.nodes

    @property
    def sharded(self) -> bool:
        """Whether each process has a part of the model."""
        return self.strategy == "fsdp" and self.processes > 1

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> TrainerSettings:
        """Build the settings from the plain dict of conf/trainer; ValueError names an unknown key or a bad duration."""
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(config) - known)
        if unknown:
            raise ValueError(f"unknown setting trainer.{unknown[0]}; known: {', '.join(sorted(known))}")
        values = bounded(config)
        values["precision"] = str(config.get("precision", "auto"))
        for key in ("max_time", "val_time", "save_time", "line_time"):
            if values.get(key) is not None:
                values[key] = seconds(values[key], f"trainer.{key}")
        return cls(**values)


def bounded(config: Mapping[str, Any]) -> dict[str, Any]:
    """The plain dict of conf/trainer, with max_time=4m where neither max_steps, max_epochs nor max_time is set."""
    free = all(config.get(key) is None for key in ("max_steps", "max_epochs", "max_time"))
    return {**config, **({"max_time": DEFAULT_TIME} if free else {})}


def _require_sharding() -> None:
    from torch.distributed.fsdp import FSDPModule

    if not hasattr(FSDPModule, "reset_iter_state"):  # after a validation
        raise ValueError(f"trainer.strategy=fsdp needs torch 2.13, not {torch.__version__}; use trainer.strategy=ddp")


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(duration: str | int | float, key: str = "duration") -> float:
    """Seconds of `90`, `90s`, `10m`, `1h30m`, `2d`, `MM:SS`, `HH:MM:SS` or `DD:HH:MM:SS`; ValueError for the rest."""
    text = str(duration).strip().lower()
    total = 0.0
    if re.fullmatch(r"\d+(\.\d+)?", text):
        total = float(text)
    elif re.fullmatch(r"(\d+(\.\d+)?[smhd])+", text):
        total = sum(float(n) * _UNITS[unit] for n, _, unit in re.findall(r"(\d+(\.\d+)?)([smhd])", text))
    elif re.fullmatch(r"\d+(:\d+){1,3}", text):
        for weight, part in zip((1, 60, 3600, 86400), reversed(text.split(":")), strict=False):
            total += weight * int(part)
    if total <= 0:
        raise ValueError(f"{key}={duration} is no duration; write 90s, 10m, 1h30m or DD:HH:MM:SS")
    return total


def resolve_accelerator(settings: TrainerSettings) -> str:
    """`cpu` or `gpu`; ValueError when a GPU is asked for that is not there."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if settings.accelerator == "gpu" and gpus == 0:
        raise ValueError("trainer.accelerator=gpu, but torch finds no GPU here; use trainer.accelerator=cpu or auto")
    kind = settings.accelerator if settings.accelerator != "auto" else ("gpu" if gpus else "cpu")
    if kind == "gpu" and settings.devices > gpus:
        raise ValueError(f"trainer.devices={settings.devices}, but there are {gpus} GPUs; lower trainer.devices")
    return kind


def resolve_precision(precision: str, accelerator: str) -> str:
    """Lightning's name for the precision: float32, or bf16 autocast over float32 weights where the hardware has it.

    tf32 is float32 whose matrix products and recurrent layers may be rounded to TF32.
    """
    if precision == "auto":
        precision = "bf16" if has_bf16(accelerator) else "32"
    return {"bf16": "bf16-mixed", "bf16-true": "bf16-true"}.get(precision, "32-true")


def has_bf16(accelerator: str) -> bool:
    """Whether matrix products in bfloat16 run in hardware: AMX or AVX-512 BF16 on a CPU, Ampere and later on a GPU."""
    if accelerator == "gpu":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    checks = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return any(getattr(torch.cpu, name, lambda: False)() for name in checks)
