"""Check the kernels: values and gradients against float64, twice, on memory full of NaN."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import NamedTuple
from unittest import mock

import torch
from torch import Tensor

from benchmarks.kernels.inputs import convolve, draw, ragged, random_step, with_gradients
from benchmarks.kernels.session import Session, reason
from benchmarks.kernels.shapes import TOLERANCE, Case
from seq2seq.kernels import launch_config

# Function of a backend's name and a flag for float64 that returns results by name.
Run = Callable[[str, bool], dict[str, Tensor]]


class Check(NamedTuple):
    """Result of one case.

    Attributes:
        errors: Relative errors by norm, by the name of the result.
        repeats: True if a second run gave the same bits.
        passed: True if all errors are below the tolerance and the run repeats.
        error: Reason why the case did not run.
    """

    case: Case
    errors: dict[str, float]
    repeats: bool = False
    passed: bool = False
    error: str = ""


def correctness_section(session: Session) -> None:
    """Check all cases; a case that does not run counts as wrong."""
    cases = session.sizes.cases
    for number, case in enumerate(cases):
        if session.late(f"correctness: {len(cases) - number} of {len(cases)} cases"):
            return
        try:
            session.rows.append(check(case, session))
        except Exception as error:
            session.rows.append(Check(case, {}, error=reason(error)))


def check(case: Case, session: Session) -> Check:
    """Compare two runs of our kernel with the torch path in float64, on the same random inputs."""
    run = (step_run if case.op.endswith("_step") else convolution_run)(case, session.device)
    # Only Triton's kernels have chunks
    with in_chunks(case) if case.chunk and session.ours == "triton" else nullcontext():
        first, second = run(session.ours, False), run(session.ours, False)
    wanted = run("torch", True)
    errors = {name: relative_error(first[name], wanted[name]) for name in wanted}
    repeats = all(torch.equal(first[name], second[name]) for name in wanted)
    return Check(case, errors, repeats, repeats and all(e < TOLERANCE[case.dtype] for e in errors.values()))


@contextmanager
def in_chunks(case: Case) -> Iterator[None]:
    """Make programs carry values and partial gradients across tiles, and across sentences in LightConv."""
    from seq2seq.kernels.lightconv import triton

    shape = case.shape
    with ExitStack() as stack:
        # The table of launch settings has an entry for each direction
        for name in (case.op, f"{case.op}_backward"):
            settings = launch_config.config(name, shape.taps, shape.channels // shape.heads, case.dtype)
            stack.enter_context(launch_config.override(name, settings._replace(chunk=case.chunk)))
        # Few enough programs that each works through several sentences
        stack.enter_context(mock.patch.dict(triton.PROGRAMS, dict.fromkeys(triton.PROGRAMS, 2 * shape.heads)))
        yield


def convolution_run(case: Case, device: torch.device) -> Run:
    """Return a function that computes the output and all gradients; memory is poisoned again before the gradients."""
    inputs = draw(case.op, case.shape, case.dtype, device, autocast=case.autocast)
    inputs = ragged(inputs) if case.ragged else inputs
    # Drawn once, so that all runs of the case have the same upstream gradient
    dy = torch.randn(*inputs.x.shape[:2], case.shape.channels, device=device, dtype=case.dtype)  # (B, T, C)

    def run(backend: str, exact: bool) -> dict[str, Tensor]:
        # The reference computes in float64 on the rounded inputs of the type under test
        used = inputs._replace(x=inputs.x.double(), kernel=inputs.kernel.double()) if exact else inputs
        used, leaves = with_gradients(used)
        poison(device)
        y = convolve(case.op, used, case.shape, backend, causal=case.causal)
        poison(device)
        dx, dkernel = torch.autograd.grad(y, leaves, dy.double() if exact else dy)
        return {"y": y.detach(), "dx": dx, "dkernel": dkernel}

    return run


def step_run(case: Case, device: torch.device) -> Run:
    """Return a function that computes one decoding step; some positions have fewer than K predecessors."""
    step, inputs = random_step(case.op.removesuffix("_step"), case.shape, case.dtype, device, beam=2)

    def run(backend: str, exact: bool) -> dict[str, Tensor]:
        used = [part.double() if exact and part.is_floating_point() else part for part in inputs]
        poison(device)
        return {"y": step(*used, backend=backend)}

    return run


def poison(device: torch.device) -> None:
    """Fill the memory of the next tensors with NaN: the allocator reuses freed blocks.

    A kernel that reads memory before writing it then returns NaN.
    """
    if device.type != "cuda":
        return
    # The allocator would hand out cached blocks of other sizes without NaN
    torch.cuda.empty_cache()
    # Blocks of 2^9 to 2^20 bytes, eight of each, and one for everything larger
    small = [torch.full((2**size // 4,), math.nan, device=device) for size in range(9, 21) for _ in range(8)]
    large = torch.full((2**26,), math.nan, device=device)  # 256 MB
    del small, large


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """Return |found - wanted| / |wanted|, NaN if any element is NaN.

    Where `wanted` is 0 up to rounding, the error is relative to elements of size 1. An example is the gradient of a
    softmax over one tap.
    """
    difference, size = float((found.double() - wanted.double()).norm()), float(wanted.double().norm())
    one = wanted.numel() ** 0.5
    return difference / (size if size > 1e-9 * one else one)
