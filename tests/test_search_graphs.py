"""Replayed decoding steps against plain ones, by a recorder that replays operations on a CPU."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from composed import BOS, EOS, PAD, PRESETS, VOCAB, tiny
from recorded_steps import TwinRecorder

pytest.importorskip("triton")

from benchmarks import launches
from seq2seq.config.search import SearchSettings
from seq2seq.search import Constrained, Drawn, Ensemble, Graphs, Source, Specials, search_stream
from seq2seq.search.graphs import cuda_graphs

MODELS = {preset: (f"mixer={preset}",) for preset in PRESETS} | {
    "attention-dynamicconv": ("mixer=transformer", "mixer/self@mixer.decoder=dynamicconv"),
    "dynamicconv-bahdanau": ("mixer=dynamicconv", "mixer/cross=bahdanau"),
    "learned": ("mixer=transformer", "model.positions=learned"),
}
REPRESENTATIVE = {
    "test_replayed_steps_are_plain_ones": {
        f"{beam}-{name}" for beam in (1, 4) for name in ("transformer", "dynamicconv", "bahdanau", "pyramid")
    },
    "test_options": {"rules", "samples", "bytes", "prefixes"},
}
SPECIAL = Specials(BOS, EOS, PAD)
BYTES = {piece: 0x40 + piece for piece in range(6, 14)} | {14: 0xC3, 15: 0xA9, 16: 0xE2, 17: 0x82, 18: 0xAC}
# first longest; the first search ends with 21 tokens or more, so that slots in use grow twice
LENGTHS = [12, 12, 11, 11, 10, 9, 9, 8, 8, 7, 7, 7, 6, 6]


@contextmanager
def pretended_gpu() -> Iterator[None]:
    """Tensors claim to be on a GPU, so that its branches run, but no kernel of Triton, which takes long on a CPU."""
    with mock.patch("seq2seq.kernels.dispatch.gpu_obstacle", lambda device: "there is none"), launches.Trace():
        yield


def model_of(*overrides: str) -> Any:
    model = tiny(*overrides, "model.tie=none")
    with torch.no_grad():
        model.output.weight.mul_(3)
        model.output.bias[EOS] -= 1.0
    return model


def twin() -> tuple[Graphs, dict[str, int]]:
    counts: dict[str, int] = {}
    return Graphs(functools.partial(TwinRecorder, counts)), counts


def sources(**more: Any) -> list[Source]:
    return [Source([4 + (7 * i + 3 * j) % (VOCAB - 4) for j in range(n)], **more) for i, n in enumerate(LENGTHS)]


def found(model: Any, given: list[Source], graphs: Graphs | None, rows: int = 4, **how: Any) -> list[Any]:
    """All hypotheses of a stream through a few rows, by sentence."""
    how = {"special": SPECIAL, "settings": SearchSettings(beam_size=4, n_best=4, max_len_extra=10)} | how
    with pretended_gpu():
        stream = search_stream(model, given, rows=rows, device=torch.device("cuda"), graphs=graphs, **how)
        return [hypotheses for _, hypotheses in sorted(stream)]


def assert_equal(model: Any, given: list[Source], least: int = 10, **how: Any) -> dict[str, int]:
    graphs, counts = twin()
    replayed = found(model, given, graphs, **how)
    assert not graphs.failed, graphs._said
    # bit for bit: the same operations on the same numbers
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
    assert_equal(model_of(f"mixer={mixer}"), given, settings=SearchSettings(**settings), **options)


def test_an_ensemble():
    assert_equal(Ensemble([model_of("mixer=gru"), model_of("mixer=transformer")]), sources())


@pytest.mark.parametrize("mixer", ["transformer", "bahdanau", "average", "retention"])
def test_narrow_weights(mixer):
    """As `translate` stores them on a GPU."""
    model = model_of(f"mixer={mixer}")
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    assert_equal(model, sources())
