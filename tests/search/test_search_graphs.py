"""Replayed decoding steps against plain ones, by a recorder that replays operations on a CPU."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, NamedTuple
from unittest import mock

import pytest
import tiny as tiny_checkpoint
import torch
from composed import BOS, EOS, PAD, PRESETS, VOCAB, tiny
from recorded_steps import PretendedGPU, TwinRecorder

import seq2seq.search.graphs
from seq2seq.inference.translator import Translator
from seq2seq.network.state import Ancestry, ancestries
from seq2seq.search import Constrained, Drawn, Ensemble, Graphs, NotFiniteScoresError, Source, Specials, search_stream
from seq2seq.search.choice import OpenHypotheses
from seq2seq.search.graphs import choose_graphs, cuda_graphs
from seq2seq.search.rows import Rows
from seq2seq.settings.search import SearchSettings

MODELS = {preset: (f"mixer={preset}",) for preset in PRESETS} | {
    "attention-dynamicconv": ("mixer=transformer", "mixer/self@mixer.decoder=dynamicconv"),
    "dynamicconv-bahdanau": ("mixer=dynamicconv", "mixer/cross=bahdanau"),
    "learned": ("mixer=transformer", "model.positions=learned"),
}
EXHAUSTIVE = {
    "test_a_step_that_waits_is_left_as_it_is",
    "test_what_cannot_be_captured_is_not_tried",
    "test_an_ensemble",
    "test_narrow_weights",
}
REPRESENTATIVE = {
    "test_a_planted_error_is_found": {"states", "counters"},
    "test_options": {"transformer-samples"},
    "test_narrow_weights": {"bahdanau"},
    "test_replayed_steps_are_plain_ones": {"1-bahdanau"},
    "test_only_graphs_that_are_asked_for_are_missed_aloud": {"True"},
}
SHALLOW = ("model.encoder_layers=1", "model.decoder_layers=1")
SPECIAL = Specials(BOS, EOS, PAD)
BYTES = {piece: 0x40 + piece for piece in range(6, 14)} | {14: 0xC3, 15: 0xA9, 16: 0xE2, 17: 0x82, 18: 0xAC}
# First longest; the first search ends with 21 tokens or more, so that slots in use grow twice
LENGTHS = [12, 12, 11, 11, 9, 8, 7, 6]


@contextmanager
def pretended_gpu() -> Iterator[None]:
    """Let everything run as on a GPU, except Triton kernels, which take long on a CPU."""
    with mock.patch("seq2seq.kernels.dispatch.gpu_obstacle", return_value="there is none"), PretendedGPU():
        yield


def model_of(*overrides: str) -> Any:
    model = tiny(*overrides, "model.tie=none")
    with torch.no_grad():
        model.output.weight.mul_(3)
        model.output.bias[EOS] -= 3.0
    return model


def twin() -> tuple[Graphs, dict[str, int]]:
    counts: dict[str, int] = {}
    return Graphs(functools.partial(TwinRecorder, counts)), counts


def sources(**more: Any) -> list[Source]:
    return [Source([4 + (7 * i + 3 * j) % (VOCAB - 4) for j in range(n)], **more) for i, n in enumerate(LENGTHS)]


def found(model: Any, given: list[Source], graphs: Graphs | None, rows: int = 3, **how: Any) -> list[Any]:
    """All hypotheses of a stream through a few rows, by sentence."""
    how = {"special": SPECIAL, "settings": SearchSettings(beam_size=4, n_best=4, max_len_extra=10)} | how
    with pretended_gpu():
        stream = search_stream(model, given, rows=rows, device=torch.device("cuda"), graphs=graphs, **how)
        return [hypotheses for _, hypotheses in sorted(chain.from_iterable(stream))]


def assert_equal(model: Any, given: list[Source], least: int = 10, **how: Any) -> dict[str, int]:
    graphs, counts = twin()
    replayed = found(model, given, graphs, **how)
    assert not graphs.failed, graphs._said
    # Bit for bit: the same operations on the same numbers
    assert replayed == found(model, given, None, **how)
    assert counts["captured"] == graphs.count > 0
    assert counts["replayed"] >= least
    return counts


@pytest.mark.parametrize("overrides", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize("beam_size", [1, 4])
def test_replayed_steps_are_plain_ones(overrides, beam_size):
    """Texts and scores of the n best, while sentences enter and leave and slots in use grow."""
    settings = SearchSettings(beam_size=beam_size, n_best=beam_size, max_len_extra=10)
    assert_equal(model_of(*overrides), sources(), settings=settings)


OPTIONS: dict[str, dict[str, Any]] = {
    "rules": {"settings": {"no_repeat_ngram": 2, "min_len": 4}, "suppress": (5,)},
    "groups": {"settings": {"beam_groups": 2}},
    "samples": {"selection": Drawn(EOS, 0.9)},
    "nucleus": {"selection": Drawn(EOS, 0.9, top_p=0.8)},
    "top k": {"selection": Drawn(EOS, 0.9, top_k=5)},
    "bytes": {"special": SPECIAL._replace(byte_of=BYTES)},
    "prefixes": {"prefix": [7, 4, 4]},
    "one row": {"rows": 1},
    "no stream": {"rows": len(LENGTHS)},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("mixer", ["transformer", "bahdanau"])
def test_options(options, mixer):
    options = dict(options)
    settings = {"beam_size": 4, "n_best": 4, "max_len_extra": 10, **options.pop("settings", {})}
    given = [source._replace(seed=i) for i, source in enumerate(sources(prefix=options.pop("prefix", ())))]
    assert_equal(model_of(f"mixer={mixer}", *SHALLOW), given, settings=SearchSettings(**settings), **options)


def test_an_ensemble():
    assert_equal(Ensemble([model_of("mixer=gru", *SHALLOW), model_of("mixer=transformer", *SHALLOW)]), sources())


@pytest.mark.parametrize("mixer", ["transformer", "bahdanau", "average", "retention"])
def test_narrow_weights(mixer):
    """Weights have the narrow types in which `translate` stores them on a GPU."""
    model = model_of(f"mixer={mixer}")
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    assert_equal(model, sources())


class Parts(NamedTuple):
    newer: torch.Tensor
    older: torch.Tensor


class Delayed:
    """A model that reads the last three tokens, and whose state hands its parts on without copies.

    Args:
        wide: Its next states are of another type than its first.
    """

    def __init__(self, *, wide: bool = False) -> None:
        self.weights = torch.randn(3, VOCAB, VOCAB) * 2
        self.wide = wide

    def context(self, src: Any, src_mask: Any) -> list[Any]:
        return [src]

    def init_state(self, context: list[Any], *, beam_size: int, max_len: int) -> Any:
        first = context[0][:, 0].repeat_interleave(beam_size)
        return [Parts(first, first.clone())]

    def step(self, token: Any, context: list[Any], state: Any, position: Any) -> tuple[Any, Any]:
        (parts,), token = state, token.clone()
        read = [token, parts.newer, parts.older.long()]
        logits = sum(table[ids] for table, ids in zip(self.weights, read, strict=True))
        return logits, [Parts(token, parts.newer.int() if self.wide else parts.newer)]


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_state_may_hand_its_parts_on(beam_size):
    settings = SearchSettings(beam_size=beam_size, max_len_extra=10)
    assert_equal(Delayed(), sources(), settings=settings)


def admit_elsewhere(self: Rows, *given: Any, plain: Any = Rows.admit) -> None:
    plain(self, *given)
    self.open = OpenHypotheses(*(field.clone() for field in self.open))


@pytest.mark.parametrize("error", ["limits", "counters", "states", "addresses"])
def test_a_planted_error_is_found(error, monkeypatch):
    """The twin of CUDA graphs must show errors that a GPU would make."""
    captured: Any = seq2seq.search.graphs._Captured
    model = model_of("mixer=gru" if error == "states" else "mixer=transformer", *SHALLOW)
    expected = found(model, sources(), None)
    if error == "limits":
        monkeypatch.setattr(Ancestry, "next_limit", 16)
    elif error == "counters":
        monkeypatch.setattr(captured, "_set_counters", lambda self, counts: None)
    elif error == "states":
        monkeypatch.setattr(seq2seq.search.graphs, "overwrite", lambda state, new: None)
    else:
        monkeypatch.setattr(Rows, "admit", admit_elsewhere)
    # Rows at other addresses leave scores that were never written; the other errors change results
    accepted = [NotFiniteScoresError] if error == "addresses" else []
    with suppress(*accepted):
        assert found(model, sources(), twin()[0]) != expected


def waiting(model: Any, longest: int = 0) -> Any:
    """Let a model's steps read a number once so many slots are in use."""
    plain = model.step

    def step(token: Any, context: Any, state: Any, position: Any) -> Any:
        if max(each.next_limit for each in ancestries(state)) > longest and (token < 0).any():
            raise AssertionError
        return plain(token, context, state, position)

    model.step = step
    return model


