"""Every fast path against its reference implementation, torch's own convolution, and a second definition."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from seq2seq.kernels.attention import attention
from seq2seq.kernels.attention.reference import attention_reference
from seq2seq.kernels.band_matrix import (
    BLOCK,
    band_conv,
    left_padding,
)
from seq2seq.kernels.conv_step import conv_step
from seq2seq.kernels.conv_step.reference import conv_step_reference
from seq2seq.kernels.dropconnect import drop_weights, keep_probability, keep_words, random_bytes, unpack
from seq2seq.kernels.dropout import Dropout, dropout
from seq2seq.kernels.dynamicconv import dynamicconv
from seq2seq.kernels.dynamicconv.reference import dynamicconv_reference
from seq2seq.kernels.lightconv import lightconv
from seq2seq.kernels.lightconv.reference import lightconv_reference

KERNELS = [1, 2, 3, 5, 7, 15, 31, 33, 63]
# Both forms, with dropout and without
_CASES = {"0.0-causal-2", "0.3-causal-3", "0.3-same-5", "0.0-same-7", "0.3-causal-31", "0.0-same-33", "0.3-same-1"}
REPRESENTATIVE = {"test_dynamicconv_is_its_reference": _CASES, "test_lightconv_is_its_reference": _CASES}
every_kernel = pytest.mark.parametrize("taps", KERNELS)
both_forms = pytest.mark.parametrize("causal", [True, False], ids=["causal", "same"])


def heads_first(values: Tensor, heads: int) -> Tensor:
    """(B, L, beam, C) -> (B, H, L, beam, C / H)."""
    return values.unflatten(-1, (heads, -1)).permute(0, 3, 1, 2, 4)


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


def same_with_gradients(first: Tensor, second: Tensor, inputs: list[Tensor]) -> None:
    """Two results and their gradients to all inputs agree in float64."""
    same(first, second)
    direction = torch.randn_like(first)
    for a, b in zip(
        torch.autograd.grad(first, inputs, direction), torch.autograd.grad(second, inputs, direction), strict=True
    ):
        same(a, b)


def windows_conv(x: Tensor, weights: Tensor, causal: bool) -> Tensor:
    """A second definition: windows of x (B, T, C) times weights (B, T, H, K)."""
    heads, taps = weights.shape[2:]
    left = taps - 1 if causal else taps // 2
    windows = F.pad(x, (0, 0, left, taps - 1 - left)).unfold(1, taps, 1)  # (B, T, C, K)
    return (windows * weights.repeat_interleave(x.shape[2] // heads, 2)).sum(-1)


def lengths(taps: int) -> list[int]:
    """T = 1, T < K, T = K, T > K, without repeats."""
    return sorted({1, max(1, taps // 2), max(1, taps - 1), taps, taps + random.randint(1, 4)})


@every_kernel
@both_forms
@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_lightconv_is_its_reference(taps, causal, drop):
    """LightConv equals its reference, also with DropConnect: both implementations drop the same weights."""
    weights = torch.randn(2, taps, dtype=torch.float64).softmax(-1).requires_grad_()
    keep = keep_words((2,), taps, drop) if drop else None
    given = {"causal": causal, "keep": keep, "keep_prob": keep_probability(drop)}
    for length in lengths(taps)[::2]:
        x = draw(2, length, 4)
        pair = lightconv(x, weights, **given), lightconv_reference(x, weights, **given)
        same_with_gradients(*pair, [x, weights])


@every_kernel
@both_forms
@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_dynamicconv_is_its_reference(taps, causal, drop):
    """DynamicConv equals its reference, also with DropConnect, and at one length without softmax."""
    for length, softmax in [*((length, True) for length in lengths(taps)[::2]), (taps + 1, False)]:
        x, logits = draw(2, length, 4), draw(2, length, 2, taps)
        keep = keep_words((2, length, 2), taps, drop) if drop else None
        given = {"causal": causal, "keep": keep, "keep_prob": keep_probability(drop), "softmax": softmax}
        pair = dynamicconv(x, logits, **given), dynamicconv_reference(x, logits, **given)
        same_with_gradients(*pair, [x, logits])


@every_kernel
@both_forms
def test_static_weights_are_a_depthwise_convolution(taps, causal):
    """Compare with F.conv1d at every length, including the blocked path with a ragged end."""
    left = left_padding(taps, causal)
    for length in (1, taps, 2 * BLOCK, 2 * BLOCK + random.randint(1, BLOCK - 1), 3 * BLOCK, 4 * BLOCK + 1):
        x, weights = draw(2, length, 6), draw(3, taps)
        padded = F.pad(x.transpose(1, 2), (left, taps - 1 - left))
        conv = F.conv1d(padded, weights.repeat_interleave(2, 0)[:, None], groups=6).transpose(1, 2)
        same_with_gradients(lightconv(x, weights, causal=causal), conv, [x, weights])
        same(
            lightconv_reference(x[:, :5], weights, causal=causal)[:, :1],
            lightconv(x[:, :5], weights, causal=causal)[:, :1],
        )


@every_kernel
@both_forms
def test_long_sequences(taps, causal):
    """DynamicConv's blocked path with a ragged end, against windows."""
    for length in (2 * BLOCK + random.randint(1, BLOCK - 1), 3 * BLOCK):
        x, logits = draw(2, length, 4), draw(2, length, 2, taps)
        keep = keep_words((2, length, 2), taps, 0.2)
        fast = dynamicconv(x, logits, causal=causal, keep=keep, keep_prob=keep_probability(0.2))
        weights = torch.where(unpack(keep, taps), logits.softmax(-1) / keep_probability(0.2), 0.0)
        same_with_gradients(fast, windows_conv(x, weights, causal), [x, logits])


