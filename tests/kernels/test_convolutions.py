"""LightConv and DynamicConv under autocast, checkpointing, DDP, compiling and export, and on the meta device.

On a GPU the kernels are Triton's, in float32; otherwise they are torch's operations on a CPU, in float64. Compiled
graphs have torch's operations everywhere.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from conftest import DEVICE, jiggle
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from seq2seq.kernels.band_matrix import left_padding, windows_conv
from seq2seq.kernels.conv_step import conv_step
from seq2seq.kernels.dropconnect import keep_probability, keep_words
from seq2seq.kernels.dynamicconv import dynamicconv
from seq2seq.kernels.dynamicconv.reference import dynamicconv_reference
from seq2seq.kernels.lightconv import lightconv
from seq2seq.kernels.lightconv.reference import lightconv_reference
from seq2seq.kernels.padding import within
from seq2seq.mixers.dynamicconv import DynamicConv
from seq2seq.mixers.lightconv import LightConv

# Compiling takes seconds a case
REPRESENTATIVE = {
    "test_autocast_changes_nothing_inside": ["dynamicconv"],
    "test_function_is_its_reference": [
        f"{shape}-{op}" for shape in ("(2, 5, 2, 3, 3)", "(2, 150, 2, 2, 5)") for op in ("dynamicconv", "lightconv")
    ]
    + ["(2, 150, 2, 2, 5)-dynamicconv-unnormalized"],
    "test_checkpointing_draws_the_same_masks": {"auto-DynamicConv", "auto-LightConv", "triton-LightConv"},
    "test_compiled_mixer_drops_weights": {"LightConv"},
    "test_triton_is_differentiated_once": ["dynamicconv"],
}
EXHAUSTIVE = {
    "test_inductor",
    "test_processes_are_one_with_the_joined_batch",
    "test_export",
    "test_other_lengths_recompile_once",
    "test_compiled_function_is_eager",
    "test_compiled_mixer_is_eager",
}

every_op = pytest.mark.parametrize("op", ["dynamicconv", "dynamicconv-unnormalized", "lightconv", "lightconv-glu"])
every_mixer = pytest.mark.parametrize("mixer", [DynamicConv, LightConv])
# B, T, H, R, K: one block of the torch path and several, one head and one channel a head, one tap
SHAPES = [(2, 5, 2, 3, 3), (2, 5, 1, 4, 2), (2, 5, 4, 1, 3), (1, 4, 2, 2, 1), (2, 150, 2, 2, 5), (1, 150, 3, 1, 4)]
SHAPES += [(1, 6, 4, 1, 3), (2, 150, 3, 1, 4)]  # each channel a kernel: one sentence, long ones
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
with_triton = pytest.mark.skipif(DEVICE == "cpu" and not INTERPRETED, reason="needs a GPU or Triton's interpreter")
# Triton takes no float64: two ways to compute agree as closely as the type allows
BACKEND = "triton" if DEVICE == "cuda" else "torch"
EXACT = torch.float32 if BACKEND == "triton" else torch.float64
TOLERANCE = 1e-4 if BACKEND == "triton" else 1e-10


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()


def same(a: Tensor, b: Tensor, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


class Problem:
    """Random inputs of an operation, float64 for torch's and float32 for Triton's, part padding, with DropConnect."""

    def __init__(self, op: str, shape: tuple[int, ...], *, drop: float = 0.3, backend: str = BACKEND) -> None:
        batch, length, heads, width, taps = shape
        self.op, self.glu, self.causal = op, op == "lightconv-glu", random.random() < 0.5
        self.softmax = op != "dynamicconv-unnormalized"
        backend = backend if self.softmax else "torch"  # Triton does not serve it
        self.backend, dtype = backend, torch.float64 if backend == "torch" else torch.float32
        like: dict[str, Any] = {"dtype": dtype, "device": DEVICE}
        x = torch.randn(batch, length, heads * width * (2 if self.glu else 1), **like)
        self.dynamic = op.startswith("dynamicconv")
        kernels = (batch, length, heads) if self.dynamic else (heads,)
        weights = torch.randn(*kernels, taps, **like)
        self.inputs = x.requires_grad_(), weights.requires_grad_()
        self.keep = keep_words(kernels, taps, drop, device=torch.device(DEVICE)) if drop else None
        self.keep_prob = keep_probability(drop)
        self.end = torch.randint(0, length + 2, (batch,), device=DEVICE)
        self.dy = torch.randn(batch, length, heads * width, **like)

    def public(self, x: Tensor, weights: Tensor) -> Tensor:
        """Call the function."""
        kept = {"keep": self.keep, "keep_prob": self.keep_prob}
        given = {"causal": self.causal, "end": self.end, "backend": self.backend}
        if self.dynamic:
            return dynamicconv(x, weights, softmax=self.softmax, **kept, **given)
        return lightconv(x, weights, glu=self.glu, **kept, **given)

    def reference(self, x: Tensor, weights: Tensor) -> Tensor:
        """Call the reference, on values with zeros for padding."""
        values = within(F.glu(x, -1) if self.glu else x, self.end)
        given = {"causal": self.causal, "keep": self.keep, "keep_prob": self.keep_prob}
        if self.dynamic:
            return dynamicconv_reference(values, weights, softmax=self.softmax, **given)
        return lightconv_reference(values, weights, **given)

    def results(self, call: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
        """Value and gradients."""
        y = call(*self.inputs)
        return [y.detach(), *torch.autograd.grad(y, self.inputs, self.dy)]


@every_op
@every_shape
def test_function_is_its_reference(op, shape):
    task = Problem(op, shape)
    for found, expected in zip(task.results(task.public), task.results(task.reference), strict=True):
        same(found, expected)


@with_triton
@pytest.mark.parametrize("op", ["dynamicconv", "lightconv"])
def test_triton_is_differentiated_once(op):
    """Values are the same without gradients, and gradients of gradients, which no kernel computes, are refused."""
    task = Problem(op, (2, 5, 2, 3, 3), backend="triton")
    found = task.results(task.public)
    with torch.no_grad():
        assert torch.equal(task.public(*task.inputs), found[0])
    x, weights = task.inputs
    first = torch.autograd.grad(task.public(x, weights).square().sum(), x, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@every_op
def test_gradcheck(op):
    task = Problem(op, (2, 4, 2, 1, 3), backend="torch")
    assert torch.autograd.gradcheck(task.public, task.inputs)


@every_op
@pytest.mark.parametrize("length", [6, 150])
def test_padding_does_not_leak(op, length):
    """NaN in padding reaches no value and no gradient."""
    task = Problem(op, (2, length, 2, 3, 3))
    outside = within(torch.ones(2, length, 1, device=DEVICE), task.end) == 0
    x = task.inputs[0].detach()
    task.inputs = x.masked_fill(outside, 0.0).requires_grad_(), task.inputs[1]
    wanted = task.results(task.public)
    task.inputs = x.masked_fill(outside, float("nan")).requires_grad_(), task.inputs[1]
    for found, expected in zip(task.results(task.public), wanted, strict=True):
        same(found, expected)


@every_op
@every_shape
def test_useful_work_is_counted_without_data(op, shape):
    """A multiply-add for each channel, position and tap forward, two backward; types are the inputs'."""
    batch, length, heads, width, taps = shape
    for types in ((torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)):
        task = Problem(op, shape)
        for name in ("keep", "end", "dy"):
            setattr(task, name, getattr(task, name).to("meta"))
        task.dy = task.dy.to(types[0])
        x, weights = (part.detach().to("meta", kind) for part, kind in zip(task.inputs, types, strict=True))
        task.inputs = x.requires_grad_(), weights.requires_grad_()
        with FlopCounterMode(display=False) as counter:
            found = task.results(task.public)
        assert counter.get_total_flops() == 3 * 2 * batch * length * heads * width * taps
        for got, like in zip(found, (task.dy, *task.inputs), strict=True):
            assert (got.shape, got.dtype) == (like.shape, like.dtype)


