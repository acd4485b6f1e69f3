"""torch.compile in training: when it is used, and that it makes few graphs, and no graph in validations."""

from __future__ import annotations

import copy
from typing import Any

import composed
import lightning as L
import pytest
import torch
import toycorpus
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from seq2seq import checkpoint
from seq2seq.kernels import attention
from seq2seq.settings.optim import OptimSettings
from seq2seq.settings.trainer import TrainerSettings
from seq2seq.system.json_file import read_json
from seq2seq.training.machine import compilation
from seq2seq.training.make_trainer import prepare_for_training
from seq2seq.training.objective.trained_weights import choose_trained

# Compiling takes seconds; `make test-all` runs these
EXHAUSTIVE = {
    "test_a_run_compiles_few_graphs_and_none_in_validations",
    "test_calls_without_a_graph_are_counted",
    "test_equal_widths_in_the_first_batch_cost_no_further_graph",
    "test_a_settled_model_compiles_no_more_until_another_is_made",
    "test_attention_is_compiled_with_cudnn_off_and_without_a_context",
}

# Graphs of encoder and decoder: one for a single row, one for other numbers of rows
MOST = 4


@pytest.fixture(autouse=True)
def process():
    """Restore the state of the process."""
    allowed = torch.backends.cuda.cudnn_sdp_enabled()
    yield
    torch.compiler.set_stance("default")
    torch.backends.cuda.enable_cudnn_sdp(allowed)


@pytest.fixture
def counter(monkeypatch, request):
    """Compile with a backend that runs the traced graphs as they are, and counts them."""
    torch._dynamo.reset()
    found, compile_ = CompileCounterWithBackend(getattr(request, "param", "eager")), nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **given: compile_(self, backend=found, **given))
    yield found
    torch._dynamo.reset()


class Graphs(L.Callback):
    """Recorder of the number of graphs before and after each validation, and at the end of each epoch."""

    def __init__(self, counter: CompileCounterWithBackend) -> None:
        self.counter, self.validations, self.epochs = counter, [], []

    def on_validation_start(self, *_: Any) -> None:
        self.validations.append(self.counter.frame_count)

    on_validation_end = on_validation_start

    def on_train_epoch_end(self, *_: Any) -> None:
        self.epochs.append(self.counter.frame_count)


def test_a_run_compiles_few_graphs_and_none_in_validations(tmp_path, counter):
    corpus = toycorpus.write(tmp_path / "toy", (120, 20, 15))
    given = ("trainer.compile=true", "trainer.max_steps=12", "trainer.val_steps=4", "data.max_tokens=192")
    graphs = Graphs(counter)
    run = toycorpus.execute(toycorpus.settings(corpus, tmp_path, *given), graphs)
    assert len(graphs.validations) >= 6
    assert graphs.validations[0::2] == graphs.validations[1::2]
    assert 0 < counter.frame_count <= MOST
    results = read_json(run.folder.results)
    assert (results["compiled"], results["graphs"], results["eager_calls"]) == (True, counter.frame_count, 0)


@pytest.mark.parametrize(
    "mixer", ["transformer", "lightconv", "dynamicconv", pytest.param("bahdanau", marks=pytest.mark.slow)]
)
@pytest.mark.exhaustive
def test_no_graph_is_compiled_after_the_first_epoch(tmp_path, counter, mixer):
    """Three epochs of batches of all shapes, with DropConnect; the checkpoint loads without compiling."""
    corpus = toycorpus.write(tmp_path / "toy", (400, 20, 15))
    small = [f"mixer.{slot}.per_layer.kernel_size=[3]" for slot in ("encoder", "decoder")] if "conv" in mixer else []
    given = (f"mixer={mixer}", "trainer.compile=true", "trainer.max_steps=null", "trainer.max_epochs=3",
             "trainer.test=false", "data.max_tokens=256", *small)  # fmt: skip
    graphs = Graphs(counter)
    run = toycorpus.execute(toycorpus.settings(corpus, tmp_path, *given), graphs, mixer=mixer)
    assert graphs.epochs[0] > 0
    assert graphs.epochs == [graphs.epochs[0]] * 3
    checkpoint.load(run.folder.best)


def settings(**given: Any) -> TrainerSettings:
    return TrainerSettings(max_steps=1, **given)


@pytest.mark.parametrize("accelerator", ["cpu", "gpu"])
def test_only_true_compiles(monkeypatch, caplog, accelerator):
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)
    monkeypatch.setattr(compilation, "launcher_obstacle", lambda: None)
    for told in ("auto", False, True):
        given = settings(compile=told)
        assert compilation.resolve_compile(given, accelerator, composed.tiny()) is (told is True)
        assert not caplog.text
        compilation.resolve_compile(given, accelerator, composed.tiny("mixer=bahdanau"))
        assert ("Bahdanau, BiGRU" in caplog.text) is (told is True)


def test_a_gpu_that_cannot_compile_says_why(monkeypatch):
    for triton, reason in ((False, "Triton is missing"), (True, "no gcc")):
        monkeypatch.setattr("torch.utils._triton.has_triton", lambda found=triton: found)
        monkeypatch.setattr(compilation, "launcher_obstacle", lambda: "no gcc")
        assert not compilation.resolve_compile(settings(), "gpu", composed.tiny())
        with pytest.raises(ValueError, match=rf"{reason}.*trainer\.compile=false"):
            compilation.resolve_compile(settings(compile=True), "gpu", composed.tiny())


# Rows, source and target width: equal widths first, then twelve others
SHAPES = [
    (3, 12, 12), (3, 9, 13), (5, 5, 7), (4, 20, 17), (7, 8, 8), (2, 30, 24), (9, 7, 6), (6, 6, 10), (2, 31, 40),
    (8, 12, 5), (8, 8, 8), (3, 3, 5), (4, 24, 16),
]  # fmt: skip


