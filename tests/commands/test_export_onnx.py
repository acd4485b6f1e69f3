"""Test ONNX graphs of every preset, run by ONNX Runtime inside our own search, against our own layers."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from composed import PRESETS, resolved
from exported import loaded, need, plain, preset

from seq2seq import checkpoint, serve
from seq2seq.checkpoint import Loaded
from seq2seq.data.tokenizer import Tokenizer, train_tokenizer
from seq2seq.inference import onnx_model
from seq2seq.inference.description import write_description
from seq2seq.inference.export import onnx_graphs
from seq2seq.inference.export.agreement import SENTENCES
from seq2seq.inference.export.int8 import Int8Linear, in_int8
from seq2seq.inference.export.layouts import LAYOUTS, foreign_part
from seq2seq.inference.export.onnx_graphs import write_onnx
from seq2seq.inference.forced_text import force_lines
from seq2seq.inference.model_files import load_model
from seq2seq.inference.onnx_model import OnnxModel
from seq2seq.inference.translator import TranslatedText, Translator
from seq2seq.mixers.gru import GatedUnit
from seq2seq.mixers.lstm import MemoryUnit
from seq2seq.network.build import build_model, max_positions
from seq2seq.network.state import leaves
from seq2seq.settings.declare import read_section
from seq2seq.settings.search import SearchSettings
from seq2seq.settings.tokenizer import TokenizerSettings
from seq2seq.system.model_path import CheckpointError
from seq2seq.system.resources import data_dir

need("onnx", "onnxscript", "onnxruntime")

# Presets whose translations docs/exports.md says are compared.
COMPARED = [
    *("transformer", "rotary", "grouped_query", "relative", "preconv_attention", "pyramid", "mlp", "separable"),
    *("lightconv", "dynamicconv", "depthwise", "local", "linear_attention", "gated_delta", "gru", "lstm", "bahdanau"),
    *("encoder_decoder", "luong", "coverage", "cross_dynamicconv", "relu_attention", "local_mlp", "qk_norm"),
]
# A trace takes seconds; without one the graphs' modules are run as they are
EXHAUSTIVE = (
    "test_int8_translations_depend_on_no_neighbors",
    "test_200_sentences_translate_alike_in_onnx_runtime",
    "test_graphs_take_long_sources_and_wide_beams",
    "test_the_published_rnnsearch_has_a_graph_too",
    "test_other_settings_have_a_graph_too",
    "test_a_model_of_images_has_a_graph_too",
    "test_models_of_an_ensemble_may_be_graphs",
    "test_a_model_needs_as_many_positions_as_the_graphs_are_traced_with",
)
REPRESENTATIVE = {
    "test_a_graph_computes_the_step": ["transformer", "lightconv"],
}


@pytest.fixture(scope="module")
def phrasebook() -> list[dict[str, str]]:
    lines = (data_dir() / "phrasebook" / "test.jsonl").read_text("utf-8").splitlines()[:200]
    return [json.loads(line)["translation"] for line in lines]


@pytest.fixture(scope="module")
def tokenizer(phrasebook) -> Tokenizer:
    sides = {"src_lines": [pair["de"] for pair in phrasebook], "tgt_lines": [pair["en"] for pair in phrasebook]}
    return train_tokenizer(**sides, settings=TokenizerSettings(vocab_size=400))


def write(folder: Path, given: Loaded) -> Loaded:
    """Export and read back."""
    assert write_onnx(folder, given, positions=max_positions(given.meta["model"]), tags=[]) == SENTENCES
    assert foreign_part(folder, LAYOUTS["onnx"]) is None
    # No folder of this machine, which the exporter's notes on nodes name
    assert not any(b".py" in path.read_bytes() for path in folder.glob("*.onnx"))
    return load_model(folder, device="cpu")


def translator(given: Loaded, beam_size: int, max_tokens: int = 2048) -> Translator:
    settings = SearchSettings(
        beam_size=beam_size,
        n_best=min(3, beam_size),
        max_len_ratio=0.5,
        max_len_extra=6,
        max_len=max_positions(given.meta["model"]),
    )
    return Translator(
        model=given.model, tokenizer=given.tokenizer, meta=given.meta, settings=settings, max_tokens=max_tokens
    )


class Eager:
    """Stand-in for ONNX Runtime's session: torch runs the module that would be traced."""

    def __init__(self, module: torch.nn.Module, given: dict[str, Any], other: dict[str, Any], names: list[str]) -> None:
        self.module = module
        # A list of tensors has an input for each
        self.counts = {key: len(part) if isinstance(part, list) else None for key, part in given.items()}
        self.names = names
        pairs = zip(flat(given), flat(other), strict=True)
        shapes = [[n if n == m else "free" for n, m in zip(x.shape, y.shape, strict=True)] for x, y in pairs]
        self.inputs = [SimpleNamespace(name=name, shape=shape) for name, shape in zip(names, shapes, strict=True)]

    def get_inputs(self) -> list[Any]:
        return self.inputs

    def run(self, _: None, feeds: dict[str, Any]) -> list[Any]:
        assert list(feeds) == self.names or set(feeds) == set(self.names)
        for each in self.inputs:
            fixed = [(n, m) for n, m in zip(each.shape, feeds[each.name].shape, strict=True) if n != "free"]
            assert all(n == m for n, m in fixed), each.name
        tensors = iter([torch.from_numpy(feeds[name]) for name in self.names])
        kwargs = {
            key: next(tensors) if count is None else [next(tensors) for _ in range(count)]
            for key, count in self.counts.items()
        }
        return [part.numpy() for part in self.module(**kwargs)]


