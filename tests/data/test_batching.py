"""Token-budget batches: every index once, the budget held, order by (seed, epoch), equal steps for every rank."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seq2seq.data.batching import Ragged, collate, padding_share, token_batches
from seq2seq.data.updates import IDLE, TokenBatchSampler

lengths = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=200)
fast = settings(max_examples=60, deadline=None)


def split(pairs):
    array = np.asarray(pairs, dtype=np.int32)
    return array[:, 0], array[:, 1]


def cost(src, tgt, rows):
    return len(rows) * max(src[rows].max(), tgt[rows].max())


@fast
@given(lengths, st.integers(40, 400), st.integers(0, 5), st.integers(0, 3), st.booleans())
def test_every_index_once_and_budget_held(pairs, max_tokens, seed, epoch, shuffle):
    src, tgt = split(pairs)
    batches = token_batches(src, tgt, max_tokens=max_tokens, seed=seed, epoch=epoch, shuffle=shuffle)
    assert sorted(np.concatenate(batches)) == list(range(len(src)))
    assert all(cost(src, tgt, rows) <= max_tokens for rows in batches)


@fast
@given(lengths, st.integers(40, 400), st.integers(0, 9))
def test_same_seed_and_epoch_same_batches_and_count_never_changes(pairs, max_tokens, seed):
    src, tgt = split(pairs)

    def batches(epoch):
        return token_batches(src, tgt, max_tokens=max_tokens, seed=seed, epoch=epoch)

    first, again, other = batches(0), batches(0), batches(1)
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert len(first) == len(other)


@fast
@given(lengths, st.integers(40, 200), st.integers(1, 4), st.booleans())
def test_ranks_share_everything_once_with_equal_steps(pairs, max_tokens, world_size, shuffle):
    src, tgt = split(pairs)
    fewest = len(token_batches(src, tgt, max_tokens=max_tokens, shuffle=shuffle))
    if len(src) < -(-fewest // world_size) * world_size:  # too few sentences for one batch per rank in the last step
        with pytest.raises(ValueError, match="fewer devices"):
            token_batches(src, tgt, max_tokens=max_tokens, shuffle=shuffle, multiple_of=world_size)
        return
    ranks = [
        TokenBatchSampler(
            src_lengths=src, tgt_lengths=tgt, max_tokens=max_tokens, shuffle=shuffle, rank=rank, world_size=world_size
        )
        for rank in range(world_size)
    ]
    seen = [list(sampler) for sampler in ranks]
    assert {len(batches) for batches in seen} == {len(ranks[0])}
    assert sorted(np.concatenate([rows for batches in seen for rows in batches])) == list(range(len(src)))
    assert all(cost(src, tgt, rows) <= max_tokens for batches in seen for rows in batches)


@fast
@given(lengths, st.integers(40, 200), st.data())
def test_seek_continues_where_an_epoch_was_left(pairs, max_tokens, data):
    src, tgt = split(pairs)
    sampler = TokenBatchSampler(src_lengths=src, tgt_lengths=tgt, max_tokens=max_tokens, seed=3)
    sampler.set_epoch(2)
    whole = list(sampler)
    step = data.draw(st.integers(0, len(sampler)))
    resumed = TokenBatchSampler(src_lengths=src, tgt_lengths=tgt, max_tokens=max_tokens, seed=3)
    resumed.seek(epoch=2, step=step)
    rest = list(resumed)
    assert len(rest) == len(whole) - step
    assert all((a == b).all() for a, b in zip(rest, whole[step:], strict=True))
    assert len(list(resumed)) == len(whole)  # the next iteration is whole again


def test_order_differs_between_epochs_and_seeds():
    rng = np.random.default_rng(0)
    src = rng.integers(2, 30, 3000)
    tgt = np.maximum(2, src + rng.integers(-2, 3, 3000))

    def order(seed, epoch):
        return np.concatenate(token_batches(src, tgt, max_tokens=300, seed=seed, epoch=epoch)).tolist()

    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)
    # Not only the batches' order: their members differ too.
    members = [
        {frozenset(rows.tolist()) for rows in token_batches(src, tgt, max_tokens=300, seed=1, epoch=epoch)}
        for epoch in (0, 1)
    ]
    assert len(members[0] & members[1]) < len(members[0]) / 2


def test_padding_is_small_and_counted_over_both_sides():
    rng = np.random.default_rng(0)
    src = rng.poisson(10, 20_000) + 2
    tgt = np.maximum(2, src + rng.integers(-4, 5, 20_000))
    batches = token_batches(src, tgt, max_tokens=2048)
    assert padding_share(src, tgt, batches) < 0.1
    one = [np.array([0, 1])]
    assert padding_share(np.array([1, 3]), np.array([4, 4]), one) == pytest.approx(4 / 16)  # 3 is padded to 4
    # An idle micro-batch is a copy of the last row, and no token of it counts
    assert padding_share(np.array([1, 3]), np.array([4, 4]), [*one, IDLE]) == pytest.approx(12 / 24)


@pytest.mark.parametrize("mean", [9, 11.4])
@pytest.mark.parametrize("max_tokens", [1500, 4096])
def test_padding_of_everyday_sentences_is_under_a_tenth(mean, max_tokens):
    """Lengths as in tatoeba: 154k pairs, log-normal (deviations 0.38 and 0.34, correlation 0.8), eos included."""
    rng = np.random.default_rng(0)
    common, own = rng.standard_normal(154_000), rng.standard_normal(154_000)
    logs = np.log(mean) + np.stack([0.38 * common, 0.34 * (0.8 * common + 0.6 * own)]) - 0.07
    src, tgt = np.clip(np.rint(np.exp(logs)), 2, 110).astype(np.int32)
    assert src.mean() == pytest.approx(mean, rel=0.03)
    for epoch in (0, 1):
        batches = token_batches(src, tgt, max_tokens=max_tokens, epoch=epoch)
        assert padding_share(src, tgt, batches) < 0.1


def test_too_long_pair_is_alone_in_evaluation():
    src, tgt = np.array([5, 300, 7]), np.array([5, 6, 7])
    batches = token_batches(src, tgt, max_tokens=100, shuffle=False)
    assert [rows.tolist() for rows in batches] == [[1], [0, 2]]


def test_a_line_of_a_million_tokens_costs_no_memory():
    """Classes are pairs of widths that occur; pairs of all widths would take a hundred gigabytes."""
    src, tgt = np.array([5, 1_000_000, 7, 20_000]), np.array([5, 6, 1_000_000, 20_000])
    batches = token_batches(src, tgt, max_tokens=100, shuffle=False)
    assert [rows.tolist() for rows in batches] == [[2], [1], [3], [0]]


def test_evaluation_order_is_longest_first():
    src = np.arange(1, 200)
    firsts = [src[rows].max() for rows in token_batches(src, src, max_tokens=250, shuffle=False)]
    assert firsts == sorted(firsts, reverse=True)


def test_collate_pads_on_the_right_and_shifts_the_target():
    src = Ragged.from_rows([[7, 8, 3], [9, 3]])
    tgt = Ragged.from_rows([[5, 3], [6, 7, 8, 3]])
    batch = collate(src, tgt, np.array([4, 2]), pad_id=0, bos_id=2)
    assert batch.src.tolist() == [[7, 8, 3, 0], [9, 3, 0, 0]]
    assert batch.src_mask.tolist() == [[True, True, True, False], [True, True, False, False]]
    assert batch.tgt_out.tolist() == [[5, 3, 0, 0], [6, 7, 8, 3]]
    assert batch.tgt_in.tolist() == [[2, 5, 0, 0], [2, 6, 7, 8]]
    assert batch.tgt_mask.tolist() == [[True, True, False, False], [True] * 4]
    assert batch.index.tolist() == [4, 2]
    assert {field.dtype for field in batch} == {torch.int64, torch.bool}


@fast
@given(st.lists(st.lists(st.integers(4, 99), max_size=9), min_size=1, max_size=8), st.data())
def test_ragged_rows_come_back_whole(rows, data):
    rows = [[*row, 3] for row in rows]
    ragged = Ragged.from_rows(rows)
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=5))
    part = ragged.select(np.array(chosen))
    assert [part.row(i).tolist() for i in range(len(chosen))] == [rows[i] for i in chosen]
    batch = collate(part, part, np.array(chosen), pad_id=0, bos_id=2)
    unpadded = [ids[mask].tolist() for ids, mask in zip(batch.src, batch.src_mask, strict=True)]
    assert unpadded == [rows[i] for i in chosen]


@fast
@given(lengths, st.integers(40, 200), st.booleans())
def test_a_window_on_one_rank_is_a_step_of_several(pairs, max_tokens, shuffle):
    """Batches and their order are the same if there are enough sentences for equal windows."""
    src, tgt = split(pairs)

    def sampler(**given):
        return TokenBatchSampler(src_lengths=src, tgt_lengths=tgt, max_tokens=max_tokens, shuffle=shuffle, **given)

    alone = list(sampler(window=4))
    assert sorted(np.concatenate(alone)) == list(range(len(src)))
    if len(alone) % 4:
        with pytest.raises(ValueError, match="fewer devices"):
            len(sampler(world_size=4))
        return
    ranks = [list(sampler(rank=rank, world_size=2, window=2)) for rank in range(2)]
    assert all(np.array_equal(a, b) for a, b in zip(alone[::2], ranks[0], strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(alone[1::2], ranks[1], strict=True))


@pytest.mark.parametrize(("multiple", "width"), [(1, 10), (8, 16)])
def test_a_source_may_be_padded_further(multiple, width):
    src, tgt = (Ragged.from_rows([[5] * length + [2] for length in sizes]) for sizes in ([8, 3], [4, 6]))
    batch = collate(src, tgt, np.arange(2), pad_id=0, bos_id=1, src_multiple=multiple)
    assert batch.src.shape == batch.src_mask.shape == (2, width)
    assert batch.tgt_in.shape == batch.tgt_mask.shape == (2, 8)
    assert batch.src_mask.sum(1).tolist() == [9, 4]
    assert not batch.src[~batch.src_mask].any()
    share = padding_share(src.lengths, tgt.lengths, [np.arange(2)], src_multiple=multiple)
    assert share == pytest.approx(1 - (9 + 4 + 5 + 7) / (2 * width + 2 * 8))
