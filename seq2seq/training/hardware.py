"""Choose the device and the precision of a run by what the machine has."""

from __future__ import annotations

import torch

from seq2seq.config.trainer import TrainerSettings


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
    """Return Lightning's name of a precision: float32, or bf16 autocast over float32 weights.

    tf32 is float32 whose matrix products and recurrent layers may be rounded to TF32. auto is bf16 where the hardware
    has it.
    """
    if precision == "auto":
        precision = "bf16" if has_bf16(accelerator) else "32"
    # tf32 is 32-true for Lightning: `train` sets torch's matmul precision.
    return {"bf16": "bf16-mixed", "bf16-true": "bf16-true"}.get(precision, "32-true")


def has_bf16(accelerator: str) -> bool:
    """Return True if matrix products in bfloat16 run in hardware.

    On a CPU that is AMX or AVX-512 BF16, on a GPU Ampere and later.
    """
    if accelerator == "gpu":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # Private names of torch, absent from some versions; absent counts as no.
    checks = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return any(getattr(torch.cpu, name, lambda: False)() for name in checks)


def require_sharding(settings: TrainerSettings) -> None:
    """Raise ValueError if this torch cannot shard a model as `settings` ask."""
    if not settings.sharded:
        return
    # Imported late: a run on one process needs none of it.
    from torch.distributed.fsdp import FSDPModule

    # `make_parts` calls it.
    if not hasattr(FSDPModule, "reset_iter_state"):  # after a validation
        raise ValueError(f"trainer.strategy=fsdp needs torch 2.13, not {torch.__version__}; use trainer.strategy=ddp")
