"""The custom operators: torch's requirements, and their behavior under compiling, autocast, checkpointing and DDP.

On a GPU the kernels are Triton's, in float32; otherwise they are torch's operations on a CPU, in float64.
"""

from __future__ import annotations

import importlib
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
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from seq2seq.kernels.conv_step import conv_step
from seq2seq.kernels.dropconnect import keep_probability, keep_words
from seq2seq.kernels.dynamicconv import dynamicconv
from seq2seq.kernels.dynamicconv.reference import dynamicconv_reference
from seq2seq.kernels.lightconv import lightconv
from seq2seq.kernels.lightconv.reference import lightconv_reference
from seq2seq.kernels.padding import within
from seq2seq.mixers.dynamicconv import DynamicConv
from seq2seq.mixers.lightconv import LightConv

# opcheck looks at an operator's registration, which does not depend on shapes; compiling takes seconds a case
REPRESENTATIVE = {
    "test_operators_with_triton_are_what_torch_asks_for": ["3-dynamicconv"],
    "test_conv_step_is_what_torch_asks_for": ["True-3"],
    "test_compiled_function_is_eager": (),
    "test_other_lengths_recompile_once": ["dynamicconv"],
    "test_compiled_mixer_is_eager": ["causal-DynamicConv"],
    "test_autocast_changes_nothing_inside": ["dynamicconv"],
    "test_export": ["DynamicConv"],
    "test_operator_is_the_public_function_and_the_reference": [
        f"{shape}-{op}" for shape in ("(2, 5, 2, 3, 3)", "(2, 150, 2, 2, 5)") for op in ("dynamicconv", "lightconv")
    ]
    + ["(2, 150, 2, 2, 5)-dynamicconv-unnormalized"],
    "test_operators_are_what_torch_asks_for": {"(2, 5, 2, 3, 3)-lightconv-glu"},
    "test_checkpointing_draws_the_same_masks": {"auto-DynamicConv", "auto-LightConv", "triton-LightConv"},
    "test_compiled_mixer_drops_weights": {"LightConv"},
    "test_eager_calls_do_without_the_registry": [
        *("torch-dynamicconv", "torch-dynamicconv-unnormalized", "torch-lightconv", "torch-lightconv-glu"),
        "triton-dynamicconv",
    ],
}
EXHAUSTIVE = {
    "test_inductor",
    "test_compiled_mixer_with_triton",
    "test_processes_are_one_with_the_joined_batch",
    "test_operators_with_triton_are_what_torch_asks_for",
    "test_export",
    "test_other_lengths_recompile_once",
}

ops = torch.ops.seq2seq
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


def operator_name(op: str) -> str:
    """lightconv-glu and dynamicconv-unnormalized are variants of the operators lightconv and dynamicconv."""
    return op.partition("-")[0]


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
        self.dynamic = operator_name(op) == "dynamicconv"
        kernels = (batch, length, heads) if self.dynamic else (heads,)
        weights = torch.randn(*kernels, taps, **like)
        self.inputs = x.requires_grad_(), weights.requires_grad_()
        self.keep = keep_words(kernels, taps, drop, device=torch.device(DEVICE)) if drop else None
        self.keep_prob = keep_probability(drop)
        self.end = torch.randint(0, length + 2, (batch,), device=DEVICE)
        self.dy = torch.randn(batch, length, heads * width, **like)

    def public(self, x: Tensor, weights: Tensor) -> Tensor:
        """Call the public function."""
        kept = {"keep": self.keep, "keep_prob": self.keep_prob}
        given = {"causal": self.causal, "end": self.end, "backend": self.backend}
        if self.dynamic:
            return dynamicconv(x, weights, softmax=self.softmax, **kept, **given)
        return lightconv(x, weights, glu=self.glu, **kept, **given)

    def arguments(self, x: Tensor, weights: Tensor) -> tuple[Any, ...]:
        """The operator's arguments; LightConv's has no part in DropConnect."""
        if self.dynamic:
            settings = self.causal, 1 / self.keep_prob, self.backend, self.softmax
            return x, weights, self.keep, self.end, *settings
        return x, weights, self.end, self.causal, self.glu, self.backend

    def operator(self, x: Tensor, weights: Tensor) -> Tensor:
        """Call only the operator."""
        found = getattr(ops, operator_name(self.op))(*self.arguments(x, weights))
        return found[0] if self.dynamic else found

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
def test_operator_is_the_public_function_and_the_reference(op, shape):
    """Value and gradient agree; LightConv's operator gets weights after DropConnect."""
    task = Problem(op, shape, drop=0.3 if op.startswith("dynamicconv") else 0.0)
    wanted = task.results(task.public)
    for found, expected in zip(task.results(task.operator), wanted, strict=True):
        same(found, expected)
    task = Problem(op, (*shape[:1], min(shape[1], 12), *shape[2:]))
    for found, expected in zip(task.results(task.public), task.results(task.reference), strict=True):
        same(found, expected)


