"""Choose the device and the precision of a run by what the machine has."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from typing import Any

import torch
from torch import nn

from seq2seq.settings.trainer import TrainerSettings

log = logging.getLogger(__name__)


def resolve_accelerator(settings: TrainerSettings) -> str:
    """Return `cpu` or `gpu`.

    Raises:
        ValueError: A GPU is requested and missing, or there are fewer than trainer.devices.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if settings.accelerator == "gpu" and gpus == 0:
        raise ValueError("trainer.accelerator=gpu, but torch finds no GPU here; use trainer.accelerator=cpu or auto")
    accelerator = settings.accelerator
    if accelerator == "auto":
        accelerator = "gpu" if gpus else "cpu"
    if accelerator == "gpu" and settings.devices > gpus:
        raise ValueError(f"trainer.devices={settings.devices}, but there are {gpus} GPUs; lower trainer.devices")
    return accelerator


def resolve_precision(precision: str, accelerator: str) -> str:
    """Return Lightning's name of a precision: float32, or bf16 autocast over float32 weights. Log `bf16_note`.

    tf32 is float32 whose matrix products and recurrent layers may be rounded to TF32. auto is bf16 where the hardware
    has it.
    """
    if note := bf16_note(precision, accelerator):
        log.warning(note)
    if precision == "auto":
        precision = "bf16" if has_bf16(accelerator) else "32"
    # tf32 is 32-true for Lightning: `train` sets torch's matmul precision.
    return {"bf16": "bf16-mixed", "bf16-true": "bf16-true"}.get(precision, "32-true")


def bf16_note(precision: str, accelerator: str) -> str | None:
    """Return what a GPU without bf16 makes of trainer.precision, None where there is nothing to say."""
    if accelerator != "gpu" or precision not in ("auto", "bf16", "bf16-true") or has_bf16(accelerator):
        return None
    name = torch.cuda.get_device_name()
    if precision == "auto":
        return f"{name} has no bf16: trainer.precision=auto trains in float32"
    return f"{name} has no bf16, which torch emulates: trainer.precision=32 is faster"


def has_bf16(accelerator: str) -> bool:
    """Return True if matrix products in bfloat16 run in hardware.

    On a CPU that is AMX or AVX-512 BF16, on a GPU Ampere and later.
    """
    if accelerator == "gpu":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # Private names of torch, absent from some versions; absent counts as no.
    checks = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return any(getattr(torch.cpu, name, lambda: False)() for name in checks)


# Parameters of glibc's mallopt (malloc.h).
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def keep_freed_memory(accelerator: str) -> None:
    """Keep the memory that tensors on a CPU free, for the tensors after them, instead of returning it to the system.

    glibc takes every block above 32 MiB from the system anew, and returns the free end of its heap: each step of
    training touches fresh pages again, up to a fifth of a step's time. Without effect where the C library is another
    one, or where a variable of the environment (MALLOC_TRIM_THRESHOLD_ and the like) sets malloc.

    Args:
        accelerator: "cpu" or "gpu", where nothing is changed.
    """
    chosen = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if accelerator != "cpu" or chosen or sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        # All blocks in the heap, whose free end is never returned
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, -1)


def src_multiple(accelerator: str, positions: int | None) -> int:
    """Return what the padded width of a source must be a multiple of: 8 on a GPU, 1 on a CPU.

    On a GPU, attention reads a mask without copying it only if its rows have a multiple of 8 entries, and torch.compile
    makes separate graphs for widths that 8 divides and for others.

    Args:
        accelerator: "cpu" or "gpu".
        positions: Positions of the model, None for any number. If 8 does not divide them the result is 1, so that no
            source is padded beyond them.
    """
    return 8 if accelerator == "gpu" and (positions or 0) % 8 == 0 else 1


def require_sharding(settings: TrainerSettings) -> None:
    """Raise ValueError if this torch cannot shard a model as `settings` ask."""
    if not settings.sharded:
        return
    # Imported late: a run on one process needs none of it.
    from torch.distributed.fsdp import FSDPModule

    # `make_parts` calls it.
    if not hasattr(FSDPModule, "reset_iter_state"):  # after a validation
        raise ValueError(f"trainer.strategy=fsdp needs torch 2.13, not {torch.__version__}; use trainer.strategy=ddp")


def require_packing(model: nn.Module, accelerator: str, precision: str) -> None:
    """Raise ValueError if a mixer of `model` is to train without masks (`packed`), and this machine cannot do that.

    Args:
        accelerator: "cpu" or "gpu".
        precision: Lightning's name of it.
    """
    packed = [module for module in model.modules() if getattr(module, "packed", False)]
    if not packed:
        return
    # Imported late: it registers operators of torch, which other runs do not need.
    from seq2seq.kernels.attention.packed import settings_obstacle

    if accelerator != "gpu" or precision == "32-true":
        names = ", ".join(sorted({type(module).__name__ for module in packed}))
        can = accelerator == "gpu" and has_bf16(accelerator)
        lacking = "bf16: set trainer.precision=bf16" if can else "a GPU with bf16"
        raise ValueError(f"packed=true of {names} needs {lacking}, or leave packed at false")
    for module in packed:
        values: Any = module
        if problem := settings_obstacle(values.dim // values.num_heads, values.dropout):
            raise ValueError(f"packed=true of {type(module).__name__}: {problem}, or leave packed at false")


def require_gpu_of_kernels(settings: TrainerSettings, accelerator: str) -> None:
    """Raise ValueError if trainer.fused is set, and the run has no GPU."""
    if settings.fused and accelerator != "gpu":
        raise ValueError("trainer.fused=true needs a GPU, and this run has none: leave trainer.fused at false")


def require_autocast(settings: TrainerSettings, precision: str) -> None:
    """Raise ValueError if trainer.bf16_residual=true and `precision`, Lightning's name, is not autocast to bf16."""
    if settings.bf16_residual is True and precision != "bf16-mixed":
        raise ValueError(
            f"trainer.bf16_residual=true needs autocast to bf16, and trainer.precision={settings.precision} is "
            f"{precision} here: set trainer.precision=bf16, or leave trainer.bf16_residual at false"
        )
