"""torch.compile in training: when, in place, and few graphs: none of validations, none more after the first epoch."""

from __future__ import annotations

from typing import Any

import composed
import lightning as L
import pytest
import torch
import toycorpus
from torch import nn
from torch._dynamo.testing import CompileCounter

from seq2seq import checkpoint
from seq2seq.config.trainer import TrainerSettings
from seq2seq.experiments.json_file import read_json
from seq2seq.training import compilation
from seq2seq.training.assembly import prepare_for_training
from seq2seq.training.plan import make_plan
from seq2seq.training.run import Run

# What compiles takes seconds; `make test-all` has it
EXHAUSTIVE = {"test_a_run_compiles_few_graphs_and_none_in_validations", "test_calls_without_a_graph_are_counted"}

# Of encoder and decoder: one for other numbers of rows and widths than the first batch's, one for a single row, one
# more of the decoder where the first batch had equal widths.
MOST = 5


@pytest.fixture
def counter(monkeypatch):
    """Compile with a backend that runs the traced graphs as they are, and counts them."""
    torch._dynamo.reset()
    found, compile_ = CompileCounter(), nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **given: compile_(self, backend=found, **given))
    yield found
    torch._dynamo.reset()


class Graphs(L.Callback):
    """Recorder of the number of graphs at the end of each epoch."""

    def __init__(self, counter: CompileCounter) -> None:
        self.counter, self.found = counter, []

    def on_train_epoch_end(self, *_: Any) -> None:
        self.found.append(self.counter.frame_count)


class Validations(L.Callback):
    """Recorder of the number of graphs before each validation and after it."""

    def __init__(self, counter: CompileCounter) -> None:
        self.counter, self.found = counter, []

    def on_validation_start(self, *_: Any) -> None:
        self.found.append(self.counter.frame_count)

    on_validation_end = on_validation_start


def test_a_run_compiles_few_graphs_and_none_in_validations(tmp_path, counter):
    corpus = toycorpus.write(tmp_path / "toy", (120, 20, 15))
    given = ("trainer.compile=true", "trainer.max_steps=12", "trainer.val_steps=4", "data.max_tokens=192")
    validations = Validations(counter)
    run = Run(make_plan(toycorpus.settings(corpus, tmp_path, *given), mixer="transformer"), callbacks=[validations])
    run.execute()
    assert len(validations.found) >= 6
    assert validations.found[0::2] == validations.found[1::2]
    assert 0 < counter.frame_count <= MOST
    results = read_json(run.folder.results)
    assert (results["compiled"], results["graphs"], results["eager_calls"]) == (True, counter.frame_count, 0)


@pytest.mark.parametrize(
    "mixer", ["transformer", "lightconv", "dynamicconv", pytest.param("bahdanau", marks=pytest.mark.slow)]
)
@pytest.mark.exhaustive
def test_no_graph_is_compiled_after_the_first_epoch(tmp_path, counter, mixer):
    """Batches of all shapes in three epochs, DropConnect and all; what is saved loads without compiling."""
    corpus = toycorpus.write(tmp_path / "toy", (400, 20, 15))
    small = [f"mixer.{slot}.per_layer.kernel_size=[3]" for slot in ("encoder", "decoder")] if "conv" in mixer else []
    given = (f"mixer={mixer}", "trainer.compile=true", "trainer.max_steps=null", "trainer.max_epochs=3",
             "trainer.test=false", "data.max_tokens=256", *small)  # fmt: skip
    graphs = Graphs(counter)
    run = Run(make_plan(toycorpus.settings(corpus, tmp_path, *given), mixer=mixer), callbacks=[graphs])
    run.execute()
    assert len(graphs.found) == 3
    assert graphs.found[0] > 0
    assert graphs.found == [graphs.found[0]] * 3
    checkpoint.load(run.folder.best)


def settings(**given: Any) -> TrainerSettings:
    return TrainerSettings(max_steps=1, **given)