@pytest.mark.parametrize("taps", [1, 4, 7])
@pytest.mark.parametrize("causal", [True, False])
def test_windows_are_the_convolution(taps, causal):
    """What the meta device counts is the convolution itself."""
    x, weights = torch.randn(2, 9, 6, dtype=torch.float64), torch.randn(2, 9, 3, taps, dtype=torch.float64)
    found = windows_conv(x, weights, left=left_padding(taps, causal))
    same(found, dynamicconv_reference(x, weights, causal=causal, softmax=False), 1e-10)


# ---- compiled


def compiled(call: Any, backend: str = "aot_eager") -> tuple[Any, CompileCounterWithBackend]:
    """call as one graph, and the counter of graphs."""
    counter = CompileCounterWithBackend(backend)
    return torch.compile(call, fullgraph=True, backend=counter), counter


@every_op
@pytest.mark.parametrize("length", [6, 150])
def test_compiled_function_is_eager(op, length):
    """One graph of torch's operations, whatever the backend, and the same value and gradients."""
    task = Problem(op, (2, length, 2, 3, 3))
    call, counter = compiled(task.public)
    for found, wanted in zip(task.results(call), task.results(task.public), strict=True):
        same(found, wanted)
    assert counter.frame_count == 1


@every_op
def test_other_lengths_recompile_once(op):
    """The second shape makes batch and length symbols for every later one; blocks of rows are another graph."""
    call, counter = compiled(lambda task, x, weights: task.public(x, weights))
    for batch, length in ((2, 5), (3, 9), (4, 12), (5, 31), (2, 150)):
        task = Problem(op, (batch, length, 2, 3, 3))
        task.causal = True
        for found, wanted in zip(task.results(partial(call, task)), task.results(task.public), strict=True):
            same(found, wanted)
    assert counter.frame_count <= 3