@both_forms
def test_blocks_change_nothing(causal):
    """Any block size, shorter or longer than the kernel, gives the same result as one block."""
    for _ in range(20):
        taps, length, block = random.randint(1, 12), random.randint(1, 40), random.randint(1, 9)
        x, weights = draw(2, length, 2, 3), draw(2, 2, length, taps)
        left = left_padding(taps, causal)
        whole = band_conv(x, weights, left=left, block=1000)
        same_with_gradients(band_conv(x, weights, left=left, block=block), whole, [x, weights])


@both_forms
def test_bfloat16_keeps_its_type(causal):
    x, logits = torch.randn(2, 150, 4).bfloat16(), torch.randn(2, 150, 2, 7)
    y = dynamicconv(x, logits, causal=causal)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), dynamicconv(x.float(), logits, causal=causal), atol=5e-2, rtol=5e-2)


@every_kernel
def test_step_is_the_last_position(taps):
    """Training and decoding compute the same, for T < K, T = K and T > K, from a cache of any ancestry."""
    for length in lengths(taps):
        x, logits, weights = draw(6, length, 4), draw(6, length, 2, taps), draw(2, taps)
        owner, position = torch.randint(3, (6, length)), torch.full((6,), length - 1)
        values = torch.full((2, length, 3, 4), 1e3, dtype=torch.float64)
        for row in range(6):
            values[row // 3, torch.arange(length), owner[row]] = x[row].detach()
            pair = x[row : row + 1].detach(), logits[row : row + 1]
            past = heads_first(values, 2), owner, position
            same(conv_step(*past, logits[:, -1], softmax=True)[row], dynamicconv(*pair, causal=True)[0, -1])
            same(conv_step(*past, weights[None], softmax=False)[row], lightconv(pair[0], weights, causal=True)[0, -1])


@every_kernel
@pytest.mark.parametrize("softmax", [True, False])
def test_a_product_over_all_slots_is_the_definition(taps, softmax):
    """Test slots of any age, more slots than taps, and positions before the first."""
    sentences, beam, heads, size, slots = 3, random.choice([1, 4]), 2, 5, taps + random.randrange(3)
    values = torch.randn(sentences, heads, slots, beam, size, dtype=torch.float64)
    owner = torch.randint(beam, (sentences * beam, slots + random.randrange(3)))
    weights = torch.randn(random.choice([1, sentences * beam]), heads, taps, dtype=torch.float64)
    for position in (torch.randint(3 * slots, (sentences * beam,)), torch.zeros(sentences * beam, dtype=torch.int64)):
        given = values, owner, position, weights
        same(conv_step(*given, softmax=softmax), conv_step_reference(*given, softmax=softmax))


class Numbers(TorchDispatchMode):
    """Counter of the largest number of elements that any operation returned, without views."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


@pytest.mark.parametrize("op", ["lightconv", "dynamicconv"])
def test_memory_is_linear_in_length(op):
    """Neither tensors kept for the backward pass nor intermediate tensors grow faster than the sequence."""
    found = []
    for length in (4 * BLOCK, 8 * BLOCK):
        x, logits = torch.randn(1, length, 8, requires_grad=True), torch.randn(1, length, 2, 31, requires_grad=True)
        kept: list[int] = []
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda t, k=kept: (k.append(t.numel()), t)[1], lambda t: t)
        with Numbers() as numbers, hooks:
            if op == "lightconv":
                y = lightconv(x, logits[0, 0], causal=True)
            else:
                y = dynamicconv(x, logits, causal=True)
            y.sum().backward()
        found.append((numbers.largest, sum(kept)))
    (small, small_kept), (large, large_kept) = found
    assert large <= 2.1 * small
    assert large_kept <= 2.1 * small_kept
    assert large < (8 * BLOCK) ** 2


def test_unpack_by_hand():
    """Bit k % 32 of word k // 32; the top bit is the sign."""
    kept = unpack(torch.tensor([[5 - 2**31, 2], [0, 0]], dtype=torch.int32), 34)
    assert [row.nonzero().flatten().tolist() for row in kept] == [[0, 2, 31, 33], []]


@given(st.floats(0, 1, exclude_max=True))
def test_keep_probability_is_rounded_once(drop):
    keep = keep_probability(drop)
    assert (keep * 256).is_integer()
    assert 0 < keep <= 1
    assert abs(keep - (1 - drop)) <= 1 / 512 or keep == 1 / 256


@pytest.mark.parametrize("drop", [0.0, 0.001, 0.1, 0.3, 0.5, 0.9, 0.999])
def test_keep_words_have_the_probability_they_say(drop):
    """The probability holds over all taps and per tap, and neighbors are independent.

    At 9 standard deviations, P is below 1e-10 for the 40 taps together: with p = 1/256 their counts are Poisson's of
    mean 78, and 78 + 9 sqrt(78) or more has P = 1e-14; other p are nearer to normal.
    """
    taps, rows, p = 40, 20_000, keep_probability(drop)
    kept = unpack(keep_words((rows,), taps, drop), taps).double()
    assert kept.shape == (rows, taps)
    deviation = (p * (1 - p)) ** 0.5
    assert abs(kept.mean().item() - p) <= 9 * deviation / (rows * taps) ** 0.5
    assert (kept.mean(0) - p).abs().max().item() <= 9 * deviation / rows**0.5
    together = (kept[:, 1:] * kept[:, :-1]).mean().item()
    assert abs(together - p * p) <= 9 * 2 * deviation / (rows * (taps - 1)) ** 0.5


def test_drop_weights():
    """Kept weights are scaled by the rounded probability; dropped ones are 0 and get no gradient."""
    weights, words = draw(5, 40), keep_words((5,), 40, 0.5)
    keep = unpack(words, 40)
    same(drop_weights(weights, None, 1.0), weights)
    y = drop_weights(weights, words, 0.25)
    same(y, weights * keep * 4)
    (gradient,) = torch.autograd.grad(y.sum(), weights)
    same(gradient, keep.double() * 4)


@pytest.mark.parametrize("causal", [True, False])
def test_attention_is_its_reference(causal):
    """torch's kernel and the definition agree in value and gradient, with and without a mask and a bias."""
    shapes = (2, 3, 6, 4), (2, 3, 6 if causal else 9, 4)
    q, k, v = draw(*shapes[0]), draw(*shapes[1]), draw(*shapes[1])
    allowed = None if causal else torch.rand(2, 1, 6, 9) < 0.5
    if allowed is not None:
        allowed[..., 0] = True
    for bias in (None, draw(3, 6, shapes[1][2])):
        pair = (op(q, k, v, bias=bias, mask=allowed, causal=causal) for op in (attention, attention_reference))
        same_with_gradients(*pair, [q, k, v, *([] if bias is None else [bias])])


@pytest.mark.parametrize("causal", [True, False])
def test_bfloat16_attention(causal):
    """Training on a CPU takes the definition, other calls torch's kernel: both are close to float32."""
    q, k, v = (torch.randn(2, 3, 6, 8) for _ in range(3))
    exact = attention(q, k, v, causal=causal)
    narrow = [part.bfloat16() for part in (q, k, v)]
    with torch.no_grad():
        torch.testing.assert_close(attention(*narrow, causal=causal).float(), exact, atol=3e-2, rtol=3e-2)
    found = attention(*(part.requires_grad_() for part in narrow), causal=causal)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), exact, atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("drop", [0.001, 0.1, 0.3, 0.5, 0.9])