def flat(given: dict[str, Any]) -> list[torch.Tensor]:
    return [part for each in given.values() for part in (each if isinstance(each, list) else [each])]


def eager(given: Loaded) -> Loaded:
    """The model as its two graphs, without tracing."""
    with torch.no_grad():
        samples = onnx_graphs.samples(given.model, max_positions(given.meta["model"]))
    encoder = onnx_graphs.EncoderGraph(given.model)
    step = onnx_graphs.StepGraph(given.model, samples[0].context, samples[0].state)
    inputs = onnx_graphs.step_names(samples[0].step["context"], leaves(samples[0].state))[0]
    sessions = (
        Eager(encoder, samples[0].encoder, samples[1].encoder, ["src", "mask"]),
        Eager(step, samples[0].step, samples[1].step, inputs),
    )
    return given._replace(model=OnnxModel(build_model(given.meta["model"]).to("meta"), *sessions).eval())


def require_alike(theirs: list[list[TranslatedText]], ours: list[list[TranslatedText]], *, ties: int = 0) -> None:
    """Check texts and scores of all lines but `ties`.

    Where two hypotheses differ only by rounding, either may be dropped from the beam, together with all that would
    have followed from it. The best translation is then usually the same.
    """
    assert [len(row) for row in theirs] == [len(row) for row in ours]
    different = [
        (mine, other)
        for mine, other in zip(ours, theirs, strict=True)
        if [each.text for each in mine] != [each.text for each in other]
        or [each.score for each in mine] != pytest.approx([each.score for each in other], abs=1e-4)
    ]
    assert len(different) <= ties, different


@pytest.mark.parametrize("name", PRESETS)
def test_a_graph_computes_the_step(name, tokenizer):
    """The traced step, in rows that are filled again and beams whose hypotheses change places."""
    given = preset(name, tokenizer)
    lines = tiny.sentences(tiny.GERMAN, 4, longest=4)
    few = max(len(ids) for ids in tokenizer.encode_src(lines)) * 2
    require_alike(translator(eager(given), 3, few).translate(lines), translator(given, 3, few).translate(lines))


@pytest.mark.parametrize(
    ("name", "states", "strides"),
    [
        ("pyramid", {"state.1": "zeros"}, {"owner.0": 2}),
        ("bahdanau", {"state.0": "context.3"}, {}),
        ("lightconv", {}, {"owner.0": 1}),
    ],
)
def test_the_folder_says_how_a_search_begins(name, states, strides, tokenizer):
    given = preset(name, tokenizer)
    with torch.no_grad():
        sample = onnx_graphs.samples(given.model, None)[0]
    assert onnx_graphs.beginning(sample) == {"states": states, "strides": strides}


