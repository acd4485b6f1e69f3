"""The Triton kernels against float64, in value and in every gradient: on a GPU compiled, else in Triton's interpreter.

Output buffers are filled with NaN first, so that a number that a kernel leaves unwritten shows.
"""

from __future__ import annotations

import logging
import random
import re
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from conftest import DEVICE
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

pytest.importorskip("triton")

from seq2seq.kernels import dispatch, launch_config
from seq2seq.kernels.band_matrix import left_padding
from seq2seq.kernels.conv_step import conv_step
from seq2seq.kernels.conv_step.reference import conv_step_reference
from seq2seq.kernels.dropconnect import keep_probability, keep_words, seeded_words, unpack
from seq2seq.kernels.dropconnect.torch_impl import keep_words as keep_words_by_torch
from seq2seq.kernels.dynamicconv import dynamicconv
from seq2seq.kernels.dynamicconv import triton as dynamicconv_triton
from seq2seq.kernels.dynamicconv.reference import dynamicconv_reference
from seq2seq.kernels.launch_config import Config, one_tile, override
from seq2seq.kernels.lightconv import lightconv
from seq2seq.kernels.lightconv import triton as lightconv_triton
from seq2seq.kernels.triton_ops import aligned

# What `make test` runs of the cases that take Triton's interpreter seconds; test-all, and a GPU, run all of them.
REPRESENTATIVE = {
    "test_every_kernel": ["3-dynamicconv", "16-dynamicconv", "5-lightconv", "16-lightconv-glu"],
    "test_narrow_types": ["bfloat16-float32-dynamicconv"],
    "test_tiles_and_chunks": ["16-lightconv"],
    "test_a_keep_probability_without_a_mask_scales_nothing": ["3-dynamicconv"],
    "test_parts_of_a_head": ["24-dynamicconv"],
    "test_programs_that_work_through_many_units": ["3-lightconv"],
    "test_channels_of_a_head": ["24-lightconv-glu"],
    "test_lightconv_of_one_tile": ["27-lightconv", "33-lightconv-glu"],
    "test_dropped_taps": ["33-dynamicconv"],
    "test_logits_far_from_zero": ["3-dynamicconv", "9-dynamicconv"],
    "test_again_to_the_bit": ["dynamicconv", "lightconv"],
    "test_nothing_to_do": ["dynamicconv"],
    "test_masks_have_the_probability_they_say": ["0.1", "0.999"],
    "test_sentences_of_one_tile": {"7-16"},
    "test_decoding_step": {"15-lightconv", "33-dynamicconv"},
}
EXHAUSTIVE = {"test_other_lightconvs_take_other_kernels"}
pytestmark = pytest.mark.usefixtures("poisoned_outputs")
KERNELS = [1, 2, 3, 5, 7, 15, 16, 17, 18, 31, 32, 33, 34, 63, 64]
OPS = ["dynamicconv", "lightconv", "lightconv-glu"]
every_op = pytest.mark.parametrize("op", OPS)
# Also DynamicConv as if no sentence fitted into one tile
every_path = pytest.mark.parametrize("op", [*OPS, "dynamicconv-long"])
# By norm; the interpreter cuts bfloat16 off where a GPU rounds it
TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 5e-3 if DEVICE == "cuda" else 1e-2}


@pytest.fixture(autouse=True)
def _no_tile_for_a_sentence(request, monkeypatch):
    """Make the kernels for long sentences take short sentences, too, if a case asks for it."""
    if "dynamicconv-long" in getattr(request.node, "callspec", SimpleNamespace(params={})).params.values():
        monkeypatch.setattr(launch_config, "ONE_TILE", 0)


class Shape(NamedTuple):
    """B sentences of T positions, H heads of R channels, K taps."""

    batch: int
    length: int
    heads: int
    width: int
    taps: int


