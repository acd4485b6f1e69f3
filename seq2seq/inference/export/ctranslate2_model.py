"""Export a plain Transformer for CTranslate2, a fast inference engine in C++."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from seq2seq.checkpoint import Loaded
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.inference.description import TOKENIZER_FILES
from seq2seq.inference.export.agreement import Rows, require_agreement
from seq2seq.inference.export.layouts import MODEL_TYPE
from seq2seq.inference.export.plain_transformer import position_table, require_plain
from seq2seq.network.model import FeedForward, Seq2Seq
from seq2seq.system.packages import require

_PURPOSE = "--format ctranslate2"
# Values of settings that it can express.
EXPRESSED = {"norm": ("pre", "post"), "src_positions": ("sinusoidal", "learned", "none")}
# Names of special tokens that the tokenizer's model has no piece for.
_ADDED = {"pad": "<pad>", "bos": "<s>", "eos": "</s>"}


def write_ctranslate2(folder: Path, loaded: Loaded, *, positions: int | None, tags: list[int]) -> int:
    """Write the folder of a CTranslate2 model, compare it with ours, and return how many sentences agree.

    Args:
        positions: The longest sequence that the model takes; None without a limit.
        tags: Ids before every source.

    Raises:
        ValueError: CTranslate2 is missing, cannot express the model, or translates otherwise.
    """
    config = loaded.meta["model"]
    # Before the package is asked for: no installation helps here
    heads = require_plain(config, "CTranslate2", EXPRESSED)
    ctranslate2 = require("ctranslate2", _PURPOSE, extra="export")
    specs = require("ctranslate2.specs", _PURPOSE, extra="export")
    model = loaded.model
    spec = specs.TransformerSpec.from_config(
        (len(model.encoder.layers), len(model.decoder.layers)),
        heads,
        pre_norm=config["model"]["norm"] == "pre",
        activation=_activation(specs, config["model"]["activation"]),
    )
    _set_encoder(spec.encoder, model)
    _set_decoder(spec.decoder, model)
    source, target = vocabularies(loaded.tokenizer)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    tokenizer = loaded.tokenizer
    spec.config.add_source_eos = True
    spec.config.bos_token = spec.config.decoder_start_token = target[tokenizer.bos_id]
    spec.config.eos_token = target[tokenizer.eos_id]
    spec.config.unk_token = target[tokenizer.unk_id]
    # CTranslate2 passes over what it does not know
    spec.config.add_attribute("model_type", MODEL_TYPE)
    spec.validate()
    # Variables that are equal are stored once, as tied embeddings are
    spec.optimize()
    spec.save(str(folder))
    _write_tokenizer(folder, tokenizer)
    # One thread: a dozen short sentences, perhaps beside other work
    engine = ctranslate2.Translator(str(folder), device="cpu", compute_type="float32", intra_threads=1)
    silent = [[target[i]] for i in (tokenizer.pad_id, tokenizer.bos_id)]
    translate = _translate(engine, source, target, silent)
    return require_agreement(model, tokenizer, translate, what="CTranslate2", positions=positions, tags=tags)


def vocabularies(tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    """Return the pieces of source and target by their ids; special ids without a piece get a name."""
    sides = []
    for model, size in ((tokenizer.src, tokenizer.src_vocab_size), (tokenizer.tgt, tokenizer.tgt_vocab_size)):
        pieces = [model.id_to_piece(i) for i in range(model.get_piece_size())]
        # Beyond the model's pieces there are special ids, and, on the smaller side, ids without meaning
        names = {getattr(tokenizer, f"{name}_id"): text for name, text in _ADDED.items()}
        sides.append([*pieces, *(names.get(i, f"<unused {i}>") for i in range(len(pieces), size))])
    return sides[0], sides[1]


def _activation(specs: Any, name: str) -> Any:
    # SiLU is what its inventors' successors call swish; GELU is the exact one, by the error function
    names = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH"}
    return getattr(specs.Activation, names[name])


def _set_encoder(spec: Any, model: Seq2Seq) -> None:
    encoder = model.encoder
    _set_embedding(spec, spec.embeddings[0], encoder.embedding)
    if encoder.norm is not None:
        _set_norm(spec.layer_norm, encoder.norm)
    for part, layer in zip(spec.layer, encoder.layers, strict=True):
        _set_attention(part.self_attention, layer)
        _set_feed_forward(part.ffn, layer)


def _set_decoder(spec: Any, model: Seq2Seq) -> None:
    decoder = model.decoder
    _set_embedding(spec, spec.embeddings, decoder.embedding)
    if decoder.norm is not None:
        _set_norm(spec.layer_norm, decoder.norm)
    _set_linear(spec.projection, model.output)
    for part, layer in zip(spec.layer, decoder.layers, strict=True):
        mixer: Any = layer.cross_mixer
        _set_attention(part.self_attention, layer)
        # Queries, then keys and values side by side, then the output, as ours has them
        for linear, ours in zip(part.attention.linear, (mixer.query, mixer.key_value, mixer.out), strict=True):
            _set_linear(linear, ours)
        _set_norm(part.attention.layer_norm, _norm_of(layer.read))
        _set_feed_forward(part.ffn, layer)


def _set_embedding(spec: Any, table: Any, embedding: Any) -> None:
    table.weight = _numbers(embedding.table.weight)
    spec.scale_embeddings = embedding.scale != 1.0
    # A table, not CTranslate2's own formula, whose rates are others
    spec.position_encodings.encodings = _numbers(position_table(embedding))


def _set_attention(spec: Any, layer: Any) -> None:
    _set_linear(spec.linear[0], layer.self_mixer.qkv)
    _set_linear(spec.linear[1], layer.self_mixer.out)
    _set_norm(spec.layer_norm, _norm_of(layer.mix))


def _set_feed_forward(spec: Any, layer: Any) -> None:
    feed_forward: FeedForward = layer.feed_forward
    _set_linear(spec.linear_0, feed_forward.up)
    _set_linear(spec.linear_1, feed_forward.down)
    _set_norm(spec.layer_norm, _norm_of(layer.transform))


def _norm_of(sublayer: Any) -> nn.LayerNorm:
    return sublayer.post_norm if sublayer.pre_norm is None else sublayer.pre_norm


def _set_norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma = _numbers(norm.weight)
    spec.beta = _numbers(norm.bias)


def _set_linear(spec: Any, linear: nn.Linear) -> None:
    spec.weight = _numbers(linear.weight)
    if linear.bias is not None:
        spec.bias = _numbers(linear.bias)


def _numbers(weight: Tensor) -> Any:
    # NumPy's arrays: CTranslate2 takes torch's tensors as well, but the position table is not a parameter
    return weight.detach().float().contiguous().numpy()


def _write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """Write the SentencePiece models, which cut text into pieces before CTranslate2 and join them after it."""
    state = tokenizer.to_state()
    for key, file in TOKENIZER_FILES.items():
        # Of a joint tokenizer one model serves both sides
        (folder / file).write_bytes(state.get(key) or state["src_model"])


def _translate(translator: Any, source: list[str], target: list[str], silent: list[list[str]]) -> Any:
    ids = {piece: i for i, piece in enumerate(target)}

    def translate(rows: Rows, limit: int) -> Rows:
        results = translator.translate_batch(
            # Eos, the last one, is added by CTranslate2
            [[source[i] for i in row[:-1]] for row in rows],
            beam_size=1,
            # At most limit - 1 tokens and eos
            max_decoding_length=limit - 1,
            # CTranslate2's own default forbids an empty translation
            min_decoding_length=0,
            # What our search never draws
            suppress_sequences=silent,
        )
        return [[ids[piece] for piece in result.hypotheses[0]] for result in results]

    return translate