@pytest.mark.parametrize("name", COMPARED)
def test_200_sentences_translate_alike_in_onnx_runtime(name, tokenizer, phrasebook, tmp_path):
    """The export compares greedy search; this test compares beams, in batches."""
    given = preset(name, tokenizer)
    lines = [pair["de"] for pair in phrasebook]
    assert len(lines) == 200
    theirs = translator(write(tmp_path, given), 3).translate(lines)
    require_alike(theirs, translator(given, 3).translate(lines), ties=2)


def test_int8_is_arithmetic_of_whole_numbers():
    """The twin agrees with numpy's integers, and a row's result does not depend on other rows, bit for bit."""
    layer = torch.nn.Linear(70, 30)
    x = torch.randn(9, 70) * 10 ** torch.randn(9, 1)
    x[4] = 0.0
    weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    size, scale = np.abs(x.numpy()).max(1, keepdims=True), np.abs(weight).max(1) / 63
    rounded = np.rint(np.divide(x.numpy(), size / 127, where=size > 0, out=np.zeros((9, 70), "float32"))).astype(int)
    expected = (rounded @ np.rint(weight / scale[:, None]).astype(int).T) * (size / 127) * scale + bias
    with torch.no_grad():
        y = Int8Linear(layer)(x)
        assert torch.equal(y[4], layer.bias)
        assert all(torch.equal(Int8Linear(layer)(x[i : i + 1])[0], y[i]) for i in range(9))
    # A number halfway between two integers may be rounded to either
    assert np.isclose(y.numpy(), expected, rtol=1e-4, atol=2e-2 * size * np.abs(weight).max()).all()
    assert np.isclose(y.numpy(), expected, rtol=1e-4, atol=1e-5 * size).mean() > 0.9


@pytest.mark.parametrize("name", ["bahdanau", "lstm"])
def test_a_recurrence_in_int8_is_computed_as_in_its_graph(name, tokenizer):
    """Torch's fused loop would take the weights in floating point; the graph has the loop over positions."""
    model = in_int8(preset(name, tokenizer).model)
    x = torch.randn(2, 7, 16)
    units = [module for module in model.encoder.modules() if isinstance(module, GatedUnit | MemoryUnit)]
    assert units
    with torch.no_grad():
        for unit in units:
            assert isinstance(unit.input, Int8Linear)
            torch.testing.assert_close(unit(x), unit.loop(x))


@pytest.mark.parametrize(("name", "most"), [("transformer", 8), ("bahdanau", 20)])
def test_int8_translations_depend_on_no_neighbors(name, most, tokenizer, phrasebook, tmp_path):
    """Whole sentences through the runtime, alone and in batches, and against the twin in torch; recurrences, too."""
    given = preset(name, tokenizer)
    write_onnx(tmp_path, given, positions=None, tags=[], dtype="int8")
    lines = [pair["de"] for pair in phrasebook[:40]]
    written = load_model(tmp_path, device="cpu")
    together = translator(written, 3).translate(lines)
    require_alike([translator(written, 3).translate([line])[0] for line in lines], together)
    twin = given._replace(model=in_int8(given.model))
    texts = [[row[0].text for row in translator(each, 3).translate(lines)] for each in (twin, written)]
    # A number between two integers may be rounded to either, which a recurrence carries on
    assert sum(a != b for a, b in zip(*texts, strict=True)) <= most


def test_models_of_an_ensemble_may_be_graphs(tokenizer, tmp_path):
    """A folder and a checkpoint search together."""
    one, other = plain(tokenizer), preset("lightconv", tokenizer)
    write(tmp_path, one)
    checkpoint.save(tmp_path / "other.safetensors", checkpoint.Stored(other.meta, other.model.state_dict()))
    checkpoint.save(tmp_path / "one.safetensors", checkpoint.Stored(one.meta, one.model.state_dict()))
    lines = tiny.sentences(tiny.GERMAN, 6)
    settings = SearchSettings(beam_size=3, n_best=2, max_len_extra=4)
    theirs = Translator.load(tmp_path, ensemble=[tmp_path / "other.safetensors"], settings=settings)
    ours = Translator.load(
        tmp_path / "one.safetensors", ensemble=[tmp_path / "other.safetensors"], settings=settings, device="cpu"
    )
    require_alike(theirs.translate(lines), ours.translate(lines))


