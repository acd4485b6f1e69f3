"""Parameter counts against the published sizes, within 1%."""

from __future__ import annotations

from typing import Any

import pytest
from composed import Case, config, decodes

from seq2seq.network.build import build_model, on_meta_device
from seq2seq.network.make_mixer import mixer_class
from seq2seq.network.mixer import CrossMixer

EXHAUSTIVE = {
    "test_parameters_are_as_documented",
    "test_parameters_of_cross_mixers_are_as_documented",
    "test_kernels_are_as_published",
    "test_shapes_of_base_big_and_small",
}
REPRESENTATIVE = {
    "test_sizes_are_as_published": ["60.9", "213.2", "208.9"],
}


NO_GLU = ("mixer.encoder.glu=false", "mixer.decoder.glu=false")
JOINT = {"src_vocab_size": 32768, "tgt_vocab_size": 32768, "joint": True}
IWSLT = {"src_vocab_size": 8848, "tgt_vocab_size": 6632, "joint": False}

# Millions of parameters; vocabularies and ties as published
PUBLISHED = [
    (60.9, ("mixer=transformer", "model=base"), JOINT),
    (209.9, ("mixer=transformer", "model=big"), JOINT),
    (213.2, ("mixer=dynamicconv", "model=big"), JOINT),
    (199.6, ("mixer=dynamicconv", "model=big", *NO_GLU), JOINT),
    (208.9, ("mixer=lightconv", "model=big"), JOINT),
    (195.2, ("mixer=lightconv", "model=big", *NO_GLU), JOINT),
    (61.7, ("mixer=dynamicconv", "model=base"), JOINT),
    (35.3, ("mixer=dynamicconv", "model=small", "model.tie=target", *NO_GLU), IWSLT),
    (34.7, ("mixer=lightconv", "model=small", "model.tie=target", *NO_GLU), IWSLT),
]


@pytest.mark.parametrize(("millions", "overrides", "vocabulary"), PUBLISHED, ids=[str(row[0]) for row in PUBLISHED])
def test_sizes_are_as_published(millions, overrides, vocabulary):
    with on_meta_device():
        model = build_model(config(*overrides, **vocabulary))
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == pytest.approx(millions * 1e6, rel=0.01), f"{count:,} parameters, published {millions}M"


def test_shapes_of_base_big_and_small():
    """Width, feed-forward, heads and depth of the published models."""
    for name, shape in {"small": (512, 1024, 4), "base": (512, 2048, 8), "big": (1024, 4096, 16)}.items():
        model = config(f"model={name}")["model"]
        assert (model["dim"], model["ffn_dim"], model["num_heads"]) == shape
        assert (model["encoder_layers"], model["decoder_layers"], model["norm"]) == (6, 6, "post")


def test_kernels_are_as_published():
    """3, 7, 15, 31, 31, 31, 31 in seven encoder layers and 3, 7, 15, 31, 31, 31 in six decoder layers."""
    for mixer in ("lightconv", "dynamicconv"):
        with on_meta_device():
            model = build_model(config(f"mixer={mixer}", "model=base"))
        sizes = [[layer.self_mixer.kernel_size for layer in side.layers] for side in (model.encoder, model.decoder)]
        assert sizes == [[3, 7, 15, 31, 31, 31, 31], [3, 7, 15, 31, 31, 31]]


def test_rnnsearch_has_the_published_sizes():
    """620-wide embeddings, 1,000 units a direction, a 1,000-unit decoder and a maxout readout of 500 (appendix B)."""
    settings = config("experiment=rnnsearch", src_vocab_size=30000, tgt_vocab_size=30000, joint=False)
    with on_meta_device():
        model = build_model(settings)
    (encoder,), (decoder,) = model.encoder.layers, model.decoder.layers
    assert model.encoder.embedding.table.weight.shape == (30000, 620)
    assert (encoder.self_mixer.ahead.hidden_dim, encoder.self_mixer.out_dim) == (1000, 2000)
    assert (decoder.cross_mixer.unit.hidden_dim, decoder.cross_mixer.memory_dim) == (1000, 2000)
    assert model.output.weight.shape == (30000, 500)
    assert encoder.transform.f is decoder.transform.f is decoder.self_mixer is model.encoder.norm is None
    assert not encoder.mix.residual
    assert model.decoder.embedding.positions is None


