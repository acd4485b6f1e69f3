"""Attention of short rows on a GPU: all queries and keys of a head of a sentence are one tile of one program.

Arguments of the kernels:
    q, k, v: Queries (B, H, T, d), keys and values (B, G, S, d), each with the strides named after it; each of the G
        heads of keys serves H / G neighboring heads of queries.
    mask: Real keys, (B, S); not read without MASKED.
    bias: Added to the scores, (B, H, T, S); some of its strides may be 0; not read without BIASED.
    keep: Words of dropout, (B, H, T, WORDS), see `kernels.dropconnect`; not read if WORDS is 0.
    lse: Base-2 logarithm of each query's sum of exponentials, (B, H, T).
Compile-time constants:
    WIDTH: d. COLUMNS, QUERIES, KEYS: d, T and S, rounded up to powers of two, at least 16.
    GROUP: H / G.
    CAUSAL: A query sees no key after its own position. WIDE: Products are in float32, see `product`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from seq2seq.kernels.dropconnect import keep_probability
from seq2seq.kernels.launch_config import attention_warps, columns
from seq2seq.kernels.triton_ops import (
    LOG2E,
    aligned,
    load_rows,
    log2,
    narrow,
    needs_wide,
    product,
    reciprocal,
    store_rows,
    unit_stride,
)

# Sizes that vary by batch: a kernel is not compiled again because one of them is 1 or a multiple of 16
VARIES = ("queries", "keys", "mask_batch", "bias_batch", "bias_head", "bias_row")


@triton.jit
def _scores(
    left, right, mask, bias, row, column, queries, keys, bias_row, scale,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, BIASED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Compute scores in units of log2, (QUERIES, KEYS): -inf where attention is not allowed."""
    scores = product(left, tl.trans(right), tl.zeros((row.shape[0], column.shape[0]), tl.float32), WIDE)
    scores *= scale * LOG2E
    inside = column < keys  # (KEYS,)
    if BIASED:
        both = (row < queries)[:, None] & inside[None, :]
        added = tl.load(bias + row[:, None] * bias_row + column[None, :], mask=both, other=0.0)
        scores += added.to(tl.float32) * LOG2E
    if MASKED:
        inside = inside & (tl.load(mask + column, mask=inside, other=0) != 0)
    allowed = inside[None, :]
    if CAUSAL:
        allowed = allowed & (column[None, :] <= row[:, None])
    return tl.where(allowed, scores, float("-inf"))


@triton.jit
def _kept(weights, keep, row, column, queries, scale, WORDS: tl.constexpr):
    """Set dropped weights (QUERIES, KEYS) to 0, and scale the others."""
    if WORDS > 0:
        # The query's word that has the key's bit: the only one for up to 32 keys, else one of two
        word = tl.load(keep + row * WORDS, mask=row < queries, other=0)[:, None]
        if WORDS == 2:
            second = tl.load(keep + row * WORDS + 1, mask=row < queries, other=0)[:, None]
            word = tl.where(column[None, :] < 32, word, second)
        weights = tl.where(((word >> (column & 31)[None, :]) & 1) != 0, weights * scale, 0.0)
    return weights


