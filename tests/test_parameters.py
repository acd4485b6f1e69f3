"""Parameter counts against the published sizes, within 1%."""

from __future__ import annotations

import pytest
import torch
from composed import config

from seq2seq.build import build_model

NO_GLU = ("mixer.encoder.glu=false", "mixer.decoder.glu=false")
JOINT = {"src_vocab_size": 32768, "tgt_vocab_size": 32768, "joint": True}
IWSLT = {"src_vocab_size": 8848, "tgt_vocab_size": 6632, "joint": False}

# millions of parameters; vocabularies and ties as published
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
    with torch.device("meta"):
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
        with torch.device("meta"):
            model = build_model(config(f"mixer={mixer}", "model=base"))
        sizes = [[layer.self_mixer.kernel_size for layer in side.layers] for side in (model.encoder, model.decoder)]
        assert sizes == [[3, 7, 15, 31, 31, 31, 31], [3, 7, 15, 31, 31, 31]]


def test_rnnsearch_has_the_published_sizes():
    """620-wide embeddings, 1,000 units a direction, a 1,000-unit decoder and a maxout readout of 500 (appendix B)."""
    settings = config("experiment=rnnsearch", src_vocab_size=30000, tgt_vocab_size=30000, joint=False)
    with torch.device("meta"):
        model = build_model(settings)
    (encoder,), (decoder,) = model.encoder.layers, model.decoder.layers
    assert model.encoder.embedding.table.weight.shape == (30000, 620)
    assert (encoder.self_mixer.ahead.hidden_dim, encoder.self_mixer.out_dim) == (1000, 2000)
    assert (decoder.cross_mixer.unit.hidden_dim, decoder.cross_mixer.memory_dim) == (1000, 2000)
    assert model.output.weight.shape == (30000, 500)
    assert encoder.feed_forward is decoder.feed_forward is decoder.self_mixer is model.encoder.norm is None
    assert not encoder.around_self.residual
    assert model.decoder.embedding.positions is None