@pytest.mark.parametrize("longest", [0, 16])
def test_a_step_that_waits_is_left_as_it_is(longest, caplog):
    """After the first failed capture, also in the middle of a search, steps run plainly; one warning says why."""
    model = waiting(model_of("mixer=transformer", *SHALLOW), longest)
    expected, (graphs, counts) = found(model, sources(), None), twin()
    for _ in range(2):
        assert found(model, sources(), graphs) == expected
    assert bool(counts.get("replayed")) == bool(longest)
    messages = [record.message for record in caplog.records if "CUDA graphs" in record.message]
    assert messages == ["decoding without CUDA graphs: __bool__ is not permitted while a step is captured"]


def test_a_state_that_changes_its_type_is_left_as_it_is(caplog):
    model, (graphs, counts) = Delayed(wide=True), twin()
    assert found(model, sources(), graphs) == found(model, sources(), None)
    assert counts == {"plain": 1}
    assert "of torch.int32, not" in caplog.text


def test_what_cannot_be_captured_is_not_tried(caplog):
    model, (graphs, counts) = model_of("mixer=transformer", *SHALLOW), twin()
    given = sources(phrases=([7, 4],))
    phrases = Constrained(EOS)
    assert found(model, given, graphs, selection=phrases) == found(model, given, None, selection=phrases)
    assert counts == {}
    assert caplog.text.count("phrases are searched by the host") == 1
    with mock.patch("torch.is_autocast_enabled", return_value=True):
        found(model, sources(), graphs)
    assert counts == {}
    # Replay continues after either of them
    found(model, sources(), graphs)
    assert counts["replayed"]