@pytest.mark.parametrize("name", ["transformer", "dynamicconv", "local", "gated_delta"])
def test_graphs_take_long_sources_and_wide_beams(name, tokenizer, tmp_path):
    """Sizes far from the traced ones, on either side of every block and chunk."""
    given = preset(name, tokenizer)
    written = write(tmp_path, given)
    for batch_size, length in ((1, 1), (1, 200), (5, 130)):
        src = torch.randint(4, tokenizer.src_vocab_size, (batch_size, length))
        mask = torch.ones_like(src).bool()
        mask[-1, length - length // 3 :] = False
        with torch.inference_mode():
            ours = given.model.context(src, mask)
            theirs = written.model.context(src, mask)
            token = torch.full((batch_size * 7,), tokenizer.bos_id)
            states = [given.model.init_state(ours, beam_size=7, max_len=40) for _ in range(2)]
            for step in range(20):
                position = torch.full_like(token, step)
                logits, states[0] = given.model.step(token, ours, states[0], position)
                found, states[1] = written.model.step(token, theirs, states[1], position)
                expected = logits.log_softmax(-1)
                # Compared by norm: random weights amplify rounding in single numbers
                assert (found - expected).norm() < 5e-3 * expected.norm()
                token = torch.randint(4, tokenizer.tgt_vocab_size, token.shape)


def test_the_published_rnnsearch_has_a_graph_too(tokenizer, tmp_path):
    """The GRU of RNNsearch resets before the product, which needs a loop in Python."""
    config = preset("bahdanau", tokenizer).meta["model"]
    for slot in ("encoder", "cross"):
        config["mixer"][slot]["reset"] = "before"
    write(tmp_path, loaded(config, tokenizer))


@pytest.mark.parametrize(
    ("name", "model", "slots"),
    [
        ("lightconv", {}, {"softmax": False}),
        ("dynamicconv", {}, {"softmax": False}),
        ("transformer", {"encoder_layers": 2, "encoder_stages": 2}, {}),
        ("dynamicconv", {"encoder_layers": 2, "encoder_stages": 2}, {}),
    ],
    ids=str,
)
def test_other_settings_have_a_graph_too(name, model, slots, tokenizer, tmp_path):
    config = preset(name, tokenizer).meta["model"]
    config["model"] |= model
    for slot in ("encoder", "decoder"):
        config["mixer"][slot] |= slots
    given = loaded(config, tokenizer)
    lines = tiny.sentences(tiny.GERMAN, 6)
    require_alike(translator(write(tmp_path, given), 3, 64).translate(lines), translator(given, 3, 64).translate(lines))


def test_a_model_of_images_has_a_graph_too(tmp_path):
    config = resolved(("experiment=digits", "model.encoder_layers=1", "data.vocab_size=30"))
    settings = read_section(TokenizerSettings, config["tokenizer"], "tokenizer")
    own = train_tokenizer(
        src_lines=[], tgt_lines=tiny.sentences(tiny.ENGLISH, 200), settings=replace(settings, vocab_size=30)
    )
    sizes = {"src_vocab_size": own.src_vocab_size, "tgt_vocab_size": own.tgt_vocab_size, "pad_id": own.pad_id}
    sizes |= {"joint": False, "patches": asdict(settings.patches)}
    given = loaded({"model": config["model"], "mixer": config["mixer"], **sizes}, own)
    # It compares translations itself
    assert write_onnx(tmp_path, given, positions=max_positions(given.meta["model"]), tags=[]) == SENTENCES


def test_a_model_needs_as_many_positions_as_the_graphs_are_traced_with(tokenizer, tmp_path):
    config = preset("transformer", tokenizer).meta["model"]
    config["model"] |= {"positions": "learned", "max_len": 21}
    with pytest.raises(ValueError, match=r"model\.max_len=21: ONNX graphs need a model of at least 22 positions"):
        write(tmp_path, loaded(config, tokenizer))
    config["model"]["max_len"] = 22
    # It compares translations itself
    write(tmp_path, loaded(config, tokenizer))


def test_graphs_run_on_the_cpu_in_float32_alone(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"seq2seq": {}, "onnx": {"format": 1}}))
    with pytest.raises(ValueError, match="ONNX graphs, which run on the CPU in float32, not on cpu in bfloat16"):
        Translator.load(tmp_path, dtype="bfloat16")