def test_compiled_on_a_gpu_alone_unless_told(monkeypatch):
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)
    monkeypatch.setattr(compilation, "launcher_obstacle", lambda: None)
    model = composed.tiny().train()
    assert not compilation.resolve_compile(settings(), "cpu", model)
    assert compilation.resolve_compile(settings(), "gpu", model)
    for told in (True, False):
        for accelerator in ("cpu", "gpu"):
            assert compilation.resolve_compile(settings(compile=told), accelerator, model) is told


@pytest.mark.parametrize(
    ("missing", "given", "mixer", "reason"),
    [
        ("torch.utils._triton.has_triton", {}, "transformer", "Triton is missing"),
        ("launcher", {}, "transformer", "no gcc"),
        (None, {"strategy": "fsdp", "devices": 2}, "transformer", "sharded"),
        (None, {"devices": 2}, "transformer", "several processes"),
        (None, {}, "bahdanau", "Bahdanau, BiGRU would be compiled anew"),
        (None, {}, "lstm", "LSTM would"),
    ],
)
def test_a_gpu_that_does_not_compile_says_why(monkeypatch, caplog, missing, given, mixer, reason):
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: missing != "torch.utils._triton.has_triton")
    monkeypatch.setattr(compilation, "launcher_obstacle", lambda: "no gcc" if missing == "launcher" else None)
    caplog.set_level("INFO")
    assert not compilation.resolve_compile(settings(**given), "gpu", composed.tiny(f"mixer={mixer}"))
    assert reason in caplog.text


def small(*overrides: str) -> nn.Module:
    """A Transformer of one layer a side."""
    sizes = ("model.encoder_layers=1", "model.decoder_layers=1")
    return composed.tiny("mixer=transformer", *sizes, *overrides).train()


def trained(model: nn.Module, rows: int) -> compilation.Graphs:
    """One pass forward and backward of `rows` sentences."""
    src = torch.full((rows, 4), 5)
    model.features(src, src > 0, src, src > 0).sum().backward()
    return compilation.count_graphs()


@pytest.mark.parametrize("compiled", [True, False])
def test_checkpointed_layers_are_computed_twice_compiled_or_not(monkeypatch, compiled):
    """Each forward pass of a layer runs again in the backward pass, and gradients are those of plain layers."""
    runs = 0

    def backend(graph: Any, inputs: Any) -> Any:
        def run(*given: Any) -> Any:
            nonlocal runs
            runs += 1
            return graph(*given)

        return run

    compile_ = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **given: compile_(self, backend=backend, **given))
    torch._dynamo.reset()
    # Without dropout
    model = small().eval()
    expected = gradients(model)
    prepare_for_training(model, settings(checkpoint_activations=True), compile=compiled)
    if not compiled:
        for layer in (*model.encoder.layers, *model.decoder.layers):
            layer.around_self.register_forward_pre_hook(lambda *_: backend(lambda: None, None)())
    assert torch.equal(gradients(model), expected)
    # Two layers, there and back
    assert runs == 4
    assert not compiled or compilation.count_graphs() == (2, 0)
    torch._dynamo.reset()


def gradients(model: nn.Module) -> torch.Tensor:
    """All gradients of one batch, in one row."""
    model.zero_grad()
    trained(model, 3)
    return torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])


def test_calls_without_a_graph_are_counted(counter):
    model = small()
    assert compilation.count_graphs() == (0, 0) or not compilation.is_compiled(model)
    compilation.compile_parts(model)
    with torch._dynamo.config.patch(recompile_limit=1):
        assert trained(model, 3).whole
        assert not trained(model, 1).whole
        with compilation.eager(model):
            before = compilation.count_graphs()
            assert trained(model, 7) == before
    compilation.compile_parts(model)
    assert compilation.count_graphs() == (0, 0)


@pytest.mark.exhaustive
def test_models_of_one_process_do_not_share_the_limit_of_graphs(counter, monkeypatch):
    # One graph a layer is allowed, and made
    monkeypatch.setattr(compilation, "_GRAPHS", 1)
    with torch._dynamo.config.patch(recompile_limit=1):
        for dim in (8, 16, 24):
            model = small(f"model.dim={dim}")
            compilation.compile_parts(model)
            assert trained(model, 3) == (2, 0)