@pytest.mark.parametrize("softmax", [True, False])
def test_compiled_decoding_step(softmax):
    """One graph for every position."""
    eager = partial(conv_step, softmax=softmax)
    call, counter = compiled(eager)
    values, owner = torch.randn(2, 3, 7, 2, 2, device=DEVICE), torch.randint(2, (4, 7), device=DEVICE)
    weights = torch.randn(4 if softmax else 1, 3, 5, device=DEVICE)
    for t in range(7):
        past = values, owner, torch.full((4,), t, device=DEVICE)
        same(call(*past, weights), eager(*past, weights), 1e-6)
    assert counter.frame_count == 1


# ---- in mixers


def build(mixer: Any, *, drop: float = 0.0, backend: str = "auto", causal: bool = True) -> nn.Module:
    """A mixer in training mode, its biases moved off zero."""
    made = mixer(dim=8, causal=causal, num_heads=2, kernel_size=5, weight_dropout=drop, backend=backend)
    return jiggle(made).to(DEVICE).train()


def batch(sentences: int = 3, length: int = 9, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """x (B, T, D) and a mask (B, T) of random lengths."""
    ends = torch.randint(1, length + 1, (sentences, 1), device=DEVICE)
    x = torch.randn(sentences, length, 8, dtype=dtype, device=DEVICE, requires_grad=True)
    return x, torch.arange(length, device=DEVICE) < ends


def gradients(call: Any, module: nn.Module, x: Tensor, mask: Tensor) -> list[Tensor]:
    """Value, and gradients of its square to x and to every parameter."""
    y = call(x, mask)
    return [y.detach(), *torch.autograd.grad(y.square().mean(), (x, *module.parameters()))]


@every_mixer
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "same"])
def test_compiled_mixer_is_eager(mixer, causal):
    """One graph in training, for other lengths one more, and one for blocks of rows."""
    module = build(mixer, causal=causal).to(EXACT)
    call, counter = compiled(module)
    for length in (9, 12, 130):
        x, mask = batch(length=length, dtype=EXACT)
        for found, wanted in zip(gradients(call, module, x, mask), gradients(module, module, x, mask), strict=True):
            same(found, wanted)
    assert counter.frame_count <= 3


@with_triton
@every_mixer
def test_mixer_with_triton_in_evaluation(mixer):
    """In evaluation, where DropConnect is off, the values equal the torch path's."""
    module = build(mixer, drop=0.5, backend="triton").eval()
    x, mask = batch()
    found = module(x, mask)
    module.backend = "torch"
    same(found, module(x, mask), 1e-5)


@every_mixer
def test_compiled_mixer_drops_weights(mixer):
    """DropConnect inside the graph: another mask every time, the same for the same seed."""
    module = build(mixer, drop=0.5)
    call, _ = compiled(module)
    x, mask = batch()
    torch.manual_seed(3)
    first, second = gradients(call, module, x, mask), gradients(call, module, x, mask)
    assert not torch.equal(first[0], second[0])
    torch.manual_seed(3)
    for found, wanted in zip(gradients(call, module, x, mask), first, strict=True):
        assert torch.equal(found, wanted)
        assert found.isfinite().all()