@triton.jit(do_not_specialize=VARIES)
def one_tile_forward(
    q, k, v, mask, bias, keep, y, lse,
    queries, keys, heads, scale, keep_scale,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    mask_batch, bias_batch, bias_head, bias_row,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, GROUP: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, BIASED: tl.constexpr, WORDS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Compute y (B, T, H, d) and lse of a head of a sentence."""
    head = tl.program_id(0) % heads
    sentence = (tl.program_id(0) // heads).to(tl.int64)  # 64 bits: it multiplies batch strides
    row, key, column = tl.arange(0, QUERIES), tl.arange(0, KEYS), tl.arange(0, COLUMNS)
    left = load_rows(q + sentence * q_batch + head * q_head, q_row, row, column, queries, WIDTH)
    right = load_rows(k + sentence * k_batch + head // GROUP * k_head, k_row, key, column, keys, WIDTH)
    values = load_rows(v + sentence * v_batch + head // GROUP * v_head, v_row, key, column, keys, WIDTH)
    added = bias + sentence * bias_batch + head * bias_head
    scores = _scores(
        left, right, mask + sentence * mask_batch, added, row, key, queries, keys, bias_row, scale,
        CAUSAL, MASKED, BIASED, WIDE,
    )  # fmt: skip
    highest = tl.max(scores, 1)
    # A query that sees no key has weights of 0; their sum counts as 1
    blind = highest == float("-inf")
    highest = tl.where(blind, 0.0, highest)
    weights = tl.exp2(scores - highest[:, None])
    sums = tl.where(blind, 1.0, tl.sum(weights, 1))
    at = (sentence * heads + head) * queries  # index of query 0 in (B, H, T)
    dropped = _kept(weights, keep + at * WORDS, row, key, queries, keep_scale, WORDS)
    mixed = product(narrow(dropped, values, WIDE), values, tl.zeros((QUERIES, COLUMNS), tl.float32), WIDE)
    mixed *= reciprocal(sums)[:, None]  # one division per row, after the sum
    tl.store(lse + at + row, highest + log2(sums), mask=row < queries)
    store_rows(y + (sentence * queries * heads + head) * WIDTH, heads * WIDTH, row, column, queries, mixed, WIDTH)


@triton.jit(do_not_specialize=VARIES)
def one_tile_backward(
    dy, q, k, v, mask, bias, keep, lse, dq, dk, dv, dbias,
    queries, keys, heads, scale, keep_scale,
    dy_batch, dy_head, dy_row, q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    dq_batch, dq_row, dk_batch, dk_row,
    mask_batch, bias_batch, bias_head, bias_row,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, GROUP: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, BIASED: tl.constexpr, WORDS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Compute dq, dk and dv of a head of keys in a sentence, and dbias (B, H, T, S)."""
    key_heads = heads // GROUP
    key_head = tl.program_id(0) % key_heads
    sentence = (tl.program_id(0) // key_heads).to(tl.int64)
    row, key, column = tl.arange(0, QUERIES), tl.arange(0, KEYS), tl.arange(0, COLUMNS)
    right = load_rows(k + sentence * k_batch + key_head * k_head, k_row, key, column, keys, WIDTH)
    values = load_rows(v + sentence * v_batch + key_head * v_head, v_row, key, column, keys, WIDTH)
    dright = tl.zeros((KEYS, COLUMNS), tl.float32)
    dvalues = tl.zeros((KEYS, COLUMNS), tl.float32)
    # The compiler removes a loop of one iteration
    for member in range(GROUP):
        head = key_head * GROUP + member
        left = load_rows(q + sentence * q_batch + head * q_head, q_row, row, column, queries, WIDTH)
        grad = load_rows(dy + sentence * dy_batch + head * dy_head, dy_row, row, column, queries, WIDTH)
        at = (sentence * heads + head) * queries
        norm = tl.load(lse + at + row, mask=row < queries, other=float("inf"))
        added = bias + sentence * bias_batch + head * bias_head
        scores = _scores(
            left, right, mask + sentence * mask_batch, added, row, key, queries, keys, bias_row, scale,
            CAUSAL, MASKED, BIASED, WIDE,
        )  # fmt: skip
        weights = tl.exp2(scores - norm[:, None])
        words = keep + at * WORDS
        dropped = _kept(weights, words, row, key, queries, keep_scale, WORDS)
        dvalues = product(tl.trans(narrow(dropped, grad, WIDE)), grad, dvalues, WIDE)
        # dy_t . v_s for the kept weights
        shares = product(grad, tl.trans(values), tl.zeros((QUERIES, KEYS), tl.float32), WIDE)
        shares = _kept(shares, words, row, key, queries, keep_scale, WORDS)
        # dscores = w (g - sum_s w g)
        grads = weights * (shares - tl.sum(weights * shares, 1)[:, None])
        if BIASED:
            to = dbias + at * keys + row[:, None] * keys + key[None, :]
            tl.store(to, grads, mask=(row < queries)[:, None] & (key < keys)[None, :])
        dleft = product(narrow(grads, right, WIDE), right, tl.zeros((QUERIES, COLUMNS), tl.float32), WIDE)
        store_rows(dq + sentence * dq_batch + head * WIDTH, dq_row, row, column, queries, dleft * scale, WIDTH)
        dright = product(tl.trans(narrow(grads, left, WIDE)), left, dright, WIDE)
    own = sentence * dk_batch + key_head * WIDTH
    store_rows(dk + own, dk_row, key, column, keys, dright * scale, WIDTH)
    store_rows(dv + own, dk_row, key, column, keys, dvalues, WIDTH)


def constants(
    queries: int,
    keys: int,
    head_dim: int,
    dtype: torch.dtype,
    *,
    group: int = 1,
    causal: bool,
    masked: bool,
    biased: bool,
    drop: bool,
    backward: bool,
) -> dict[str, int | bool]:
    """Return a kernel's compile-time constants and launch settings."""
    tiles = {"QUERIES": columns(queries), "KEYS": columns(keys), "COLUMNS": columns(head_dim)}
    flags = {"CAUSAL": causal, "MASKED": masked, "BIASED": biased, "WORDS": -(-keys // 32) if drop else 0}
    launch = {"num_warps": attention_warps(queries, keys, head_dim, dtype, backward=backward), "num_stages": 1}
    return {"WIDTH": head_dim, "GROUP": group, **tiles, **flags, "WIDE": needs_wide(dtype), **launch}


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    keep: Tensor | None,
    causal: bool,
    drop: float,
) -> tuple[Tensor, Tensor]:
    """Compute y (B, H, T, d), the heads of a position adjacent, and lse (B, H, T)."""
    q, k, v = aligned(q), aligned(k), aligned(v)
    batch, heads, queries, width = q.shape
    y = torch.empty(batch, queries, heads, width, dtype=q.dtype, device=q.device)
    lse = torch.empty(batch, heads, queries, dtype=torch.float32, device=q.device)
    options, numbers, strides, values = _arguments(q, k, bias, mask, keep, causal, drop, backward=False)
    with torch.cuda.device_of(q):
        one_tile_forward[(batch * heads,)](q, k, v, *options, y, lse, *numbers, *_strides(q, k, v), *strides, **values)
    return y.transpose(1, 2), lse


def backward(
    dy: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    keep: Tensor | None,
    *,
    causal: bool,
    drop: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Compute dq, dk, dv and, if there is a bias, dbias from dy (B, H, T, d) and the inputs of the forward pass.

    dq, dk and dv are parts of one tensor (B, T, (H + 2 G) d), so that a joint projection gets its gradient whole (see
    `short_rows.divide`); if S differs from T, only dk and dv share a tensor, (B, S, 2 G d).
    """
    dy, q, k, v = aligned(dy), aligned(q), aligned(k), aligned(v)
    (batch, heads, queries, width), (key_heads, keys) = q.shape, k.shape[1:3]
    sizes = [heads, key_heads, key_heads]
    if queries == keys:
        joint = torch.empty(batch, queries, sum(sizes), width, dtype=q.dtype, device=q.device)
        dq, dk, dv = joint.transpose(1, 2).split(sizes, 1)
    else:
        dq = torch.empty(batch, queries, heads, width, dtype=q.dtype, device=q.device).transpose(1, 2)
        joint = torch.empty(batch, keys, 2 * key_heads, width, dtype=q.dtype, device=q.device)
        dk, dv = joint.transpose(1, 2).chunk(2, 1)
    shape = (0,) if bias is None else (batch, heads, queries, keys)
    dbias = torch.empty(shape, dtype=torch.float32, device=q.device)
    options, numbers, strides, values = _arguments(q, k, bias, mask, keep, causal, drop, backward=True)
    with torch.cuda.device_of(q):
        one_tile_backward[(batch * key_heads,)](
            dy, q, k, v, *options, lse, dq, dk, dv, dbias, *numbers, *_strides(dy, q, k, v),
            dq.stride(0), dq.stride(2), dk.stride(0), dk.stride(2), *strides, **values,
        )  # fmt: skip
    # The gradients of a bias that sentences or heads share are summed here, not atomically, so calls repeat exactly
    return dq, dk, dv, None if bias is None else dbias.sum_to_size(bias.shape).to(bias.dtype)


def _arguments(
    q: Tensor,
    k: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    keep: Tensor | None,
    causal: bool,
    drop: float,
    *,
    backward: bool,
) -> tuple[tuple[Tensor, ...], tuple[float, ...], tuple[int, ...], dict[str, int | bool]]:
    """Return arguments of both kernels: mask, bias and keep; sizes and scales; strides of mask and bias; constants."""
    (batch, heads, queries, width), (key_heads, keys) = q.shape, k.shape[1:3]
    # A kernel takes a pointer for every argument: queries stand for absent ones, and are not read
    real = q if mask is None else unit_stride(mask[:, 0, 0]).expand(batch, -1)
    added = q
    if bias is not None:
        # Keys are expanded first, so that a bias shared by sentences or heads is copied at most once
        added = unit_stride(bias.expand(*bias.shape[:-1], keys)).expand(batch, heads, queries, keys)
    flags = {"causal": causal, "masked": mask is not None, "biased": bias is not None, "drop": keep is not None}
    values = constants(queries, keys, width, q.dtype, group=heads // key_heads, backward=backward, **flags)
    options = (real, added, q if keep is None else keep)
    numbers = (queries, keys, heads, width**-0.5, 1.0 / keep_probability(drop))
    return options, numbers, (real.stride(0), *added.stride()[:3]), values


def _strides(*tensors: Tensor) -> list[int]:
    """Return the strides of batches, heads and rows."""
    return [stride for x in tensors for stride in x.stride()[:3]]