def test_a_cpu_has_no_graphs(tmp_path):
    with pytest.raises(ValueError, match="CUDA graphs need a GPU, and this runs on 'cpu'; leave out --cuda-graphs"):
        Translator.load(tiny_checkpoint.save(tmp_path), device="cpu", cuda_graphs=True)


@pytest.mark.parametrize(
    ("device", "asked", "captures"),
    [("cpu", None, False), ("cpu", False, False), ("cuda", None, True), ("cuda:1", True, True), ("cuda", False, False)],
)
def test_a_gpu_has_graphs_by_default(device, asked, captures):
    graphs = choose_graphs(torch.device(device), asked)
    assert (graphs is not None) == captures
    assert graphs is None or graphs.quiet == (asked is None)


@pytest.mark.parametrize("quiet", [False, True])
def test_only_graphs_that_are_asked_for_are_missed_aloud(caplog, quiet):
    graphs = Graphs(functools.partial(TwinRecorder, {}), quiet=quiet)
    for _ in range(2):
        found(model_of("mixer=transformer", *SHALLOW), sources(phrases=([7, 4],)), graphs, selection=Constrained(EOS))
    assert caplog.text.count("decoding without CUDA graphs") == (not quiet)


def on_gpu(model: Any, graphs: Graphs | None) -> list[Any]:
    """All hypotheses of the stream, by sentence, searched on a GPU."""
    settings = SearchSettings(beam_size=4, n_best=4, max_len_extra=10)
    how = {"special": SPECIAL, "settings": settings, "rows": 3, "device": torch.device("cuda"), "graphs": graphs}
    return [hypotheses for _, hypotheses in sorted(chain.from_iterable(search_stream(model.cuda(), sources(), **how)))]


@pytest.mark.gpu
@pytest.mark.parametrize("mixer", ["transformer", "lightconv", "dynamicconv", "bahdanau", "pyramid", "retention"])
def test_cuda_graphs_are_plain_steps(mixer):
    model, graphs = model_of(f"mixer={mixer}"), cuda_graphs(torch.device("cuda"))
    for mine, plain in zip(on_gpu(model, graphs), on_gpu(model, None), strict=True):
        # Kernels may be chosen by where memory begins, so that rounding may differ
        assert mine[0].score == pytest.approx(plain[0].score, abs=1e-4)
    assert graphs.count
    assert not graphs.failed, graphs._said


@pytest.mark.gpu
def test_a_capture_that_fails_leaves_the_gpu_as_it_was(caplog):
    model, graphs = waiting(model_of("mixer=transformer", *SHALLOW), 16), cuda_graphs(torch.device("cuda"))
    stream = torch.cuda.current_stream()
    for mine, plain in zip(on_gpu(model, graphs), on_gpu(model, None), strict=True):
        assert mine[0].score == pytest.approx(plain[0].score, abs=1e-4)
    assert torch.cuda.current_stream() == stream
    assert caplog.text.count("decoding without CUDA graphs") == 1