def test_dropout_keeps_the_mean(drop):
    """Kept elements are scaled by 1 / keep, their share is as given, and the gradient follows the mask."""
    x, keep = torch.ones(300, 1000, requires_grad=True), keep_probability(drop)
    y = dropout(x, drop)
    kept = y != 0
    assert torch.equal(y, kept / keep)
    # 9 standard deviations of a count of at least 1,000 among 300,000: P below 1e-15
    assert abs(kept.double().mean().item() - keep) <= 9 * (keep * (1 - keep) / x.numel()) ** 0.5
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, kept / keep)


@pytest.mark.parametrize("drop", [0.1, 0.3])
def test_dropout_scales_bf16_by_an_unrounded_number(drop):
    """If 1 / keep were rounded first, such as 1.113 to 1.109, every mean would be too small."""
    x = torch.randn(300, 100).bfloat16()
    y = dropout(x, drop)
    scaled = (x.float() / keep_probability(drop)).bfloat16()
    assert torch.equal(y[y != 0], scaled[y != 0])


def test_dropout_module():
    """Dropout acts only in training, keeps the type of its input, does nothing at rate 0, and repeats by seed."""
    x, module = torch.randn(40, 40), Dropout(0.5)
    assert module.eval()(x) is x
    assert Dropout(0.0).train()(x) is x
    assert module.train()(x.bfloat16()).dtype == torch.bfloat16
    torch.manual_seed(5)
    first = module(x)
    assert not torch.equal(first, module(x))
    torch.manual_seed(5)
    assert torch.equal(first, module(x))


def test_random_bytes_are_uniform():
    """Chi-square over the 256 values, at each of the eight places of a draw: 255 degrees, 8 standard deviations."""
    count = 8 * 50_000
    drawn = random_bytes((count,)).view(-1, 8)
    for place in range(8):
        seen = torch.bincount(drawn[:, place].long(), minlength=256).double()
        expected = count / 8 / 256
        assert ((seen - expected).square() / expected).sum() < 255 + 8 * (2 * 255) ** 0.5
    assert random_bytes((3, 5)).shape == (3, 5)
    assert random_bytes((0, 5)).shape == (0, 5)