def test_a_folder_of_another_format_or_without_a_graph_is_one_line(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"seq2seq": {"tokenizer": {}}, "onnx": {"format": 2}}))
    with pytest.raises(CheckpointError, match="its graphs are of format 2, not 1"):
        load_model(tmp_path, device="cpu")


def graph_names(given: Loaded) -> list[tuple[str, list[str]]]:
    """For each graph, one of its inputs and all outputs."""
    sample = onnx_graphs.samples(given.model, None)[0]
    inputs, outputs = onnx_model.step_names(sample.step["context"], leaves(sample.state))
    return [("src", [name for name in inputs if name.startswith("context.")]), ("token", outputs)]


def save_copies(path: Path, source: str, targets: list[str]) -> None:
    """Write a graph whose outputs are its input, among 10 kB of other things."""
    import onnx

    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in (source, *targets)]
    nodes = [onnx.helper.make_node("Identity", [source], [name]) for name in targets]
    graph = onnx.helper.make_graph(nodes, "copies", values[:1], values[1:], doc_string="x" * 10_000)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9), path)


def test_a_folder_is_checked_as_a_checkpoint_is(tokenizer, tmp_path):
    """Depths by the size of the graphs, and the names and the order of inputs and outputs."""
    pytest.importorskip("onnxruntime")
    given = plain(tokenizer)
    names = graph_names(given)

    def load(changes: dict[str, Any], graphs: list[tuple[str, list[str]]]) -> None:
        config = given.meta["model"]
        entry = {**given.meta, "model": {**config, "mixer": {**config["mixer"], **changes}}}
        write_description(tmp_path, entry, tokenizer, "onnx", {"format": onnx_model.FORMAT})
        for name, graph in zip(onnx_model.GRAPHS, graphs, strict=True):
            save_copies(tmp_path / name, *graph)
        load_model(tmp_path, device="cpu")

    load({}, names)
    with pytest.raises(CheckpointError, match="more layers than it has weights for"):
        load({"extra_encoder_layers": 10**9}, names)
    (_, context), (_, outputs) = names
    wrong = [("token", outputs[:-1]), ("token", outputs[::-1]), ("other", outputs)]
    for step in wrong:
        with pytest.raises(CheckpointError, match=r"step\.onnx: has the outputs .* another model; copy the folder"):
            load({}, [names[0], step])
    with pytest.raises(CheckpointError, match=r"encoder\.onnx: has the outputs"):
        load({}, [("src", context[1:]), names[1]])


def test_a_service_gives_its_threads_to_graphs(tokenizer, tmp_path, monkeypatch):
    """Outside the translating thread torch has one thread, and the sessions have all threads."""
    pytest.importorskip("fastapi")
    given = plain(tokenizer)
    write_description(tmp_path, given.meta, tokenizer, "onnx", {"format": onnx_model.FORMAT})
    for name, (source, targets) in zip(onnx_model.GRAPHS, graph_names(given), strict=True):
        save_copies(tmp_path / name, source, targets)
    seen: list[int] = []

    async def run(service: Any, bound: Any, *, ready: Any, reload: Any) -> int:
        (served,) = service.models.by_name.values()
        assert not served.can_align
        graphs = served.translator.model.graphs
        seen.extend(each.session.get_session_options().intra_op_num_threads for each in graphs)
        this_thread = torch.get_num_threads()
        service.batcher.begin()
        seen.extend([torch.get_num_threads(), this_thread])
        return 0

    monkeypatch.setattr("seq2seq.inference.service.server.run", run)
    before = torch.get_num_threads()
    try:
        assert serve.main(["--ckpt", str(tmp_path), "--port", "0", "--device", "cpu", "--threads", "3"]) == 0
    finally:
        torch.set_num_threads(before)
    assert seen == [3, 3, 3, 1]


def test_whole_targets_are_refused(tokenizer):
    class NoSession:
        def get_inputs(self) -> list:
            return []

    given = plain(tokenizer)
    model: Any = OnnxModel(given.model.to("meta"), NoSession(), NoSession())
    for align in (False, True):
        with pytest.raises(ValueError, match="decodes step by step only"):
            next(force_lines(translator(given._replace(model=model), 1), [("a", "b")], note=print, align=align))
