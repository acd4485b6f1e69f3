"""Record the launches of the kernels for a shape, on tensors without data, and compile them without a GPU."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from benchmarks.aot import Resources, disassemble, kernel_module, resources
from benchmarks.kernels.shapes import Shape
from benchmarks.roofline.machine_code import Path, path

TYPES = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64"}
OPTIONS = ("num_warps", "num_stages", "maxnreg")
HOPPER = 90


class Launch(NamedTuple):
    """Launch of a kernel: its programs, and its arguments and constants by name."""

    kernel: Any
    programs: int
    values: dict[str, Any]

    @property
    def options(self) -> dict[str, int]:
        """Return the launch settings, such as num_warps."""
        return {name: self.values[name] for name in OPTIONS if name in self.values}


class Compiled(NamedTuple):
    """Compiled kernel: its resources on a multiprocessor, and the path of a warp."""

    resources: Resources
    path: Path


def record(op: str, direction: str, shape: Shape) -> list[Launch]:
    """Return the launches of a forward or backward call in bfloat16, causal, with an end for each sentence."""
    kernels = kernel_module(op)
    half = functools.partial(torch.empty, dtype=torch.bfloat16, device="meta")
    y = half(shape.batch, shape.length, shape.channels)
    x = half(shape.batch, shape.length, shape.channels * (2 if shape.glu else 1))
    end = torch.empty(shape.batch, dtype=torch.int64, device="meta")
    places = (shape.batch, shape.length, shape.heads)
    launched: list[Launch] = []
    with _recorder(launched):
        if op == "attention":
            joint = half(shape.batch, shape.length, 3 * shape.channels).unflatten(-1, (3 * shape.heads, -1))
            q, k, v = joint.transpose(1, 2).split(shape.heads, 1)
            if direction == "forward":
                kernels.forward(q, k, v, None, None, None, True, 0.0)
            else:
                lse = torch.empty(q.shape[:3], device="meta")
                kernels.backward(q, lse, q, k, v, None, None, None, causal=True, drop=0.0)
        elif op == "lightconv":
            weights = torch.empty(shape.heads, shape.taps, device="meta")
            given = (y,) if direction == "backward" else ()
            getattr(kernels, direction)(*given, x, weights, end, True, shape.glu)
        else:
            words = torch.empty(*places, -(-shape.taps // 32), dtype=torch.int32, device="meta")
            rest = (words if shape.drop else None, end, True, 1 / (1 - shape.drop))
            if direction == "forward":
                kernels.forward(x, half(*places, shape.taps), *rest)
            else:
                kernels.backward(y, x, half(*places, shape.taps), torch.empty(places, device="meta"), *rest)
    return launched


@contextmanager
def _recorder(launched: list[Launch]) -> Iterator[None]:
    """Let Triton's kernels append their launches to a list instead of running."""
    from triton.runtime.jit import JITFunction

    def run(kernel: Any, *given: Any, grid: Any, warmup: bool, **constants: Any) -> None:
        names = [name for name in kernel.arg_names if name not in constants]
        values = dict(zip(names, given, strict=True)) | constants
        sizes = grid(values) if callable(grid) else grid
        launched.append(Launch(kernel, functools.reduce(int.__mul__, sizes), values))

    before, JITFunction.run = JITFunction.run, run
    try:
        yield
    finally:
        JITFunction.run = before


class Compiler:
    """Compiler that compiles each distinct launch once."""

    def __init__(self) -> None:
        self._known: dict[Any, Compiled] = {}

    def __call__(self, launch: Launch) -> Compiled:
        """Compile a launch for sm_90, as Triton would when it runs."""
        signature, constants, hints = _specialize(launch)
        # The key uses `repr`, since different constants may compare equal, such as 1 and True
        key = (launch.kernel.__name__, repr((signature, constants, hints, launch.options)))
        if key not in self._known:
            from triton.backends.compiler import GPUTarget
            from triton.compiler import ASTSource
            from triton.compiler import compile as compile_kernel

            source = ASTSource(fn=launch.kernel, signature=signature, constexprs=constants, attrs=hints)
            binary = compile_kernel(source, target=GPUTarget("cuda", HOPPER, 32), options=launch.options)
            self._known[key] = Compiled(resources(binary, HOPPER), path(disassemble(binary)))
        return self._known[key]


def _specialize(launch: Launch) -> tuple[dict[str, str], dict[Any, Any], dict[Any, Any]]:
    """Return types by name, then constants and hints by position: 1 is a constant, and multiples of 16 are hinted."""
    types: dict[str, str] = {}
    constants: dict[Any, Any] = {}
    hints: dict[Any, Any] = {}
    for place, (name, parameter) in enumerate(zip(launch.kernel.arg_names, launch.kernel.params, strict=True)):
        value = launch.values[name]
        if parameter.is_constexpr or (type(value) is int and value == 1 and not parameter.do_not_specialize):
            types[name], constants[place,] = "constexpr", value
            continue
        types[name] = _type(value)
        if isinstance(value, float):
            continue
        even = value.data_ptr() % 16 == 0 if isinstance(value, torch.Tensor) else value % 16 == 0
        if even and not parameter.do_not_specialize:
            hints[place,] = [["tt.divisibility", 16]]
    return types, constants, hints


def _type(value: Any) -> str:
    """Return Triton's name of an argument's type."""
    if isinstance(value, torch.Tensor):
        return TYPES[value.dtype]
    if isinstance(value, float):
        return "fp32"
    return "i32" if abs(value) < 2**31 else "i64"
