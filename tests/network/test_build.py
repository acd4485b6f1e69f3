"""A plain dictionary becomes a model: layers, hybrids, ties, and code that untrusted settings cannot reach."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from composed import PAD, TINY, VOCAB, _compose, config, lengths_mask, random_tokens
from torch import nn

from seq2seq.mixers.attention import Attention, CrossAttention
from seq2seq.mixers.average import Average
from seq2seq.mixers.bahdanau import Bahdanau
from seq2seq.mixers.dynamicconv import DynamicConv
from seq2seq.mixers.gru import BiGRU
from seq2seq.mixers.lightconv import LightConv
from seq2seq.network.build import bounds, build_model, max_positions
from seq2seq.network.make_mixer import TargetError, layer_values, mixer_class
from seq2seq.network.mixer import CrossMixer, SelfMixer
from seq2seq.network.model import EmptySlot


def kinds(layers: nn.ModuleList, slot: str = "self_mixer") -> list[type]:
    return [type(getattr(layer, slot)) for layer in layers]


def kernels(layers: nn.ModuleList) -> list[int]:
    return [layer.self_mixer.kernel_size for layer in layers]  # type: ignore[union-attr]


def layers(count: int) -> tuple[str, str]:
    return f"model.encoder_layers={count}", f"model.decoder_layers={count}"


def test_a_short_list_repeats_its_last_entry():
    model = build_model(config("mixer=dynamicconv", *TINY, *layers(6)))
    assert kernels(model.encoder.layers) == [3, 7, 15, 31, 31, 31, 31]
    assert kernels(model.decoder.layers) == [3, 7, 15, 31, 31, 31]


def test_a_long_list_is_refused_with_both_numbers():
    with pytest.raises(ValueError, match=r"mixer\.decoder\.per_layer\.kernel_size lists 4 values for 3 layers"):
        build_model(config("mixer=transformer", "mixer/self@mixer.decoder=lightconv", *TINY, *layers(3)))
    with pytest.raises(ValueError, match=r"^per_layer\.kernel_size lists 4 values for 3 layers"):
        layer_values({"per_layer": {"kernel_size": [3, 7, 15, 31]}}, 0, 3)


@pytest.mark.parametrize("entries", [[], 3, "31", None])
def test_per_layer_must_be_a_list(entries):
    with pytest.raises(ValueError, match=r"per_layer\.kernel_size=.* is not a list"):
        layer_values({"per_layer": {"kernel_size": entries}}, 0, 3)


def test_per_layer_may_set_anything():
    slot = {"_target_": "x", "glu": True, "per_layer": {"kernel_size": [3, 5], "glu": [True, False, True]}}
    assert [layer_values(slot, layer, 4) for layer in range(4)] == [
        {"_target_": "x", "kernel_size": k, "glu": g} for k, g in ((3, True), (5, False), (5, True), (5, True))
    ]
    assert slot["per_layer"] == {"kernel_size": [3, 5], "glu": [True, False, True]}


def test_any_encoder_with_any_decoder():
    """mixer/self@mixer.decoder=... changes one slot of a preset."""
    model = build_model(config("mixer=transformer", "mixer/self@mixer.decoder=dynamicconv", *TINY))
    assert kinds(model.encoder.layers) == [Attention] * 4
    assert kinds(model.decoder.layers) == [DynamicConv] * 4
    assert kinds(model.decoder.layers, "cross_mixer") == [CrossAttention] * 4
    model = build_model(config("mixer=lightconv", "mixer/self@mixer.encoder=bigru", "mixer/cross=bahdanau", *TINY))
    assert kinds(model.encoder.layers) == [BiGRU] * 5
    assert kinds(model.decoder.layers) == [LightConv] * 4
    assert kinds(model.decoder.layers, "cross_mixer") == [Bahdanau] * 4


def test_an_empty_slot():
    model = build_model(
        config("mixer=transformer", "mixer/self@mixer.decoder=none", "mixer/self@mixer.encoder=none", *TINY)
    )
    assert kinds(model.encoder.layers) == kinds(model.decoder.layers) == [type(None)] * 4
    assert all(type(layer.mix) is EmptySlot for layer in model.decoder.layers)
    broken = config("mixer=transformer", *TINY)
    broken["mixer"]["cross"] = {}
    with pytest.raises(ValueError, match=r"mixer\.cross is empty"):
        build_model(broken)


HYBRID = """
defaults:
  - /mixer/self@encoder.kinds.conv: dynamicconv
  - /mixer/self@encoder.kinds.attn: attention
  - /mixer/self@decoder.kinds.conv: lightconv
  - /mixer/self@decoder.kinds.attn: attention
  - cross: attention