# aot_eager also traces gradients, so their guards count, as do layers that are traced twice
@pytest.mark.parametrize(
    ("counter", "mixer", "most"),
    [
        ("aot_eager", "transformer", 2),
        ("eager", "lightconv", 4),
        pytest.param("eager", "dynamicconv", 4, marks=pytest.mark.exhaustive),
    ],
    indirect=["counter"],
)
def test_equal_widths_in_the_first_batch_cost_no_further_graph(counter, mixer, most):
    """One graph of an encoder's and of a decoder's layer for each size of kernels."""
    sizes = [f"mixer.{slot}.per_layer.kernel_size=[3,7]" for slot in ("encoder", "decoder")]
    layers = ("model.encoder_layers=2", "model.decoder_layers=2")
    model = composed.tiny(f"mixer={mixer}", *layers, *(sizes if "conv" in mixer else ())).train()
    compilation.compile_parts(model)
    counts = []
    for rows, src_width, tgt_width in SHAPES:
        src, tgt = torch.full((rows, src_width), 5), torch.full((rows, tgt_width), 5)
        model.features(src, src > 0, tgt, tgt > 0).sum().backward()
        counts.append(compilation.count_graphs())
    assert counter.frame_count == most
    assert counts == [(most, 0)] * len(SHAPES)


def test_a_settled_model_compiles_no_more_until_another_is_made(counter):
    model = small()
    compilation.settle(model)  # does nothing, because the model is not compiled
    compilation.compile_parts(model)
    made = trained(model, 3)
    assert made.whole
    compilation.settle(model)
    expected = gradients(model.eval(), rows=1)
    assert trained(model, 1) == made
    with compilation.eager(model):
        assert trained(model, 1) == made
    # Still settled after a validation
    assert trained(model, 1) == made
    assert torch.equal(gradients(model, rows=1), expected)
    following = small()
    compilation.compile_parts(following)
    assert trained(following, 1).whole


def test_attention_is_compiled_with_cudnn_off_and_without_a_context(counter, monkeypatch):
    """Test this on a CPU that claims to be a GPU."""
    monkeypatch.setattr(attention, "without_cudnn", lambda _, real=attention.without_cudnn: real(True))
    model = small()
    compilation.compile_parts(model)
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert trained(model, 3).whole
    targets = [str(node.target) for graph in counter.graphs for node in graph.graph.nodes]
    assert any("scaled_dot_product_attention" in target for target in targets)
    assert not any("sdp_kernel" in target or "sdpa_kernel" in target for target in targets)


def small(*overrides: str) -> Any:
    """A Transformer of one layer a side."""
    sizes = ("model.encoder_layers=1", "model.decoder_layers=1")
    return composed.tiny("mixer=transformer", *sizes, *overrides).train()


def trained(model: Any, rows: int) -> compilation.CompiledGraphs:
    """One pass forward and backward of `rows` sentences."""
    src = torch.full((rows, 4), 5)
    model.features(src, src > 0, src, src > 0).sum().backward()
    return compilation.count_graphs()


@pytest.mark.parametrize("compiled", [True, False])
def test_checkpointed_layers_are_computed_twice_compiled_or_not(monkeypatch, compiled):
    """Each forward pass of a layer runs again in the backward pass, and gradients equal those without checkpoints."""
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
            layer.mix.register_forward_pre_hook(lambda *_: backend(lambda: None, None)())
    assert torch.equal(gradients(model), expected)
    # Two layers, forward and again in the backward pass
    assert runs == 4
    assert not compiled or compilation.count_graphs() == (2, 0)
    torch._dynamo.reset()


def test_statistics_of_batches_are_not_recomputed():
    given = ("mixer.encoder.before=depthwise", "mixer.encoder.batch_norm=true")
    model = composed.tiny("mixer=preconv_attention", *given)
    with pytest.raises(ValueError, match=r"checkpoint_activations.*batch_norm"):
        prepare_for_training(model, settings(checkpoint_activations=True), compile=False)


def gradients(model: nn.Module, rows: int = 3) -> torch.Tensor:
    """Return all gradients of one batch as one vector."""
    model.zero_grad()
    trained(model, rows)
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
    # One graph per layer is allowed, and made
    monkeypatch.setattr(compilation, "_GRAPHS", 1)
    with torch._dynamo.config.patch(recompile_limit=1):
        for dim in (8, 16, 24):
            model = small(f"model.dim={dim}")
            compilation.compile_parts(model)
            assert trained(model, 3) == (2, 0)


@pytest.mark.slow
@pytest.mark.parametrize("counter", ["aot_eager"], indirect=True)
def test_low_rank_updates_are_compiled(counter):
    """Compiled layers read W + B A as others do, and give both factors a gradient."""
    model = composed.tiny("mixer=transformer").eval()
    choose_trained(model, OptimSettings(lora=2))
    for name, factor in model.named_parameters():
        if name.endswith(".up"):
            nn.init.normal_(factor)  # from zero, which would leave the other factor without a gradient
    other = copy.deepcopy(model)
    compilation.compile_parts(other)
    src, tgt = torch.randint(3, 8, (3, 7)), torch.randint(3, 8, (3, 5))
    for each in (model, other):
        each(src, src > 0, tgt, tgt > 0).square().mean().backward()
    assert counter.frame_count > 0
    assert compilation.count_graphs().eager == 0
    own = {name: each.grad for name, each in other.named_parameters()}
    for name, each in model.named_parameters():
        assert (own[name] is None) == (each.grad is None) == (not name.endswith((".up", ".down"))), name
        if each.grad is not None:
            torch.testing.assert_close(own[name], each.grad)
