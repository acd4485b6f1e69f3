"""Choose the backend of an operation: "triton", "torch", or "auto", the faster one that can serve the call."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from seq2seq.kernels.launch_config import MAX_HEAD_DIM, MAX_TAPS
from seq2seq.system.errors import first_line

BACKENDS = ("auto", "triton", "torch")
# Types that the Triton kernels load and store; torch also serves float64.
TYPES = (torch.float32, torch.float16, torch.bfloat16)

_log = logging.getLogger(__name__)
# Logged messages: each choice is reported once in a process, with its reason.
_said: set[str] = set()


def require_backend(backend: str) -> str:
    """Return `backend` if it names a backend, else raise ValueError."""
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; choose one of {', '.join(BACKENDS)}")
    return backend


def portable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mixer's settings without backend="triton", which applies only to the training machine."""
    return {**values, "backend": "auto"} if values.get("backend") == "triton" else dict(values)


def takes_triton(
    op: str,
    backend: str,
    x: Tensor,
    *others: Tensor,
    heads: int | None = None,
    taps: int = 1,
    unserved: str | None = None,
) -> bool:
    """Return True if a call runs its Triton kernel, and log the reason once.

    Compiled and exported graphs get torch's operations, without a log, which a graph cannot have: compilers fuse them,
    and other programs know them.

    Args:
        op: The operation's name, for messages.
        backend: "auto", "triton" or "torch".
        x: Its input, for a convolution (B, T, C).
        others: Its other floating-point inputs.
        heads: Heads that divide the channels of x; None if this is not a convolution.
        taps: Width of the convolution's kernels.
        unserved: A property of the call that no Triton kernel serves, or None.

    Raises:
        ValueError: backend="triton", and Triton cannot serve the call.
    """
    require_backend(backend)
    if torch.compiler.is_compiling():
        if backend == "triton" and not torch.compiler.is_exporting():
            raise ValueError(
                f"{op}: backend=triton cannot serve a compiled graph; choose backend=auto or backend=torch"
            )
        return False
    if backend == "torch" or (backend == "auto" and not x.is_cuda):
        _report_torch(op, backend, x)
        return False
    # "auto" falls back to torch with a warning; "triton" is a demand, and raises
    problem = unserved or obstacle(x, *others, heads=heads, taps=taps)
    if problem is None:
        _say(logging.INFO, f"{op}: Triton kernel ({'as asked' if backend == 'triton' else 'tensors are on a GPU'})")
        return True
    if backend == "triton":
        raise ValueError(f"{op}: backend=triton cannot serve this: {problem}; choose backend=auto or backend=torch")
    _say(logging.WARNING, f"{op}: torch operations, since Triton cannot serve this: {problem}")
    return False


def obstacle(x: Tensor, *others: Tensor, heads: int | None = None, taps: int = 1) -> str | None:
    """Return why the Triton kernels cannot serve a call (see `takes_triton`), None if they can."""
    for part in (x, *others):
        if part.dtype not in TYPES:
            return f"type {part.dtype} (float32, float16 and bfloat16 are served)"
        # Kernels compute offsets inside a sentence in 32 bits
        if part.dim() > 2:
            reach = part.shape[1] * max(part.stride(1), part.shape[2:].numel())
            if reach >= 2**31:
                return f"a sentence that spans {reach} numbers, 2^31 or more"
    if taps > MAX_TAPS:
        return f"kernel_size {taps} is more than {MAX_TAPS}"
    if heads is not None and x.shape[-1] // heads > MAX_HEAD_DIM:
        return f"{x.shape[-1] // heads} channels a head are more than {MAX_HEAD_DIM}"
    return device_obstacle(x.device)


def device_obstacle(device: torch.device) -> str | None:
    """Return why Triton cannot serve tensors on a device, None if it can."""
    if device.type == "cuda":
        return gpu_obstacle(device)
    # In tests Triton's interpreter runs the kernels on CPU tensors
    if os.environ.get("TRITON_INTERPRET") != "1":
        return f"tensors on {device.type} (a CUDA device is served, or any with TRITON_INTERPRET=1)"
    return None if find_spec("triton") else "triton is not installed"


@functools.cache
def gpu_obstacle(device: torch.device) -> str | None:
    """Return why Triton cannot serve this GPU, None if it can."""
    if find_spec("triton") is None:
        return "triton is not installed"
    # 8.0 is Ampere, the first generation with products in bfloat16 and TF32
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        return f"compute capability {capability[0]}.{capability[1]} is less than 8.0"
    return launcher_obstacle()


@functools.cache
def launcher_obstacle() -> str | None:
    """Return why Triton cannot build the C module that launches kernels on this GPU, None if it can."""
    from triton.runtime import driver

    try:
        # Builds the module, which needs a C compiler and Python's headers, or finds it in Triton's cache
        active: Any = driver.active
        _ = active.utils
    except Exception as error:  # from the compiler, the linker or the driver
        reason = first_line(error)
        return f"Triton cannot build its launcher ({reason}): install gcc and Python's headers (python3-dev)"
    return None


def _report_torch(op: str, backend: str, x: Tensor) -> None:
    reason = "as asked (backend=torch)" if backend == "torch" else f"since tensors are on {x.device.type}"
    _say(logging.INFO, f"{op}: torch operations, {reason}")


def _say(level: int, message: str) -> None:
    if message not in _said:
        _said.add(message)
        _log.log(level, message)
