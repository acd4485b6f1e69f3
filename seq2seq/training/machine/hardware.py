"""Choose the device and the precision of a run by the hardware of the machine."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn

from seq2seq.kernels.dispatch import device_obstacle
from seq2seq.settings.trainer import TrainerSettings

log = logging.getLogger(__name__)


def resolve_accelerator(settings: TrainerSettings) -> str:
    """Return `cpu` or `gpu`.

    Raises:
        ValueError: The settings ask for a GPU or a feature of torch that is missing.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if settings.accelerator == "gpu" and gpus == 0:
        raise ValueError("trainer.accelerator=gpu, but torch finds no GPU here; use trainer.accelerator=cpu or auto")
    accelerator = settings.accelerator
    if accelerator == "auto":
        accelerator = "gpu" if gpus else "cpu"
    if accelerator == "gpu" and settings.devices > gpus:
        raise ValueError(f"trainer.devices={settings.devices}, but there are {gpus} GPUs; lower trainer.devices")
    if settings.fused and accelerator != "gpu":
        raise ValueError("trainer.fused=true needs a GPU, and this run has none: leave trainer.fused at false")
    if settings.sharded:
        # Imported late: a run on one process does not need FSDP.
        from torch.distributed.fsdp import FSDPModule

        # `make_parts` calls this method after a validation.
        if not hasattr(FSDPModule, "reset_iter_state"):
            raise ValueError(
                f"trainer.strategy=fsdp needs torch 2.13, not {torch.__version__}; use trainer.strategy=ddp"
            )
    return accelerator


def resolve_precision(precision: str, accelerator: str) -> str:
    """Return Lightning's name of a precision: float32, or bf16 autocast over float32 weights.

    tf32 is float32 whose matrix products and recurrent layers may be rounded to TF32. auto is bf16 where the hardware
    has it. A GPU without bf16 gets a warning.
    """
    bf16 = has_bf16(accelerator)
    if accelerator == "gpu" and not bf16 and precision in ("auto", "bf16", "bf16-true"):
        advice = {"auto": "has no bf16: trainer.precision=auto trains in float32"}
        emulated = "has no bf16, which torch emulates: trainer.precision=32 is faster"
        log.warning("%s %s", torch.cuda.get_device_name(), advice.get(precision, emulated))
    if precision == "auto":
        precision = "bf16" if bf16 else "32"
    # tf32 is 32-true for Lightning: `train` sets torch's matmul precision.
    return {"bf16": "bf16-mixed", "bf16-true": "bf16-true"}.get(precision, "32-true")


def has_bf16(accelerator: str) -> bool:
    """Return True if the hardware multiplies in bfloat16: a CPU with AMX or AVX-512 BF16, a GPU from Ampere on."""
    if accelerator == "gpu":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # Private names of torch, which some versions lack; a missing name counts as no.
    checks = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return any(getattr(torch.cpu, name, lambda: False)() for name in checks)


def src_multiple(accelerator: str, positions: int | None) -> int:
    """Return the number that must divide the padded width of a source: 8 on a GPU, 1 on a CPU.

    On a GPU, attention copies a mask unless its rows have a multiple of 8 entries.

    Args:
        accelerator: "cpu" or "gpu".
        positions: Positions of the model, None for any number. If 8 does not divide them, the result is 1, so that no
            source is padded beyond the last position.
    """
    return 8 if accelerator == "gpu" and (positions or 0) % 8 == 0 else 1


def require_kernels(model: nn.Module, accelerator: str) -> None:
    """Raise ValueError if a mixer of `model` demands Triton kernels (backend=triton), which this machine cannot run."""
    demanding = {type(each).__name__ for each in model.modules() if getattr(each, "backend", None) == "triton"}
    device = torch.device("cuda" if accelerator == "gpu" else "cpu")
    if demanding and (problem := device_obstacle(device)):
        names = ", ".join(sorted(demanding))
        raise ValueError(f"backend=triton of {names} cannot run here: {problem}; choose backend=auto or backend=torch")


def require_packing(model: nn.Module, accelerator: str, precision: str) -> None:
    """Raise ValueError if a mixer of `model` trains without masks (`packed`), which this machine cannot do.

    Args:
        accelerator: "cpu" or "gpu".
        precision: Lightning's name of the precision.
    """
    packed = [module for module in model.modules() if getattr(module, "packed", False)]
    if not packed:
        return
    # Imported late: the import registers operators that other runs do not need.
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


def require_autocast(settings: TrainerSettings, precision: str) -> None:
    """Raise ValueError if trainer.bf16_residual=true and `precision` (Lightning's name) is not autocast to bf16."""
    if settings.bf16_residual is True and precision != "bf16-mixed":
        raise ValueError(
            f"trainer.bf16_residual=true needs autocast to bf16, and trainer.precision={settings.precision} is "
            f"{precision} here: set trainer.precision=bf16, or leave trainer.bf16_residual at false"
        )