@every_mixer
def test_export(mixer):
    """torch.export with a length that is a symbol."""
    module = build(mixer).eval()
    length = torch.export.Dim("length", min=2)
    exported = torch.export.export(module, batch(), dynamic_shapes=({1: length}, {1: length})).module()
    x, mask = batch(length=14)
    same(exported(x, mask), module(x, mask), 1e-5)


@every_op
def test_autocast_changes_nothing_inside(op):
    """Under bfloat16 autocast the function computes as without it, compiled too, in the inputs' types."""
    task = Problem(op, (2, 12, 2, 4, 5), drop=0.0)
    task.inputs = tuple(part.detach().bfloat16().requires_grad_() for part in task.inputs)
    task.dy = task.dy.bfloat16()
    plain = task.results(task.public)
    for call in (task.public, compiled(task.public)[0]):
        with torch.autocast(DEVICE, torch.bfloat16):
            found = task.results(call)
        assert torch.equal(found[0], plain[0])
        for got, wanted in zip(found, plain, strict=True):
            assert got.dtype == torch.bfloat16
            assert (got.float() - wanted.float()).norm() <= 2e-2 * wanted.float().norm()


@every_mixer
@pytest.mark.parametrize("backend", ["auto", pytest.param("triton", marks=with_triton)])
def test_checkpointing_draws_the_same_masks(mixer, backend):
    """Activations made again in the backward pass give the same gradients, with DropConnect."""
    module, seed = build(mixer, drop=0.5, backend=backend), random.randrange(2**31)
    x, mask = batch()
    torch.manual_seed(seed)
    wanted = gradients(module, module, x, mask)
    torch.manual_seed(seed)
    found = gradients(lambda *given: checkpoint(module, *given, use_reentrant=False), module, x, mask)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


class Stack(nn.Module):
    """Both mixers, one after the other."""

    def __init__(self, backend: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [build(DynamicConv, backend=backend), build(LightConv, backend=backend, causal=False)]
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x, mask)
        return x


@pytest.mark.skipif(shutil.which("c++") is None, reason="inductor needs a C++ compiler")
def test_inductor():
    """Through torch's own compiler."""
    module = Stack("auto")
    x, mask = batch()
    found = gradients(torch.compile(module, fullgraph=True), module, x, mask)
    for got, wanted in zip(found, gradients(module, module, x, mask), strict=True):
        same(got, wanted, 1e-5)


def parallel(rank: int, folder: str, transport: str, size: int, backend: str) -> None:
    """One of `size` processes: the gradients of its part of the batch, averaged by DDP."""
    torch.set_num_threads(1)
    given = torch.load(f"{folder}/given.pt")
    dist.init_process_group(transport, init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    module = Stack(backend)
    module.load_state_dict(given["state"])
    x, mask = (part.chunk(size)[rank] for part in given["batch"])
    wrapped = DistributedDataParallel(module)
    wrapped(x, mask).square().mean().backward()
    torch.save([part.grad for part in module.parameters()], f"{folder}/{rank}.pt")
    del wrapped  # the last to hold the group would wait for its threads, and they for Python's lock
    dist.destroy_process_group()


# NCCL refuses two processes on one GPU
@pytest.mark.parametrize(
    ("transport", "size"), [("gloo", 2), pytest.param("nccl", 1, marks=pytest.mark.gpu)], ids=["gloo", "nccl"]
)
def test_processes_are_one_with_the_joined_batch(tmp_path: Path, transport, size):
    """DDP: all processes end up with the gradients of the whole batch."""
    backend = "triton" if INTERPRETED else "auto"
    module, (x, mask) = Stack(backend), batch(4)
    torch.save({"state": module.state_dict(), "batch": (x.detach(), mask)}, tmp_path / "given.pt")
    mp.spawn(parallel, (str(tmp_path), transport, size, backend), nprocs=size)
    wanted = torch.autograd.grad(module(x, mask).square().mean(), list(module.parameters()))
    for rank in range(size):
        for found, expected in zip(torch.load(tmp_path / f"{rank}.pt"), wanted, strict=True):
            same(found, expected, 1e-5)