def opcheck(task: Problem) -> None:
    """torch.library.opcheck: schema, autograd registration, shapes, types and strides without data, and AOTAutograd."""
    name = operator_name(task.op)
    arguments = task.arguments(*task.inputs)
    torch.library.opcheck(getattr(ops, name).default, arguments)
    saved = [part.detach() for part in task.inputs]
    if name == "dynamicconv":
        saved.append(ops.dynamicconv(*task.arguments(*saved))[1])
    torch.library.opcheck(getattr(ops, f"{name}_backward").default, (task.dy, *saved, *arguments[2:]))


@every_op
@every_shape
def test_operators_are_what_torch_asks_for(op, shape):
    opcheck(Problem(op, shape, drop=random.choice([0.0, 0.3])))


@with_triton
@every_op
@pytest.mark.parametrize("taps", [3, 6])
def test_operators_with_triton_are_what_torch_asks_for(op, taps):
    opcheck(Problem(op, (1, 5, 2, 3, taps), backend="triton"))


@every_op
@pytest.mark.parametrize("backend", ["torch", pytest.param("triton", marks=with_triton)])
def test_eager_calls_do_without_the_registry(op, backend, monkeypatch):
    """Eager calls without the registry equal calls through it bit for bit; counted operations go through it."""
    if backend == "triton" and op == "dynamicconv-unnormalized":
        pytest.skip("Triton does not serve it")
    task = Problem(op, (2, 5, 2, 3, 3), drop=0.3 if op.startswith("dynamicconv") else 0.0, backend=backend)
    module = importlib.import_module(f"seq2seq.kernels.{operator_name(op)}")
    # Take the operator even if torch's operations compute
    monkeypatch.setattr(module, "is_plain", lambda *_: False)
    with Calls() as calls:
        counted = task.results(task.public)
    name = f"seq2seq.{operator_name(op)}"
    assert {f"{name}.default", f"{name}_backward.default"} <= set(calls.names)
    for each in (module._forward, module._backward):
        monkeypatch.setattr(each, "_operator", refuse)
    found = task.results(task.public)
    with torch.no_grad():
        found.append(task.public(*task.inputs))
    assert all(torch.equal(a, b) for a, b in zip(found, [*counted, counted[0]], strict=True))
    x, weights = task.inputs
    first = torch.autograd.grad(task.public(x, weights).square().sum(), x, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def refuse(*given: Any) -> None:
    raise AssertionError("called through torch's registry")


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("softmax", [True, False])
def test_conv_step_is_what_torch_asks_for(heads, softmax):
    values = torch.randn(2, heads, 7, 2, 6 // heads, dtype=EXACT, device=DEVICE)
    owner, position = torch.randint(2, (4, 7), device=DEVICE), torch.randint(7, (4,), device=DEVICE)
    weights = torch.randn(4 if softmax else 1, heads, 5, dtype=EXACT, device=DEVICE)
    torch.library.opcheck(ops.conv_step.default, (values, owner, position, weights, softmax, BACKEND))


@with_triton
def test_keep_words_are_what_torch_asks_for():
    seed = torch.tensor([random.randrange(2**62)], device=DEVICE)
    torch.library.opcheck(ops.keep_words.default, (seed, [3, 2], 100, 40))


@every_op
def test_gradcheck(op):
    task = Problem(op, (2, 4, 2, 1, 3), backend="torch")
    assert torch.autograd.gradcheck(task.operator, task.inputs)


def test_log_sum_exp_is_saved_in_units_of_log2():
    task = Problem("dynamicconv", SHAPES[0])
    lse = ops.dynamicconv(*task.arguments(*task.inputs))[1]
    assert not lse.requires_grad
    same(lse.exp2(), task.inputs[1].exp().sum(-1))


class Calls(TorchDispatchMode):
    """Records the names of the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_gradient_of_log_sum_exp_is_not_filled_with_zeros():
    """The gradient of log-sum-exp is unused; if y has no gradient either, the inputs have none."""
    task = Problem("dynamicconv", SHAPES[0])
    y, dy = ops.dynamicconv(*task.arguments(*task.inputs))[0], torch.ones(())
    with Calls() as calls:
        torch.autograd.grad(y, task.inputs, dy.to(y.dtype).expand_as(y), retain_graph=True)
    assert "seq2seq.dynamicconv_backward.default" in calls.names
    assert not [name for name in calls.names if "zero" in name or "fill" in name or "full" in name]
    assert torch.autograd.grad(NoGradient.apply(y), task.inputs, dy, allow_unused=True) == (None, None)


class NoGradient(torch.autograd.Function):
    """Sum whose gradient is undefined."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y.sum().float()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> None:
        return None


@with_triton
def test_compiled_masks_are_one_graph():
    """The operator looks for Triton, so that the graph does not."""
    seed = torch.tensor([random.randrange(2**62)], device=DEVICE)
    counter = CompileCounterWithBackend("eager")
    given = [3, 2], 100, 40
    compiled = torch.compile(lambda seed: ops.keep_words(seed, *given) + 1, fullgraph=True, backend=counter)
    assert torch.equal(compiled(seed), ops.keep_words(seed, *given) + 1)
    assert counter.frame_count == 1


@every_op
@pytest.mark.parametrize("length", [6, 150])
def test_padding_does_not_leak(op, length):
    """NaN in padding reaches no value and no gradient, by autograd's formulas and by the operator's."""
    task = Problem(op, (2, length, 2, 3, 3))
    outside = within(torch.ones(2, length, 1, device=DEVICE), task.end) == 0
    x = task.inputs[0].detach()
    for call in (task.public, task.operator):
        task.inputs = x.masked_fill(outside, 0.0).requires_grad_(), task.inputs[1]
        wanted = task.results(call)
        task.inputs = x.masked_fill(outside, float("nan")).requires_grad_(), task.inputs[1]
        for found, expected in zip(task.results(call), wanted, strict=True):
            same(found, expected)


@every_op
def test_shapes_and_types_without_data(op):
    """A bfloat16 x with float32 kernels, and the other way round: y and dx have x's type, log-sum-exp is float32."""
    for types in ((torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)):
        task = Problem(op, SHAPES[0])
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            x, weights = (
                mode.from_tensor(part.detach()).to(kind) for part, kind in zip(task.inputs, types, strict=True)
            )
            x, weights = x.requires_grad_(), weights.requires_grad_()
            dy = mode.from_tensor(task.dy).to(types[0])
            y = task.operator(x, weights)
            found = y, *torch.autograd.grad(y, (x, weights), dy)
            if task.dynamic:
                lse = ops.dynamicconv(*task.arguments(x, weights))[1]
                assert (lse.shape, lse.dtype) == (weights.shape[:3], torch.float32)
        for got, like in zip(found, (dy, x, weights), strict=True):
            assert (got.shape, got.dtype, got.stride()) == (like.shape, like.dtype, like.stride())


# ---- compiled


def compiled(call: Any, backend: str = "aot_eager") -> tuple[Any, CompileCounterWithBackend]:
    """call as one graph, and the counter of graphs."""
    counter = CompileCounterWithBackend(backend)
    return torch.compile(call, fullgraph=True, backend=counter), counter


@every_op
@pytest.mark.parametrize("length", [6, 150])
def test_compiled_function_is_eager(op, length):
    """One graph that holds the operator, and the same value and gradients."""
    task = Problem(op, (2, length, 2, 3, 3))
    call, counter = compiled(task.public)
    for found, wanted in zip(task.results(call), task.results(task.public), strict=True):
        same(found, wanted)
    (graph,) = counter.graphs
    assert any(f"seq2seq.{operator_name(op)}" in str(node.target) for node in graph.graph.nodes)


@every_op
def test_other_lengths_recompile_once(op):
    """The second shape makes batch and length symbols; every later one is served, also beyond a block."""
    call, counter = compiled(lambda task, x, weights: task.public(x, weights))
    for batch, length in ((2, 5), (3, 9), (4, 12), (5, 31), (2, 150)):
        task = Problem(op, (batch, length, 2, 3, 3))
        task.causal = True
        for found, wanted in zip(task.results(partial(call, task)), task.results(task.public), strict=True):
            same(found, wanted)
    assert counter.frame_count <= 2


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
    """One graph in training, for other lengths one more."""
    module = build(mixer, causal=causal).to(EXACT)
    call, counter = compiled(module)
    for length in (9, 12, 130):
        x, mask = batch(length=length, dtype=EXACT)
        for found, wanted in zip(gradients(call, module, x, mask), gradients(module, module, x, mask), strict=True):
            same(found, wanted)
    assert counter.frame_count <= 2


@with_triton
@every_mixer
def test_compiled_mixer_with_triton(mixer):
    module = build(mixer, backend="triton")
    call, _ = compiled(module)
    x, mask = batch()
    for found, wanted in zip(gradients(call, module, x, mask), gradients(module, module, x, mask), strict=True):
        same(found, wanted, 1e-5)


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
    """Under bfloat16 autocast the operator and the public function compute as without it, in the inputs' types."""
    task = Problem(op, (2, 12, 2, 4, 5), drop=0.0)
    task.inputs = tuple(part.detach().bfloat16().requires_grad_() for part in task.inputs)
    task.dy = task.dy.bfloat16()
    plain = task.results(task.public)
    for call in (task.public, task.operator, compiled(task.public)[0]):
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
    """Through torch's own compiler, which also holds an operator to the strides that it promises."""
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
