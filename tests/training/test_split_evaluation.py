"""A run logs the lengths of a split, and decodes it by replayed steps as by plain ones."""

from __future__ import annotations

import functools
import logging
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import toycorpus
from recorded_steps import PretendedGPU, TwinRecorder

from seq2seq.evaluation.evaluator import Evaluation
from seq2seq.inference.translator import Translator
from seq2seq.search import Graphs
from seq2seq.settings.search import SearchSettings
from seq2seq.settings.trainer import TrainerSettings
from seq2seq.training.lightning_parts.split_evaluation import decoding_graphs, warn_of_split
from seq2seq.training.make_trainer import validation_search
from seq2seq.training.plan import make_plan
from seq2seq.training.run import TrainingRun

EXHAUSTIVE = {"test_a_run_that_decodes_by_replayed_steps_is_a_run_that_does_not"}


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
    """A validation has the lower of two limits; raising the other one changes nothing."""
    search = SearchSettings(max_len_ratio=ratio)
    here = validation_search(search, TrainerSettings(max_steps=1, val_max_len_ratio=val_ratio))
    translator = SimpleNamespace(
        settings=here if split == "valid" else search, meta={"search": {"max_len_ratio": ratio}}, max_len=1024
    )
    evaluator: Any = SimpleNamespace(translator=translator, cut=set(), beyond={1, 2})
    evaluation: Any = SimpleNamespace(sources=["x"] * 10, references=["y"] * 10, hypotheses=["z"] * 10)
    with caplog.at_level(logging.WARNING):
        warn_of_split(evaluator, evaluation, split)
    assert caplog.messages[0].startswith(f"{split} set: 2 of 10 references are longer")
    assert caplog.messages[0].endswith(f": raise {binds}")


@pytest.mark.parametrize("mixer", ["transformer", "bahdanau"])
def test_a_run_that_decodes_by_replayed_steps_is_a_run_that_does_not(tmp_path, mixer):
    """Validations and the test have the same scores and the same translations."""
    corpus, counts, plain = toycorpus.write(tmp_path / "corpus"), {}, Translator.decode
    graphs = Graphs(functools.partial(TwinRecorder, counts))

    def decode(translator: Translator, *batch: Any) -> Any:
        """Decode with the branches of a GPU, whose steps do not wait."""
        with mock.patch("seq2seq.kernels.dispatch.gpu_obstacle", return_value="there is none"), PretendedGPU():
            return plain(translator, *batch)

    def texts(name: str, graphs: Graphs | None) -> tuple[list[dict[str, float]], list[str]]:
        given = ("trainer.val_steps=2", f"mixer={mixer}", "search.max_len_extra=24")
        run = TrainingRun(make_plan(toycorpus.settings(corpus, tmp_path / name, *given), mixer=mixer))
        scores: list[dict[str, float]] = []
        numbers = Evaluation.numbers
        record = mock.patch.object(Evaluation, "numbers", lambda self: scores.append(numbers(self)) or scores[-1])
        made = mock.patch("seq2seq.training.lightning_parts.task.decoding_graphs", return_value=graphs)
        with record, made, mock.patch.object(Translator, "decode", decode):
            run.execute()
        return scores, [path.read_text("utf-8") for path in sorted(run.folder.path.glob("*.hyp"))]

    replayed = texts("replayed", graphs)
    assert not graphs.failed, graphs._said
    assert replayed == texts("plain", None)
    assert len(replayed[0]) >= 3
    assert any(replayed[1])
    assert counts["replayed"] > counts["captured"] == graphs.count > 0


@pytest.mark.parametrize(
    ("device", "dtype", "captures"), [("cuda", "float32", True), ("cuda", "bfloat16", False), ("cpu", "float32", False)]
)
def test_one_object_captures_for_a_run(device, dtype, captures):
    model = torch.nn.Linear(2, 2, dtype=getattr(torch, dtype))
    task: Any = SimpleNamespace(model=model, device=torch.device(device))
    graphs = decoding_graphs(task)
    assert decoding_graphs(task) is graphs
    assert (graphs is not None) == captures
    # The user did not ask for it
    assert graphs is None or graphs.quiet
