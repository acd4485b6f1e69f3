"""Time convolutions forward and backward, ours and others', the drawing of DropConnect's mask, and decoding steps."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.kernels.inputs import Inputs, draw, places, random_step
from benchmarks.kernels.session import Row, Session, guarded
from benchmarks.kernels.shapes import OPS, PASSES, minimal_bytes, timed_pairs
from benchmarks.kernels.timing import Call, buffers, measure
from benchmarks.kernels.ways import Prepared, Way, by_backend, ways
from seq2seq.kernels.dropconnect import keep_words


def timings_section(session: Session) -> None:
    """Time every shape and operator in every way, then the drawing of DropConnect's mask."""
    for op, shape in timed_pairs(session.sizes.shapes):
        if session.late(f"timings: {op}, {shape}"):
            continue
        # Bytes of x and the kernel; the output is not rotated, but kept until the round ends
        input_bytes = minimal_bytes(op, "forward", shape) - 2 * shape.tokens * shape.channels
        count = buffers(input_bytes, session.device)
        inputs = [draw(op, shape, torch.bfloat16, session.device) for _ in range(count)]
        for (name, way), direction in itertools.product(ways(op, shape, session.ours).items(), PASSES):
            session.rows.append(time_way(Row(op, direction, name, shape), way, inputs, session))
        if shape.drop:
            session.rows.append(time_mask(Row(op, "mask", "ours", shape), session))
        # Freed before the next shape's inputs are drawn, which may need the memory
        del inputs


@guarded
def time_way(row: Row, way: Way | str, inputs: list[Inputs], session: Session) -> Row:
    """Time one direction of one way, and record an error if its results differ from the torch path."""
    if isinstance(way, str):
        return row._replace(error=way)
    # Each buffer has separate leaves and intermediates
    prepared = [way(row.op, one, row.shape) for one in inputs]
    with torch.set_grad_enabled(row.direction == "backward"):
        row = row._replace(**measure(calls_of(row.direction, prepared), session))
    # Bytes per microsecond / 1000 = GB/s
    gb_s = minimal_bytes(row.op, row.direction, row.shape) / row.us / 1e3
    roofline = 100 * gb_s / session.result["device"].get("copy_gb_s", math.nan)
    return row._replace(gb_s=gb_s, roofline=roofline, error=disagreement(prepared[0], inputs[0], row))


def calls_of(direction: str, prepared: Sequence[Prepared]) -> list[Call]:
    """Return one call per buffer; backward calls run on graphs that are built here and retained."""
    if direction == "forward":
        return [one.run for one in prepared]
    calls: list[Call] = []
    for one in prepared:
        # The graph outlives the call, since backward passes are repeated on it
        y = one.run()
        calls.append(functools.partial(torch.autograd.grad, y, one.leaves, torch.randn_like(y), retain_graph=True))
    return calls


def disagreement(prepared: Prepared, inputs: Inputs, row: Row) -> str:
    """Compare the results of a way with the torch path, and describe a difference, or return "".

    The time of a computation with wrong results would be meaningless.
    """
    if prepared.restore is None:
        return ""
    torch_path = by_backend("torch", row.op, inputs, row.shape)
    # Only the first buffer is compared
    with torch.set_grad_enabled(row.direction == "backward"):
        found, wanted = [prepared.restore(prepared.run())], [torch_path.run()]
    # Gradients of other implementations have other layouts or leaves, and are not checked
    if row.direction == "backward" and row.way.startswith("ours"):
        # One upstream gradient for both
        dy = torch.randn_like(wanted[0])
        found += torch.autograd.grad(found[0], prepared.leaves, dy)
        wanted += torch.autograd.grad(wanted[0], torch_path.leaves, dy)
    error = max(relative_error(one.detach(), two.detach()) for one, two in zip(found, wanted, strict=True))
    # Both results are in bf16: two roundings of 2^-9, and sums in different orders
    return "" if error < 2e-2 else f"differs from the torch path by {error:.1e}"


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """Return |found - wanted| / |wanted|, NaN if any element is NaN.

    Where `wanted` is 0 up to rounding, the error is relative to elements of size 1. An example is the gradient of a
    softmax over one tap.
    """
    difference, size = float((found.double() - wanted.double()).norm()), float(wanted.double().norm())
    one = wanted.numel() ** 0.5
    return difference / (size if size > 1e-9 * one else one)


@guarded
def time_mask(row: Row, session: Session) -> Row:
    """Time the drawing of the keep words of one call, which the operators' own times exclude."""
    size, shape = places(row.op, row.shape), row.shape
    words = functools.partial(keep_words, size, shape.taps, shape.drop, device=session.device)
    # Four draws a round: each writes its own words
    return row._replace(**measure([words] * 4, session))


def decode_section(session: Session) -> None:
    """Time one decoding step of every hypothesis, ours and torch's."""
    # If ours is the torch path, it is timed once
    for op, backend in itertools.product(OPS, dict.fromkeys((session.ours, "torch"))):
        name = "ours" if backend == session.ours else backend
        session.rows.append(time_step(Row(op, "step", name, session.sizes.decode), backend, session))


@guarded
def time_step(row: Row, backend: str, session: Session) -> Row:
    """Time eight steps in turn, each with a separate cache."""
    drawn = [random_step(row.op, row.shape, torch.bfloat16, session.device, session.sizes.beam) for _ in range(8)]
    with torch.no_grad():
        calls = [functools.partial(step, *inputs, backend=backend) for step, inputs in drawn]
        return row._replace(**measure(calls, session))
