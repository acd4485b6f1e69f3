"""Stages of an encoder: means by hand, padding, decoding, alignments at the source's positions, images, refusals."""

from __future__ import annotations

import composed
import pytest
import torch

from seq2seq import Run
from seq2seq.analysis import mixing_matrix
from seq2seq.inference.forced import force
from seq2seq.mixers.fixed_gaussian import FixedGaussian
from seq2seq.network.pooling import Pooling, spread, stage_begins
from seq2seq.search import Specials

STAGES = ("model.encoder_stages=3",)
SPECIALS = Specials(pad=composed.PAD, bos=composed.BOS, eos=composed.EOS)


def test_stages_are_as_even_as_they_can_be():
    assert stage_begins(4, 2) == [False, False, True, False]
    assert stage_begins(5, 3) == [False, False, True, False, True]
    assert stage_begins(3, 1) == [False] * 3
    assert all(sum(stage_begins(layers, stages)) == stages - 1 for layers in range(1, 9) for stages in range(1, layers))


@pytest.mark.parametrize("grid", [None, (4, 4)])
def test_what_is_spread_is_pooled_again(grid):
    """Weights over S' positions, divided among S and summed again, are the same weights."""
    poolings = [Pooling(grid), Pooling(grid and (2, 2))]
    mask = torch.ones(3, 16).bool()
    if not grid:
        mask[1, 11:], mask[2, 5:] = False, False
    x, short = torch.zeros(3, 16, 1), mask
    for pooling in poolings:
        x, short = pooling(x, short)
    weights = torch.rand(3, 2, x.shape[1]) * short[:, None]
    found = spread(weights, poolings, mask)
    assert found.shape == (3, 2, 16)
    assert not found.masked_select(~mask[:, None]).any()
    torch.testing.assert_close(found.sum(-1), weights.sum(-1))
    if not grid:
        torch.testing.assert_close(found.unflatten(-1, (-1, 4)).sum(-1), weights)
        assert (found[1, 0, 8:11] == weights[1, 0, 2] / torch.tensor([4, 4, 2])).all()


@pytest.mark.parametrize(
    "given",
    [
        ("mixer=transformer", "model.encoder_stages=3"),
        ("mixer=dynamicconv", "model.encoder_stages=2"),
        ("mixer=bahdanau", "model.encoder_layers=2", "model.encoder_stages=2"),
        ("mixer=dynamicconv", "model.encoder_stages=2", "model.encoder_pooling=3", "model.encoder_growth=2"),
    ],
    ids=lambda given: given[0] + given[-1],
)
def test_neither_padding_nor_decoding_by_steps_changes_anything(given):
    model = composed.tiny(*given)
    src, tgt = torch.randint(4, composed.VOCAB, (1, 7)), torch.randint(4, composed.VOCAB, (1, 5))
    padded = torch.cat([src, torch.full((1, 4), composed.PAD)], 1)
    assert model.encoder(src, src.ne(composed.PAD))[0].shape[1] < 7
    expected = model(src, src.ne(composed.PAD), tgt)
    torch.testing.assert_close(model(padded, padded.ne(composed.PAD), tgt), expected)
    context = model.context(padded, padded.ne(composed.PAD))
    state = model.init_state(context, beam_size=1, max_len=5)
    for position in range(5):
        logits, state = model.step(tgt[:, position], context, state, torch.tensor([position]))
        torch.testing.assert_close(logits, expected[:, position])


@pytest.mark.parametrize("mixer", ["transformer", "dynamicconv"])
def test_alignments_are_to_the_source_s_own_positions(mixer):
    model = composed.tiny(f"mixer={mixer}", *STAGES).eval()
    pairs = [([5, 6, 7, 8, 9, 3], [7, 3]), ([5, 3], [6, 8, 9, 3])]
    found = force(model, pairs, special=SPECIALS, device=torch.device("cpu"), align=True)
    for (source, target), forced in zip(pairs, found, strict=True):
        assert forced.weights is not None
        assert forced.weights.shape == (len(target), len(source))
        torch.testing.assert_close(forced.weights.sum(-1), torch.ones(len(target)))


@pytest.mark.parametrize("mixer", ["transformer", "dynamicconv"])
def test_inspection_shows_the_source_s_own_positions(mixer):
    model = composed.tiny(f"mixer={mixer}", *STAGES)
    src, tgt = torch.randint(4, composed.VOCAB, (1, 6)), torch.randint(4, composed.VOCAB, (1, 3))
    shapes = {"encoder": (6, 6), "decoder": (3, 3), "cross": (3, 6)}
    for view in mixing_matrix.views(model, src, tgt):
        assert view.total.shape == shapes[view.part]
        torch.testing.assert_close(view.total.sum(-1), torch.ones(len(view.total)))
    last = [view.total for view in mixing_matrix.views(model, src, tgt) if view.part == "encoder"][-1]
    torch.testing.assert_close(last[0], last[3])  # one position of the third stage
    torch.testing.assert_close(last[:, 0], last[:, 3])


def test_inspection_keeps_kernels_that_run_along_the_target():
    src, tgt = torch.randint(4, composed.VOCAB, (1, 6)), torch.randint(4, composed.VOCAB, (1, 5))
    for stages in (1, 2):
        model = composed.tiny("mixer=cross_dynamicconv", f"model.encoder_stages={stages}")
        crosses = [view for view in mixing_matrix.views(model, src, tgt) if view.part == "cross"]
        assert crosses
        assert all(view.details["predicted kernels"].shape[:2] == (1, 5) for view in crosses)


