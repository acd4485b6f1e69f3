"""One wait of the host in a decoding step: counted with tensors that claim to be on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from benchmarks import launches
from seq2seq.search import Drawn
from seq2seq.settings.compose import presets

EXHAUSTIVE = {"test_every_preset_waits_once", "test_a_planted_wait_is_counted"}
REPRESENTATIVE = {"test_a_decoding_step_waits_once": {"rules"}}
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are interpreted only where there is no GPU")
ONE_LAYER = ("model.encoder_layers=1", "model.decoder_layers=1")
BYTES = {piece: piece - 4 for piece in range(4, 132)}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "greedy": {"beam_size": 1, "n_best": 1},
    "byte pieces": {"byte_of": BYTES},
    "rules": {"no_repeat_ngram": 3, "min_len": 2, "byte_of": BYTES},
    "groups": {"beam_size": 6, "beam_groups": 2},
    "samples": {"selection": Drawn(launches.EOS), "byte_of": BYTES},
}


def assert_one(found: dict[str, Any]) -> None:
    """Every step reads the packed results, and nothing else; what comes before the first step may wait."""
    assert found["waits"] == 1.0, found["at"]
    repeated = {place: count for place, count in found["at"].items() if count > 4}
    assert len(repeated) == 1, found["at"]
    assert next(iter(repeated)).startswith("running.py:"), found["at"]


@no_gpu
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_a_decoding_step_waits_once(options):
    assert_one(launches.of_decoding(("mixer=transformer", *ONE_LAYER), **options))


@no_gpu
@pytest.mark.parametrize("mixer", presets())
def test_every_preset_waits_once(mixer):
    assert_one(launches.of_decoding((f"mixer={mixer}",)))


@no_gpu
def test_a_planted_wait_is_counted(monkeypatch):
    """A rule that asks whether any hypothesis is open would wait a second time."""
    import seq2seq.search.rules

    plain = seq2seq.search.rules.Forbid.__call__

    def asking(self: Any, logits: torch.Tensor, rows: Any) -> None:
        if (rows.last > 0).any():
            plain(self, logits, rows)

    monkeypatch.setattr(seq2seq.search.rules.Forbid, "__call__", asking)
    assert launches.of_decoding(("mixer=transformer", *ONE_LAYER))["waits"] == 2.0