def shape(taps: int, length: int | None = None) -> Shape:
    """A random shape: at the borders of tiles of 16 positions, or beyond the taps; small enough to interpret."""
    length = length or random.choice([16, 17, 32, 33, taps + 1, taps + 16, random.randint(17, 40) | 1])
    sizes = [(2, 1, 64), (2, 1, 16), (2, 1, 1), (2, 1, 24), (2, 2, 5), (1, 3, 4)]
    if taps >= 19 and DEVICE != "cuda":
        # The interpreter takes too long
        sizes = [(1, 1, 16), (1, 1, 5)]
    batch, heads, width = random.choice(sizes)
    return Shape(batch, length, heads, width, taps)


def definition(x: Tensor, weights: Tensor, causal: bool) -> Tensor:
    """y (B, T, C) by windows of x (B, T, C) times weights (B, T, H, K)."""
    heads, taps = weights.shape[2:]
    left = left_padding(taps, causal)
    windows = F.pad(x, (0, 0, left, taps - 1 - left)).unfold(1, taps, 1)  # (B, T, C, K)
    return (windows * weights.repeat_interleave(x.shape[2] // heads, 2)).sum(-1)


class Problem(NamedTuple):
    """An operation, its inputs (x and logits or weights) with and without poison, dy, and the rest."""

    op: str
    clean: tuple[Tensor, Tensor]
    inputs: tuple[Tensor, Tensor]
    dy: Tensor
    padding: Tensor  # (B, T), True where x counts as zero
    given: dict[str, Any]

    def results(self, backend: str = "triton") -> list[Tensor]:
        """Return the kernel's results: y, dx, and dlogits or dweights."""
        x, weights = (part.detach().requires_grad_() for part in self.inputs)
        call = dynamicconv if self.op == "dynamicconv" else lightconv
        y = call(x, weights, backend=backend, **self.given)
        return [y.detach(), *torch.autograd.grad(y, (x, weights), self.dy)]

    def wanted(self) -> list[Tensor]:
        """The same results by definition in float64."""
        x, weights = (part.detach().double().requires_grad_() for part in self.clean)
        values = F.glu(x, -1) if self.given.get("glu") else x
        values = values.masked_fill(self.padding[:, :, None], 0.0)
        kernels = weights.softmax(-1) if self.op == "dynamicconv" else weights
        if self.given["keep"] is not None:
            kept = unpack(self.given["keep"], weights.shape[-1])
            kernels = torch.where(kept, kernels / self.given["keep_prob"], 0.0)
        kernels = kernels.expand(*x.shape[:2], *kernels.shape[-2:])
        y = definition(values, kernels, self.given["causal"])
        return [y.detach(), *torch.autograd.grad(y, (x, weights), self.dy.double())]


def ends(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Random ends (B,), a view with gaps, of any integer type; the last of several is empty; (B, T) padding."""
    dtype = random.choice([torch.int32, torch.int64])
    end = torch.randint(0, length + 2, (batch, 2), dtype=dtype, device=DEVICE)[:, 0]
    end[1:][-1:] = 0
    return end, torch.arange(length, device=DEVICE) >= end[:, None]


def layout(values: Tensor, kind: str) -> Tensor:
    """The same numbers in another memory layout."""
    if kind == "slice":
        return F.pad(values, (3, 2), value=float("nan"))[..., 3:-2]
    if kind == "transposed":
        return values.transpose(0, 1).contiguous().transpose(0, 1)
    if kind == "gaps":
        return torch.stack((values, torch.full_like(values, float("nan"))), -1)[..., 0]
    return values.contiguous()


LAYOUTS = ["dense", "slice", "transposed", "gaps"]


def problem(
    op: str,
    size: Shape,
    causal: bool,
    *,
    types: tuple[torch.dtype, torch.dtype] = (torch.float32, torch.float32),
    drop: float = 0.0,
    padded: bool = False,
    layouts: tuple[str, str, str] = ("dense", "dense", "dense"),
) -> Problem:
    """Random inputs; where x is padding, the kernel is given NaN or inf."""
    op = op.removesuffix("-long")
    glu, channels = op == "lightconv-glu", size.heads * size.width
    x = torch.randn(size.batch, size.length, channels * (2 if glu else 1), device=DEVICE).to(types[0])
    kernels = (size.batch, size.length, size.heads) if op == "dynamicconv" else (size.heads,)
    weights = torch.randn(*kernels, size.taps, device=DEVICE) * 2
    weights = (weights if op == "dynamicconv" else weights.softmax(-1)).to(types[1])
    dy = torch.randn(size.batch, size.length, channels, device=DEVICE).to(types[0])
    dy = torch.ones((), device=DEVICE, dtype=types[0]).expand_as(dy) if layouts[2] == "sum" else layout(dy, layouts[2])
    end, outside = ends(size.batch, size.length)
    end, outside = (end, outside) if padded else (None, torch.zeros_like(outside))
    poison = random.choice([float("nan"), float("inf"), float("-inf")])
    poisoned = layout(x.masked_fill(outside[:, :, None], poison), layouts[0])
    keep = keep_words(kernels, size.taps, drop).to(DEVICE) if drop else None
    given = {"causal": causal, "keep": keep, "keep_prob": keep_probability(drop), "end": end}
    if glu:
        given["glu"] = True
    return Problem(op, (x, weights), (poisoned, layout(weights, layouts[1])), dy, outside, given)


def anything(op: str, size: Shape, causal: bool, **fixed: Any) -> Problem:
    """A problem whose other choices are drawn."""
    layouts = tuple(random.choice([*kinds, "dense"]) for kinds in (LAYOUTS, LAYOUTS, [*LAYOUTS, "sum"]))
    drop, padded = random.choice([0.0, 0.3]), random.choice([False, True])
    return problem(op, size, causal, **{"drop": drop, "padded": padded, "layouts": layouts, **fixed})


def close(found: Tensor, wanted: Tensor, tolerance: float, least: float = 0.0) -> None:
    """The norm of the difference is at most `tolerance` of wanted's, or of `least`."""
    error = torch.linalg.vector_norm(found.double() - wanted.double()).item()
    assert error <= tolerance * max(torch.linalg.vector_norm(wanted.double()).item(), least)


def check(task: Problem) -> list[Tensor]:
    """The results, whose values, types and shapes are as they should be."""
    inputs, results = task.inputs, task.results()
    # Sums that cancel out keep the error of their parts: dweights by chance, dlogits with one tap always
    shared = task.op != "dynamicconv" or inputs[1].shape[-1] == 1
    scale = torch.linalg.vector_norm(task.dy.double()).item()
    leasts = (0.1 * scale, 0.1 * scale, scale if shared else 0.1 * scale)
    for found, wanted, like, least in zip(results, task.wanted(), (task.dy, *inputs), leasts, strict=True):
        assert found.shape == like.shape
        assert found.dtype == like.dtype
        close(found, wanted, max(TOLERANCE[part.dtype] for part in inputs), least)
    assert not results[1][task.padding].any()
    return results


def forced(stack: ExitStack, op: str, settings: Config) -> None:
    """Band kernels, forward and backward, with these settings until the stack closes."""
    name = op.removesuffix("-glu")
    for launched in (name, f"{name}_backward"):
        stack.enter_context(override(launched, settings))


@every_path
@pytest.mark.parametrize("taps", KERNELS)
def test_every_kernel(op, taps):
    """float32 at T = 1, below, at and above K, and at lengths of several tiles."""
    causal = random.random() < 0.5
    check(anything(op, shape(taps, random.choice([1, max(1, taps // 2), max(1, taps - 1), taps])), causal))
    check(anything(op, shape(taps), not causal))


@pytest.mark.parametrize("length", [1, 5, 16, 17, 27, 32, 33, 64])
@pytest.mark.parametrize("taps", [4, 7, 16, 17, 31, 32, 34, 63, 64])
def test_sentences_of_one_tile(taps, length):
    """Compare with the reference in float64, causal and centered: at borders of tiles, shorter and longer than K."""
    for causal in (True, False):
        size = Shape(2, length, 2, random.choice([4, 24]), taps)
        task = anything("dynamicconv", size, causal, layouts=("slice", "transposed", "dense"))
        x, logits = (part.detach().double().requires_grad_() for part in task.clean)
        given = {name: task.given[name] for name in ("causal", "keep", "keep_prob")}
        y = dynamicconv_reference(x.masked_fill(task.padding[:, :, None], 0.0), logits, **given)
        wanted = [y.detach(), *torch.autograd.grad(y, (x, logits), task.dy.double())]
        scale = 0.1 * torch.linalg.vector_norm(task.dy.double()).item()
        for found, expected in zip(check(task), wanted, strict=True):
            close(found, expected, 1e-5, scale)


def test_sentences_that_fit_one_tile_take_its_kernels(monkeypatch):
    """Sentences of up to 64 positions with more than three taps take these kernels, unless a setting forbids it."""
    for length, tile in {0: 0, 1: 16, 16: 16, 17: 32, 32: 32, 33: 64, 64: 64, 65: 0}.items():
        assert one_tile("dynamicconv", 31, length, 64, torch.bfloat16) == tile
    assert one_tile("dynamicconv_backward", 4, 27, 64, torch.float32) == 32
    assert one_tile("dynamicconv_backward", 4, 27, 65, torch.float32) == 0  # too few registers
    assert one_tile("dynamicconv", 3, 27, 64, torch.bfloat16) == 0
    with override("dynamicconv", Config(16, 1, num_warps=4, num_stages=1)):
        assert one_tile("dynamicconv", 31, 27, 64, torch.bfloat16) == 0
    for name in ("band_forward", "band_backward", "direct_forward", "direct_backward"):
        monkeypatch.delattr(dynamicconv_triton, name)
    check(anything("dynamicconv", Shape(1, 27, 2, 4, 5), True))
    with pytest.raises(NameError, match="band_forward"):
        anything("dynamicconv", Shape(1, 65, 1, 4, 5), True).results()


@pytest.mark.parametrize("op", OPS[1:])
@pytest.mark.parametrize("length", [1, 5, 16, 17, 27, 32, 33, 64])
def test_lightconv_of_one_tile(op, length, monkeypatch):
    """Test lengths at the borders of tiles, shorter and longer than K, with fewer programs than sentences."""
    for name in lightconv_triton.PROGRAMS:
        monkeypatch.setitem(lightconv_triton.PROGRAMS, name, random.choice([1, 4]))
    for name in ("band_forward", "band_backward", "direct_forward", "direct_backward"):
        monkeypatch.setattr(lightconv_triton, name, None)
    for taps in (4, random.choice([7, 16, 17]), random.choice([31, 34, 64])):
        check(anything(op, Shape(3, length, 2, 4, taps), random.random() < 0.5))


def test_other_lightconvs_take_other_kernels(monkeypatch):
    """LightConvs with more than 64 positions, with few taps, or with given settings take other kernels."""
    for name in ("one_tile_forward", "one_tile_backward"):
        monkeypatch.setattr(lightconv_triton, name, None)
    check(anything("lightconv-glu", Shape(2, 65, 1, 4, 4), False))
    check(anything("lightconv", Shape(2, 9, 2, 4, 3), True))
    with ExitStack() as stack:
        forced(stack, "lightconv", Config(16, 1, num_warps=4, num_stages=1))
        check(anything("lightconv-glu", Shape(2, 27, 2, 4, 4), False))
    assert one_tile("lightconv", 31, 64, 64, torch.bfloat16) == 64
    with pytest.raises(TypeError, match="NoneType"):
        anything("lightconv-glu", Shape(2, 9, 2, 4, 4), True).results()


def test_parts_of_a_head_in_one_tile():
    """A program takes 32 of a head's 48 channels, so the last program takes only 16."""
    settings = Config(32, 1, 4, 2, columns=32)
    with override("lightconv_one_tile", settings), override("lightconv_backward_one_tile", settings):
        check(anything("lightconv-glu", Shape(2, 20, 2, 48, 5), False))


@every_path
@pytest.mark.parametrize(
    "types",
    [(torch.float16,) * 2, (torch.bfloat16,) * 2, (torch.bfloat16, torch.float32), (torch.float32, torch.float16)],
    ids=lambda types: "-".join(str(dtype).removeprefix("torch.") for dtype in types),
)
def test_narrow_types(op, types):
    """Types of x and of logits or weights, alike or mixed, by the direct and by the band kernels."""
    for taps in (random.choice([2, 3]), random.choice([5, 15, 17, 33])):
        check(anything(op, shape(taps, 21), random.random() < 0.5, types=types))
    if op == "lightconv-glu":  # its gate is a tanh; 70 positions are more than one tile
        check(anything(op, Shape(1, 70, 2, 4, 6), random.random() < 0.5, types=types))


@every_op
@pytest.mark.parametrize("tile", [16, 32, 64])
def test_tiles_and_chunks(op, tile):
    """Any tile, and any number of them in a row: programs meet within the reach of a kernel or a sequence ends."""
    for taps in (random.choice([1, 2, 3, 5]), random.choice([7, 16, 17, 18, 33, 34, 64])):
        length = random.randint(2 * tile, 4 * tile) if tile < 64 else random.randint(65, 140)
        task = anything(op, Shape(1, length, 1, 4, taps), random.random() < 0.5)
        with ExitStack() as stack:
            forced(stack, op, Config(tile, random.choice([1, 2, 3]), num_warps=4, num_stages=2))
            check(task)


@every_op
@pytest.mark.parametrize("taps", [3, 9])
def test_a_keep_probability_without_a_mask_scales_nothing(op, taps):
    """Without a mask nothing is scaled, as in evaluation, where a mixer drops no weights."""
    task = anything(op, shape(taps), True)
    plain = task._replace(given={**task.given, "keep": None, "keep_prob": 1.0})
    given = {**plain.given, "keep_prob": 0.75}
    for found, wanted in zip(plain._replace(given=given).results(), plain.results(), strict=True):
        assert torch.equal(found, wanted)


@every_op
@pytest.mark.parametrize("width", [24, 64])
def test_parts_of_a_head(op, width):
    """Programs that share a head, 16 channels each."""
    task = anything(op, Shape(1, random.randint(17, 33), 2, width, random.choice([2, 9, 20])), random.random() < 0.5)
    with ExitStack() as stack:
        forced(stack, op, Config(16, 2, num_warps=4, num_stages=2, columns=16))
        check(task)


@pytest.mark.parametrize("op", OPS[1:])
@pytest.mark.parametrize("taps", [2, 3, 7, 33])
def test_programs_that_work_through_many_units(op, taps, monkeypatch):
    """LightConv with fewer programs than sentences and chunks: one or two a head."""
    for name in lightconv_triton.PROGRAMS:
        monkeypatch.setitem(lightconv_triton.PROGRAMS, name, random.choice([1, 2, 4]))
    check(anything(op, Shape(3, 20, 2 if taps < 9 else 1, 4, taps), random.random() < 0.5))


@every_path
@pytest.mark.parametrize("width", [24, 200, 256])
def test_channels_of_a_head(op, width):
    """Several heads that fill no power of two, and wide heads."""
    taps = random.choice([2, 9])
    check(anything(op, Shape(1, 18, 1 if width > 24 else 2, width, taps), random.random() < 0.5))


@pytest.mark.parametrize("op", ["dynamicconv", "dynamicconv-long"])
@pytest.mark.parametrize("taps", [1, 3, 20, 32, 33, 64])
def test_dropped_taps(op, taps):
    """DynamicConv's DropConnect in one and in two words, the top bit of a word included; all dropped is zero."""
    size, causal = Shape(2, 7, 2, 4, taps), random.random() < 0.5
    task = problem(op, size, causal, drop=random.choice([0.1, 0.5, 0.9]))
    check(task)
    check(task._replace(given={**task.given, "keep": torch.zeros_like(task.given["keep"])}))


@pytest.mark.parametrize("op", ["dynamicconv", "dynamicconv-long"])
@pytest.mark.parametrize("taps", [3, 9])
def test_logits_far_from_zero(op, taps):
    """A softmax that overflows without its maximum taken off."""
    task = problem(op, Shape(1, 20, 1, 4, taps), True)
    for offset in (-1000.0, 1000.0):
        logits = 10 * task.inputs[1] + offset
        other = task._replace(clean=(task.clean[0], logits), inputs=(task.inputs[0], logits))
        for found, wanted in zip(other.results(), other.wanted(), strict=True):
            close(found, wanted, 2e-3, 0.1 * torch.linalg.vector_norm(task.dy).item())


@every_path
def test_again_to_the_bit(op):
    for taps in (2, 9):
        task = anything(op, shape(taps, 20), True)
        assert all(torch.equal(a, b) for a, b in zip(task.results(), task.results(), strict=True))


@every_path
def test_nothing_to_do(op):
    """No sentence, or no position: empty results, and no gradient to shared weights."""
    for taps in (2, 9):
        for batch, length, heads, width in ((0, 5, 2, 4), (2, 0, 2, 4), (1, 0, 8, 1)):
            task = problem(op, Shape(batch, length, heads, width, taps), True)
            for backend in ("triton", "torch"):
                for found, like in zip(task.results(backend), (task.dy, *task.inputs), strict=True):
                    assert found.shape == like.shape
                    assert not found.any()


def test_rows_too_far_apart_are_copied():
    """Offsets inside a sentence have 32 bits, and a gradient may be spread further than its input."""
    near, far = (torch.empty_strided((2, 3, 4), (4, step, 1), device="meta") for step in (2**29, 2**30))
    assert aligned(near) is near
    assert aligned(far).is_contiguous()


# ---- decoding


def cache(rows: int, beam: int, heads: int, slots: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """values (rows / beam, H, L, beam, R), owner (rows, L), cut from longer ones, and position (rows,); NaN follows."""
    values = torch.randn(rows // beam, heads, slots + 3, beam, width, device=DEVICE)[:, :, :slots]
    owner = torch.randint(beam, (rows, slots + 2), device=DEVICE)[:, :slots]
    position = torch.randint(slots, (rows,), device=DEVICE)
    values[:, :, int(position.max()) + 1 :] = float("nan")
    return values, owner, position


@pytest.mark.parametrize("op", ["dynamicconv", "lightconv"])
@pytest.mark.parametrize("taps", [1, 2, 3, 5, 15, 31, 33, 63])
def test_decoding_step(op, taps):
    """Compare with float64 at any position, with slots of any ancestry, also for one hypothesis and with gaps."""
    beam, heads, width = random.choice([1, 2, 4]), random.choice([1, 3]), random.choice([4, 16, 24])
    values, owner, position = cache(beam * random.randint(1, 3), beam, heads, taps + 4, width)
    softmax = op == "dynamicconv"
    weights = torch.randn(owner.shape[0] if softmax else 1, heads, taps, device=DEVICE)
    types = random.choice([(torch.float32, torch.float32), (torch.bfloat16, torch.float32), (torch.float16,) * 2])

    def expected(values: Tensor, owner: Tensor, position: Tensor, weights: Tensor) -> Tensor:
        return conv_step_reference(values.double(), owner, position, weights.double(), softmax=softmax)

    values, weights = values.to(types[0]), weights.to(types[1])
    for kind in ("dense", "gaps"):
        found = conv_step(
            layout(values, kind), owner, position, layout(weights, kind), softmax=softmax, backend="triton"
        )
        assert found.dtype == values.dtype
        close(found, expected(values, owner, position, weights), TOLERANCE[types[0]])
    # Slots that are written in turns: there have been more positions than slots
    ring = torch.randn_like(values[:, :, :taps].float()).to(types[0]), owner, position + 3 * taps
    found = conv_step(*ring, weights, softmax=softmax, backend="triton")
    close(found, expected(*ring, weights), TOLERANCE[types[0]])


@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_autocast_does_not_change_a_decoding_step(backend):
    values, owner, position = cache(4, 2, 3, 7, 16)
    given = values.nan_to_num(), owner, position, torch.randn(4, 3, 5, device=DEVICE)
    plain = conv_step(*given, softmax=True, backend=backend)
    with torch.autocast(DEVICE, torch.bfloat16):
        assert torch.equal(conv_step(*given, softmax=True, backend=backend), plain)


# ---- DropConnect


@pytest.mark.parametrize("taps", [1, 31, 32, 33, 64])
def test_masks_of_a_seed_are_the_same_without_triton(taps):
    seed = torch.tensor([random.randrange(2**62)], device=DEVICE)
    given = seed, [3, 5, -(-taps // 32)], random.randrange(1, 256), taps
    assert torch.equal(keep_words_by_torch(*given), seeded_words(*given))


@pytest.mark.parametrize("drop", [0.004, 0.1, 0.3, 0.5, 0.9, 0.999])
def test_masks_have_the_probability_they_say(drop):
    """The probability holds over all taps and per tap; neighbors are independent; another seed draws other masks.

    Counts are Poisson's where p or 1 - p is 1/256: a tap's has mean 20, and 20 + 9 sqrt(20) or more P = 5e-13; one of
    pairs that fall together has mean 2.4, and 12 standard deviations more P = 2e-13. All 100 of them: below 1e-10.
    """
    rows, p = 5000, keep_probability(drop)
    seeds = [torch.tensor([random.randrange(2**62)], device=DEVICE) for _ in range(2)]
    words, others = (seeded_words(seed, [rows, 1], int(p * 256), 32) for seed in seeds)
    kept, other = unpack(words, 32).double(), unpack(others, 32).double()
    deviation = (p * (1 - p)) ** 0.5
    assert abs(kept.mean().item() - p) <= 9 * deviation / (rows * 32) ** 0.5
    assert (kept.mean(0) - p).abs().max().item() <= 9 * deviation / rows**0.5
    for a, b in ((kept[:, 1:], kept[:, :-1]), (kept[1:], kept[:-1]), (kept, other)):
        assert abs(((a - p) * (b - p)).mean().item()) <= 12 * deviation**2 / (rows * 31) ** 0.5


# ---- what cannot be served


def small(**other: Any) -> dict[str, Any]:
    """Arguments of a call of dynamicconv that Triton can serve, except for `other`."""
    x, logits = torch.randn(2, 5, 8, device=DEVICE), torch.randn(2, 5, 2, 3, device=DEVICE)
    return {"x": x, "logits": logits, "causal": True, "backend": "triton", **other}


def test_what_triton_cannot_serve_is_an_error_that_says_so(monkeypatch):
    wide = torch.randn(2, 5, 2 * 257, device=DEVICE)
    for named, other in {
        "float64": {"x": torch.randn(2, 5, 8, device=DEVICE, dtype=torch.float64)},
        "kernel_size 65": {"logits": torch.randn(2, 5, 2, 65, device=DEVICE)},
        "257 channels": {"x": wide, "logits": torch.randn(2, 5, 2, 3, device=DEVICE)},
        "'nonsense'": {"backend": "nonsense"},
    }.items():
        given = small(**other)
        owner = torch.zeros(2, 5, dtype=torch.int64, device=DEVICE)
        values = given["x"].unflatten(-1, (given["logits"].shape[2], -1)).transpose(1, 2)[:, :, :, None]
        past = values, owner, owner[:, 0]
        with pytest.raises(ValueError, match=named):
            dynamicconv(**given)
        with pytest.raises(ValueError, match=named):
            lightconv(given["x"], given["logits"][0, 0], causal=True, backend=given["backend"])
        with pytest.raises(ValueError, match=named):
            conv_step(*past, given["logits"][:, 0], softmax=True, backend=given["backend"])
        with pytest.raises(ValueError, match=named):
            conv_step(*past, given["logits"][0, 0][None], softmax=False, backend=given["backend"])
    with pytest.raises(ValueError, match="257 channels"):
        lightconv(wide.repeat(1, 1, 2), torch.ones(2, 3, device=DEVICE), causal=True, glu=True, backend="triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="tensors on cpu"):
        dynamicconv(**{name: part.cpu() if isinstance(part, Tensor) else part for name, part in small().items()})


def test_wrong_shapes_are_errors():
    for named, other in {
        "keep": {"keep": torch.zeros(2, 5, 2, 2, dtype=torch.int32, device=DEVICE)},
        "int64": {"keep": torch.zeros(2, 5, 2, 1, dtype=torch.int64, device=DEVICE)},
        "end": {"end": torch.zeros(3, dtype=torch.int64, device=DEVICE)},
        "float32": {"end": torch.zeros(2, device=DEVICE)},
        r"\(2, 1\)": {"end": torch.zeros(2, 1, dtype=torch.int64, device=DEVICE)},
        "bool": {"end": torch.ones(2, dtype=torch.bool, device=DEVICE)},
        "meta": {"end": torch.ones(2, dtype=torch.int64, device="meta")},
        "logits": {"logits": torch.randn(2, 4, 2, 3, device=DEVICE)},
        r"\(2, 5, 8\)": {"logits": torch.randn(2, 5, 3, 3, device=DEVICE)},
    }.items():
        for backend in ("triton", "torch"):
            with pytest.raises(ValueError, match=named):
                dynamicconv(**small(**{**other, "backend": backend}))
    x, weights = torch.randn(2, 5, 12, device=DEVICE), torch.randn(4, 3, device=DEVICE)
    with pytest.raises(ValueError, match="2 C"):
        lightconv(x, weights, causal=True, glu=True)
    with pytest.raises(ValueError, match="keep"):
        lightconv(x, weights, causal=True, keep=torch.zeros(2, 1, dtype=torch.int32, device=DEVICE))
    with pytest.raises(ValueError, match="end"):
        lightconv(x, weights, causal=True, end=torch.zeros(4, dtype=torch.int64, device=DEVICE))


@pytest.fixture
def said(monkeypatch, caplog) -> Any:
    """Return the log of the choice of kernels, after it has forgotten its earlier messages."""
    monkeypatch.setattr(dispatch, "_said", set())
    caplog.set_level(logging.INFO, logger=dispatch.__name__)
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records]


def test_choice_is_logged_once_with_its_reason(said):
    for _ in range(3):
        for backend in ("auto", "torch", "triton"):
            dynamicconv(**small(backend=backend))
    auto = ("torch operations", "on cpu") if DEVICE == "cpu" else ("Triton kernel", "on a GPU")
    reasons = [auto, ("torch operations", "as asked"), ("Triton kernel", "as asked")]
    assert len(said()) == 3
    for (level, message), (what, why) in zip(said(), reasons, strict=True):
        assert level == "INFO"
        assert message.startswith(f"dynamicconv: {what}")
        assert why in message


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine on which no launcher can be built")
def test_a_gpu_without_a_c_compiler_is_served_by_torch(monkeypatch):
    """Triton's driver, which builds the launcher, fails here, where there is no GPU."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    problem = dispatch.gpu_obstacle.__wrapped__(torch.device("cuda", 0))
    assert problem is not None
    assert re.search(r"Triton cannot build its launcher \(.+\): install gcc", problem)


def test_auto_falls_back_with_one_warning(said, monkeypatch):
    """On a GPU, here a fake one, torch's operations replace Triton where it fails; each reason is logged once."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(dispatch, "gpu_obstacle", dispatch.gpu_obstacle.__wrapped__)  # which remembers no real GPU
    with FakeTensorMode():
        x = torch.empty(2, 5, 8, device="cuda")
        wide = x.double()
    for _ in range(3):
        for values, taps in ((wide, 3), (x, 65), (x, 64)):
            assert not dispatch.takes_triton("lightconv", "auto", values, heads=2, taps=taps)
    assert [level for level, _ in said()] == ["WARNING"] * 3
    for (_, message), why in zip(said(), ("float64", "kernel_size 65", "capability 7.5"), strict=True):
        assert why in message
    with pytest.raises(ValueError, match=r"capability 7\.5"):
        dispatch.takes_triton("lightconv", "triton", x, heads=2, taps=3)


def test_weights_without_softmax_are_refused_or_left_to_torch():
    x, logits = torch.randn(1, 4, 4, device=DEVICE), torch.randn(1, 4, 2, 3, device=DEVICE)
    with pytest.raises(ValueError, match="backend=triton cannot serve this: weights without softmax"):
        dynamicconv(x, logits, causal=True, softmax=False, backend="triton")
    expected = dynamicconv(x, logits, causal=True, softmax=False, backend="torch")
    assert torch.equal(dynamicconv(x, logits, causal=True, softmax=False), expected)