def test_impossible_stages_are_refused():
    with pytest.raises(ValueError, match=r"local_m reads position i .*choose scope=local_p, or encoder_stages=1"):
        composed.tiny("mixer=transformer", "mixer/cross=luong", "mixer.cross.scope=local_m", "model.encoder_stages=2")
    with pytest.raises(ValueError, match="encoder_stages 5 are more than the 4 encoder layers"):
        composed.tiny("mixer=transformer", "model.encoder_stages=5")


def test_a_fixed_gaussian_goes_as_far_as_the_source():
    """Of 40 positions in three stages 10 are left; the first head begins with the position before p / 4."""
    built = composed.tiny("mixer=fixed_gaussian", *STAGES).decoder.layers[0].cross_mixer
    mixer = FixedGaussian(dim=built.dim, memory_dim=built.memory_dim, num_heads=2, rate=built.rate)
    context = mixer.project(torch.randn(1, 10, built.memory_dim), torch.ones(1, 10, dtype=torch.bool))
    weights = mixer.read_weights(torch.randn(1, 40, built.dim), context)  # (1, H, T, S)
    assert weights[0, 0].argmax(-1)[4::4].tolist() == list(range(9))


@pytest.mark.parametrize("stages", [2, 3])
def test_a_window_lies_over_the_mean_that_its_position_is_part_of(stages):
    factor = 2 ** (stages - 1)
    mixer = composed.tiny("mixer=cross_lightconv", f"model.encoder_stages={stages}", "mixer.cross.kernel_size=1")
    cross = mixer.decoder.layers[0].cross_mixer
    memory = torch.randn(1, 40 // factor, cross.memory_dim)
    context = cross.project(memory, torch.ones(memory.shape[:2], dtype=torch.bool))
    weights = cross.read_weights(torch.randn(1, 40, cross.dim), context)  # (1, H, T, S)
    assert weights[0, 0].argmax(-1).tolist() == [t // factor for t in range(40)]


@pytest.mark.parametrize("stride", [2, 3, 4])
def test_any_number_of_positions_becomes_its_mean(stride):
    """One pool after another on a line, and one cell after another on a grid; `spread` goes back."""
    x, mask = torch.randn(2, 11, 3), composed.lengths_mask([11, 5])
    y, short = Pooling(stride=stride)(x, mask)
    for row, length in enumerate((11, 5)):
        pools = [range(start, min(start + stride, length)) for start in range(0, length, stride)]
        assert short[row].tolist() == [True] * len(pools) + [False] * (y.shape[1] - len(pools))
        for number, pool in enumerate(pools):
            torch.testing.assert_close(y[row, number], x[row, list(pool)].mean(0))
    weights = torch.rand(2, 1, y.shape[1]) * short[:, None]
    found = spread(weights, [Pooling(stride=stride)], mask)
    torch.testing.assert_close(found.sum(-1), weights.sum(-1))
    second = found[1, 0, stride : min(2 * stride, 5)]
    assert (second == weights[1, 0, 1] / len(second)).all()
    cells = torch.randn(1, 2 * stride * 3 * stride, 2)
    pooled, _ = Pooling((2 * stride, 3 * stride), stride)(cells, torch.ones(cells.shape[:2]).bool())
    grid = cells.unflatten(1, (2 * stride, 3 * stride))
    torch.testing.assert_close(pooled[0, 4], grid[0, stride:, stride : 2 * stride].mean((0, 1)))


def test_a_pyramid_has_a_quarter_of_the_positions_and_twice_the_width():
    """N -> N / 4 with C -> 2 C, by hand: a mean, then a linear map."""
    model = composed.tiny("mixer=lightconv", *STAGES, "model.encoder_pooling=4", "model.encoder_growth=2")
    encoder, width = model.encoder, composed.WIDTH
    assert [layer.self_mixer.dim for layer in encoder.layers] == [width, width, 2 * width, 2 * width, 4 * width]
    assert [layer.transform.f.up.out_features for layer in encoder.layers] == [24, 24, 48, 48, 96]
    src = torch.randint(4, composed.VOCAB, (2, 32))
    x, mask = encoder.embedding(src), torch.ones_like(src).bool()
    for number, layer in enumerate(encoder.layers):
        if number in (2, 4):
            x = x.unflatten(1, (-1, 4)).mean(2) @ encoder.widenings[str(number)].weight.t()
            mask = mask[:, ::4]
        x = layer(x, mask)
    memory, short = encoder(src, torch.ones_like(src).bool())
    assert encoder.norm is not None
    torch.testing.assert_close(memory, encoder.norm(x))
    assert memory.shape == (2, 2, 4 * width)
    assert short.shape == (2, 2)


def test_settings_of_stages_that_cannot_work_are_refused():
    with pytest.raises(ValueError, match=r"encoder_growth 64 makes the last of 4 stages 4194304 wide"):
        composed.tiny("mixer=transformer", "model.encoder_stages=4", "model.encoder_growth=64")
    for key in ("encoder_pooling", "encoder_growth"):
        with pytest.raises(ValueError, match=rf"model.{key}=4 has no effect with model.encoder_stages=1"):
            Run.lightning([f"model.{key}=4"])