def attention(m: Any, more: int = 0) -> int:
    return 4 * m.dim**2 + more


def gated_convolution(m: Any, kernels: int) -> int:
    return 3 * m.dim**2 + 3 * m.dim + kernels


# Counts as in the docstrings, with the settings of conf, by self mixer: m.dim is D, and so on. A new mixer need not
# have a line here.
COUNTS = {
    "aan": lambda m: 2 * m.dim * m.up.out_features + m.up.out_features + 4 * m.dim**2 + 3 * m.dim,
    "attention": attention,
    "average": lambda m: m.dim**2 + m.dim,
    "bigru": lambda m: 6 * (m.dim + m.dim // 2 + 2) * (m.dim // 2),
    "conv": lambda m: m.kernel_size * m.dim**2 + m.dim,
    "conv2d": lambda m: m.kernel_side**2 * m.dim**2 + m.dim,
    "criss_cross": attention,
    "depthwise": lambda m: gated_convolution(m, m.dim * m.kernel_size),
    "dynamic_depthwise": lambda m: ((13 + m.kernel_size) * m.dim**2 + 13 * m.dim) // 4 + m.dim * m.kernel_size,
    "dynamicconv": lambda m: gated_convolution(m, m.dim * m.num_heads * m.kernel_size),
    "full_mlp": lambda m: 2 * m.dim * m.hidden_dim + m.dim + (m.max_len * m.hidden_dim) ** 2,
    "gated_delta": lambda m: (
        5 * m.dim**2 + 3 * m.dim * m.kernel_size + 2 * (m.dim + 1) * m.num_heads + m.dim // m.num_heads
    ),
    "gmlp": lambda m: 3 * m.dim**2 + 5 * m.dim + 256**2 + 256,
    "grouped_query": lambda m: 2 * m.dim**2 + 2 * m.dim**2 * 2 // m.num_heads,
    "gru": lambda m: (12 * m.dim**2 if m.causal else 9 * m.dim**2) // 2 + 6 * m.dim,
    "identity": lambda m: m.dim**2 + m.dim,
    "inhomogeneous_depthwise": lambda m: gated_convolution(
        m, m.rank * (m.dim + 1) + (m.rank + 1) * m.kernel_size * m.dim
    ),
    "interlaced": lambda m: 6 * m.dim**2,
    "lightconv": lambda m: gated_convolution(m, m.num_heads * m.kernel_size),
    "linear_attention": attention,
    "local": attention,
    "local_bias": lambda m: attention(m, m.num_heads * m.window),
    "local_blocks": attention,
    "local_mlp": lambda m: 2 * m.dim**2 + m.dim + m.num_heads * m.max_len * m.window,
    "lowrank": lambda m: attention(m, 2 * m.rank * m.max_len),
    "lowrank_mlp": lambda m: 2 * m.dim**2 + m.dim + 2 * m.num_heads * m.max_len * m.rank,
    "lstm": lambda m: (8 if m.causal else 6) * m.dim**2 + 4 * m.dim,
    "mlp": lambda m: 2 * m.dim**2 + m.dim + m.positions.weight.shape[0] * 256**2,
    "multiscale": lambda m: gated_convolution(m, m.dim * (sum(m.kernel_sizes) + len(m.kernel_sizes))),
    "nonlocal": attention,
    "postconv_attention": lambda m: attention(m, m.num_heads * m.kernel_size),
    "preconv_attention": lambda m: attention(m, 2 * m.dim * m.kernel_size),
    "pyramid": attention,
    "qk_norm": lambda m: attention(m, 2 * m.dim // m.num_heads),
    "quadratic": lambda m: 2 * m.dim**2 + 2 * m.num_heads,
    "relative": lambda m: 5 * m.dim**2 + 2 * m.dim + m.dim * ((1 if m.causal else 2) * m.max_offset + 1),
    "relative_bias": lambda m: attention(m, m.num_heads * ((1 if m.causal else 2) * m.max_offset + 1)),
    "resolutions": attention,
    "retention": lambda m: 5 * m.dim**2,
    "rotary": attention,
    "separable": lambda m: 4 * m.dim**2 + 4 * m.dim + m.positions.weight.shape[0] * 256**2,
    "swin": lambda m: attention(m, m.num_heads * (m.window if m.causal else 2 * m.window - 1)),
    "talk": lambda m: gated_convolution(m, (1 if m.causal else 2) * (m.dim + 1) * m.num_heads),
}


def luong(m: Any) -> int:
    """The output, the score, and the window."""
    read, d, memory = m.read, m.dim, m.memory_dim
    score = {"general": memory * d, "concat": (memory + d + 2) * d + d * getattr(m, "coverage", 0)}[read.score]
    return (memory + d) * d + score + (d**2 + d) * (read.scope == "local_p")


def recurrent_luong(m: Any) -> int:
    return m.memory_dim * m.dim + 6 * m.dim**2 + 6 * m.dim + 3 * m.dim**2 * (m.feed is not None) + luong(m)


def cross_convolution(m: Any) -> int:
    kernels = m.num_heads * m.kernel_size
    return m.memory_dim * m.dim + m.dim**2 + kernels * (1 if m.kernel is None else m.dim)


def fixed_context(m: Any) -> int:
    d, memory = m.dim, m.memory_dim
    return 3 * (d + memory + d + 2) * d + (memory + 1) * d + (d + memory + 1) * d


# The same of cross mixers, with a memory of another width: m.memory_dim is M.
def additive(m: Any, query_dim: int) -> int:
    hidden = m.key.out_features
    return query_dim * hidden + m.memory_dim * hidden + 2 * hidden


def bahdanau(m: Any) -> int:
    h = m.start.out_features
    gates = 3 * (m.dim + m.memory_dim + h + 2) * h
    return (m.memory_dim + 1) * h + additive(m, h) + gates + (h + m.memory_dim + 1) * m.out_dim


CROSS_COUNTS = {
    "attention": lambda m: 2 * m.dim**2 + 2 * m.dim * m.memory_dim,
    "additive": lambda m: additive(m, m.dim) + m.memory_dim * m.dim,
    "bahdanau": bahdanau,
    "coverage": recurrent_luong,
    "dynamicconv": cross_convolution,
    "fixed_context": fixed_context,
    "fixed_gaussian": lambda m: m.memory_dim * m.dim + m.dim**2 + 3 * m.num_heads,
    "lightconv": cross_convolution,
    "luong": recurrent_luong,
    "luong_attention": luong,
    "luong_local": recurrent_luong,
    "qk_norm": lambda m: 2 * m.dim**2 + 2 * m.dim * m.memory_dim + 2 * m.dim // m.num_heads,
    "relu_attention": lambda m: 2 * m.dim**2 + 2 * m.dim * m.memory_dim + 2 * m.dim,
}


@pytest.mark.parametrize("name", CROSS_COUNTS)
def test_parameters_of_cross_mixers_are_as_documented(name):
    values = Case("cross", name).settings("model.num_heads=4")
    arguments = {key: value for key, value in values.items() if key != "_target_"}
    mixer = mixer_class(values["_target_"], CrossMixer)(dim=16, memory_dim=24, **arguments)
    assert sum(p.numel() for p in mixer.parameters()) == CROSS_COUNTS[name](mixer)


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_are_as_documented(name):
    """Test both forms, and every kernel size of the list except one that leaves a side of `talk` empty."""
    for slot in ("encoder", "decoder") if decodes(name) else ("encoder",):
        for mixer in Case(slot, name).variants("model.num_heads=4"):
            assert sum(p.numel() for p in mixer.parameters()) == COUNTS[name](mixer)
