"""A run logs the lengths of a split."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from seq2seq.config.search import SearchSettings
from seq2seq.config.trainer import TrainerSettings
from seq2seq.training.assembly import validation_search
from seq2seq.training.split_evaluation import log_lengths


@pytest.mark.parametrize(
    ("ratio", "val_ratio", "split", "binds"),
    [
        (2.0, 1.3, "valid", "trainer.val_max_len_ratio"),
        (1.2, 1.3, "valid", "search.max_len_ratio"),
        (0.0, 100.0, "valid", "search.max_len_ratio"),
        (2.0, 1.3, "test", "search.max_len_ratio"),
    ],
)
def test_the_setting_that_binds_is_named(caplog, ratio, val_ratio, split, binds):
    """Validation has the lower of two limits: to raise the other one changes nothing."""
    search = SearchSettings(max_len_ratio=ratio)
    here = validation_search(search, TrainerSettings(max_steps=1, val_max_len_ratio=val_ratio))
    translator = SimpleNamespace(
        settings=here if split == "valid" else search, meta={"search": {"max_len_ratio": ratio}}, max_len=1024
    )
    evaluator: Any = SimpleNamespace(
        texts=lambda: SimpleNamespace(sources=["x"] * 10), translator=translator, cut=set(), beyond={1, 2}
    )
    with caplog.at_level(logging.WARNING):
        log_lengths(evaluator, split)
    assert caplog.messages[0].startswith(f"{split} set: 2 of 10 references are longer")
    assert caplog.messages[0].endswith(f": raise {binds}")