encoder:
  pattern: [conv, conv, attn]
decoder:
  pattern: [attn, conv, attn, conv]
"""


def test_a_hybrid_names_its_kinds_and_a_pattern(tmp_path):
    """A preset file of a user's own, on Hydra's search path; it trains and decodes like any other."""
    (tmp_path / "mixer").mkdir()
    (tmp_path / "mixer" / "hybrid.yaml").write_text(HYBRID)
    path = f"hydra.searchpath=[file://{tmp_path}]"
    settings = config("mixer=hybrid", path, *TINY)
    model = build_model(settings)
    assert kinds(model.encoder.layers) == [DynamicConv, DynamicConv, Attention, DynamicConv]
    assert kinds(model.decoder.layers) == [Attention, LightConv, Attention, LightConv]
    assert model.encoder.layers[1].self_mixer.kernel_size == 7  # type: ignore[union-attr]
    mask = lengths_mask([5, 3])
    src, tgt = random_tokens(mask), random_tokens(mask)
    model(src, mask, tgt, mask).sum().backward()
    with pytest.raises(ValueError, match=r"mixer\.decoder\.pattern lists 4 values for 2 layers"):
        build_model(config("mixer=hybrid", path, *TINY, "model.decoder_layers=2"))
    settings["mixer"]["encoder"]["pattern"] = ["conv", "lstm"]
    with pytest.raises(ValueError, match=r"'lstm'.*conv, attn"):
        build_model(settings)


def test_a_mixer_that_cannot_decode_is_refused_before_it_is_trained(monkeypatch):
    monkeypatch.setattr(Average, "step", SelfMixer.step)
    with pytest.raises(ValueError, match=r"mixer\.decoder: Average is causal, so it must define empty_state and step"):
        build_model(config("mixer=average", *TINY))


def test_ties():
    """all: one table; target: target and output; none: three, and the output layer has a bias."""
    tied = build_model(config("mixer=transformer", *TINY))
    assert tied.encoder.embedding.table is tied.decoder.embedding.table
    assert tied.output.weight is tied.decoder.embedding.table.weight
    assert tied.output.bias is None
    separate = {"src_vocab_size": 11, "tgt_vocab_size": 13, "joint": False}
    target = build_model(config("mixer=transformer", *TINY, "model.tie=target", **separate))
    assert target.encoder.embedding.table.weight.shape == (11, 16)
    assert target.output.weight is target.decoder.embedding.table.weight
    assert target.output.weight.shape == (13, 16)
    none = build_model(config("mixer=transformer", *TINY, "model.tie=none", **separate))
    assert none.output.weight is not none.decoder.embedding.table.weight
    assert none.output.bias is not None
    assert none.output.weight.shape == (13, 16)


def test_impossible_ties():
    with pytest.raises(ValueError, match=r"joint=true or model\.tie=target"):
        build_model(config("mixer=transformer", *TINY, joint=False))
    with pytest.raises(ValueError, match=r"some.*all, target, none"):
        build_model(config("mixer=transformer", *TINY, "model.tie=some"))
    wide = ("mixer=bahdanau", *TINY, "model.residual=false", "+mixer.cross.out_dim=12", "model.decoder_layers=1")
    with pytest.raises(ValueError, match=r"12 numbers, the table has 16; set model\.tie=none"):
        build_model(config(*wide))
    assert build_model(config(*wide, "model.tie=none")).output.weight.shape == (VOCAB, 12)


def test_unequal_sizes_need_no_residual():
    with pytest.raises(ValueError, match=r"16 in and 12 out.*model\.residual=false"):
        build_model(config("mixer=bahdanau", *TINY, "+mixer.cross.out_dim=12", "model.tie=none"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.num_heads=3", r"dim 16 is not divisible by num_heads 3; choose num_heads from \[1, 2, 4, 8, 16\]"),
        ("model.dim=0", "model.dim=0"),
        ("model.encoder_layers=0", "model.encoder_layers=0"),
        ("model.decoder_layers=-1", "model.decoder_layers=-1"),
        ("model.ffn_dim=-4", "model.ffn_dim=-4"),
        ("model.norm=batch", "norm=batch.*pre, post, none"),
        ("model.activation=tanh", "activation=tanh.*relu"),
        ("model.positions=rotary", "positions=rotary.*sinusoidal"),
        ("model.dropout=1.0", "dropout=1.0"),
        ("model.activation_dropout=-0.1", "activation_dropout=-0.1"),
        ("model.attention_dropout=2", "attention_dropout=2"),
        ("+mixer.extra_encoder_layers=-4", "leaves 0 encoder layers"),
        ("+mixer.decoder.width=3", r"unknown setting mixer\.decoder\.width"),
        ("+mixer.decoder.dim=3", r"unknown setting mixer\.decoder\.dim"),
    ],
)
def test_bad_values_are_named(override, message):
    with pytest.raises(ValueError, match=message):
        build_model(config("mixer=transformer", *TINY, override))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["mixer=lightconv", "mixer.encoder.per_layer=null"], r"^mixer\.encoder\.kernel_size is missing: set it by \+"),
        (["mixer=dynamic_depthwise", "mixer.decoder.backend=triton"], r"^mixer\.decoder: backend=triton cannot serve"),
        (
            ["mixer=local_mlp", "mixer.encoder.backend=triton"],
            r"^mixer\.encoder: backend=triton supports decoding only",
        ),
    ],
)
def test_arguments_that_are_missing_or_have_no_effect_are_named(overrides, message):
    with pytest.raises(ValueError, match=message):
        build_model(config(*overrides, *TINY))


FORBIDDEN = [
    "os.system",
    "builtins.eval",
    "seq2seq.system.files.os.getcwd",
    "seq2seq.network.build.importlib.import_module",
    "seq2seq.network.mixer.SelfMixer",
    "seq2seq.network.mixer.CrossMixer",
    "seq2seq.network.mixer.require_divisible",
    "seq2seq.network.build.build_model",
    "seq2seq.network.model.FeedForward",
    "seq2seq.network.mixer.nn",
    "seq2seq.network.mixer.ABC",
    "seq2seq.mixers.attention.CrossAttention",
    "seq2seq.mixers.attention.Attention.forward",
    "seq2seq.mixers.nowhere.Mixer",
    "seq2seq.mixers.attention.__builtins__",
    "torch.nn.Linear",
    "seq2seq_evil.x.Y",
    "seq2seq",
    "seq2seq..x",
    "seq2seq.\0.x",
    "..x",
    "",
    None,
    7,
    ["os.system"],
]


@pytest.mark.parametrize("target", FORBIDDEN, ids=repr)
def test_forbidden_targets(target):
    """Only concrete mixers of the right contract, defined in this package; the message repeats the target."""
    settings = config("mixer=transformer", *TINY)
    settings["mixer"]["decoder"]["_target_"] = target
    with pytest.raises(TargetError, match="_target_"):
        build_model(settings)
    with pytest.raises(ValueError, match="_target_"):
        mixer_class(target, SelfMixer)


def test_a_cross_slot_takes_cross_mixers_only():
    settings = config("mixer=transformer", *TINY)
    settings["mixer"]["cross"]["_target_"] = "seq2seq.mixers.attention.Attention"
    with pytest.raises(TargetError, match="CrossMixer"):
        build_model(settings)
    del settings["mixer"]["cross"]["_target_"]
    with pytest.raises(ValueError, match=r"mixer\.cross has no _target_"):
        build_model(settings)


def test_a_package_may_be_trusted(monkeypatch):
    """A mixer of another package is built only if the package is named; a name that begins alike is not enough."""
    for package in ("seq2seq_evil", "mine"):
        module = types.ModuleType(f"{package}.x")
        module.Y = type("Y", (Attention,), {"__module__": module.__name__})  # type: ignore[attr-defined]
        module.borrowed = Attention  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    settings = config("mixer=transformer", *TINY)
    settings["mixer"]["decoder"]["_target_"] = "mine.x.Y"
    with pytest.raises(TargetError, match=r"'mine\.x\.Y' is not trusted"):
        build_model(settings)
    model = build_model(settings, trust=["mine"])
    assert type(model.decoder.layers[0].self_mixer).__module__ == "mine.x"
    bare = {**settings, "mixer": {**settings["mixer"], "decoder": {"_target_": "Y"}}}
    with pytest.raises(TargetError, match="'Y' names no module"):
        build_model(bare, trust=["Y"])
    # This holds even if no layer is of that kind
    kinds = {"a": settings["mixer"]["encoder"], "b": {"_target_": "stranger.x.Y"}}
    unused = {**settings, "mixer": {**settings["mixer"], "encoder": {"kinds": kinds, "pattern": ["a"]}}}
    with pytest.raises(TargetError, match=r"'stranger\.x\.Y' is not trusted"):
        build_model(unused, trust=["mine"])
    for trust in ([], ["mine"], ["seq2"]):
        with pytest.raises(TargetError):
            mixer_class("seq2seq_evil.x.Y", SelfMixer, trust=trust)
    with pytest.raises(TargetError):
        mixer_class("mine.x.Y", CrossMixer, trust=["mine"])


def test_a_forbidden_target_is_not_even_imported(tmp_path, monkeypatch):
    """Importing a stranger's module would run it."""
    for package in ("seq2seq_evil", "evil"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(TargetError, match="not trusted"):
            mixer_class(f"{package}.Y", SelfMixer)
    assert not (tmp_path / "ran").exists()


def test_a_reexported_stranger_is_refused(monkeypatch):
    """A class that one of our modules merely imports does not count as ours."""
    import seq2seq.mixers.attention as module

    stranger = type("Stranger", (Attention,), {"__module__": "elsewhere"})
    monkeypatch.setattr(module, "Stranger", stranger, raising=False)
    with pytest.raises(TargetError, match=r"elsewhere.Stranger. is not trusted"):
        mixer_class("seq2seq.mixers.attention.Stranger", SelfMixer)


def test_a_target_that_is_no_mixer_says_why():
    for name, key in (("Nosuch", "has no class Nosuch"), ("GatedNorm", "subclass of seq2seq.network.mixer.SelfMixer")):
        with pytest.raises(TargetError, match=key):
            mixer_class(f"seq2seq.mixers.attention.{name}", SelfMixer)
    with pytest.raises(TargetError, match="cannot be imported: No module named"):
        mixer_class("seq2seq.mixers.nosuch.X", SelfMixer)


def test_building_changes_no_settings():
    """The dictionary goes into a checkpoint afterwards: plain types only, untouched."""
    settings = config("mixer=dynamicconv", *TINY)
    build_model(settings)
    assert settings == config("mixer=dynamicconv", *TINY)
    assert settings["mixer"] == _compose(("mixer=dynamicconv", *TINY))["mixer"]


def test_equal_seeds_build_equal_models():
    settings = config("mixer=bahdanau", *TINY)
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(build_model(settings).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert not states[0]["encoder.embedding.table.weight"][PAD].any()


def test_the_longest_sequence_is_that_of_the_most_limited_part():
    model = {"positions": "sinusoidal", "max_len": 50}
    bounded = {"_target_": "seq2seq.mixers.mlp.MLP", "max_len": 40}
    assert max_positions({"model": model, "mixer": {"encoder": {}, "decoder": None, "cross": {"heads": 2}}}) is None
    assert max_positions({"model": model | {"positions": "learned"}, "mixer": {"encoder": {}}}) == 50
    assert max_positions({"model": model, "mixer": {"encoder": bounded}}) == 40
    hybrid = {
        "kinds": {"a": bounded, "b": {**bounded, "max_len": 20, "per_layer": {"max_len": [60, 30]}}},
        "pattern": ["a", "b"],
    }
    # No layer is of kind a, and every other layer of kind b has no bound
    unused = {**hybrid, "pattern": ["b"]}
    unused["kinds"] = hybrid["kinds"] | {"b": {**bounded, "per_layer": {"max_len": [None, 45]}}}
    assert bounds({"model": model, "mixer": {"decoder": unused}}) == {"mixer.decoder.kinds.b.per_layer.max_len": 45}
    learned = {"model": model | {"positions": "learned"}, "mixer": {"decoder": hybrid}}
    assert max_positions(learned) == 30
    assert bounds(learned) == {
        "model.max_len": 50,
        "mixer.decoder.kinds.a.max_len": 40,
        "mixer.decoder.kinds.b.per_layer.max_len": 30,
    }


def test_a_tied_output_may_have_a_bias():
    """The bias starts at zero and draws nothing that other weights depend on."""
    torch.manual_seed(0)
    plain = build_model(config("mixer=transformer", *TINY))
    torch.manual_seed(0)
    biased = build_model(config("mixer=transformer", "model.output_bias=true", *TINY))
    assert plain.output.bias is None
    assert not biased.output.bias.any()
    assert biased.output.weight is biased.decoder.embedding.table.weight
    for name, weight in plain.state_dict().items():
        assert torch.equal(weight, biased.state_dict()[name]), name
