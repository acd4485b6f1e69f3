"""torch.compile in training: in place, and no graph more after the first epoch."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import torch
import toycorpus
from torch import nn
from torch._dynamo.testing import CompileCounter

from seq2seq import checkpoint
from seq2seq.training.plan import resolve
from seq2seq.training.run import Run


class Graphs(L.Callback):
    """How many graphs there were at the end of each epoch."""

    def __init__(self, counter: CompileCounter) -> None:
        self.counter, self.found = counter, []

    def on_train_epoch_end(self, *_: Any) -> None:
        self.found.append(self.counter.frame_count)


@pytest.mark.parametrize(
    "mixer", ["transformer", "lightconv", "dynamicconv", pytest.param("bahdanau", marks=pytest.mark.slow)]
)
@pytest.mark.exhaustive
def test_no_graph_is_compiled_after_the_first_epoch(tmp_path, monkeypatch, mixer):
    """Batches of all shapes in three epochs, DropConnect and all; what is saved loads without compiling."""
    torch._dynamo.reset()
    counter, compile_ = CompileCounter(), nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **given: compile_(self, backend=counter, **given))
    corpus = toycorpus.write(tmp_path / "toy", (400, 20, 15))
    small = [f"mixer.{slot}.per_layer.kernel_size=[3]" for slot in ("encoder", "decoder")] if "conv" in mixer else []
    given = (f"mixer={mixer}", "trainer.compile=true", "trainer.max_steps=null", "trainer.max_epochs=3",
             "trainer.test=false", "data.max_tokens=256", *small)  # fmt: skip
    graphs = Graphs(counter)
    run = Run(resolve(toycorpus.settings(corpus, tmp_path, *given), mixer=mixer), callbacks=[graphs])
    run.execute()
    assert len(graphs.found) == 3
    assert graphs.found[0] > 0
    assert graphs.found == [graphs.found[0]] * 3
    checkpoint.load(run.folder.best)
