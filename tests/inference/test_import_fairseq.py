"""Checkpoints of fairseq: the same logits as its equations, its ids and text, and files that are refused."""

from __future__ import annotations

import argparse
import io
import os
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest
import sentencepiece as spm
import tiny
import torch
from exported import need
from fairseq_files import CODES, SYMBOLS, WORDS, Reference, arguments, checkpoint_of, write_fairseq
from omegaconf import OmegaConf
from published import piece_model, pieces_of, translated

from seq2seq import checkpoint, convert
from seq2seq.checkpoint import Loaded
from seq2seq.data.tokenizer import load_tokenizer
from seq2seq.inference.export.marian import write_marian
from seq2seq.inference.export.plain_transformer import UnsupportedError, vocabularies, write_piece_models
from seq2seq.inference.imports.published import imported
from seq2seq.inference.imports.torch_pickle import plain, read_torch_pickle
from seq2seq.inference.translator import Translator
from seq2seq.settings.tokenizer import TokenizerSettings
from seq2seq.training.finetune import ready_models

need("sacremoses")

JOINT = {"share_all_embeddings": True}
# Everything else: pre-norm, two tables of learned positions, no scale, an output of its own
OTHER = {f"{side}_{name}": True for side in ("encoder", "decoder") for name in ("normalize_before", "learned_pos")}
OTHER |= {"no_scale_embedding": True}
MIXED = {"share_decoder_input_output_embed": True, "encoder_learned_pos": True}


def read(folder: Path) -> Loaded:
    """Convert and load a folder."""
    out = folder / "ours.safetensors"
    checkpoint.save(out, imported(folder, trust=True))
    return checkpoint.load(out)


def require_same_logits(ours: Loaded, reference: Reference, rows: int) -> None:
    """Compare sentences of several lengths, one alone and some padded."""
    sources = [[5, 4, 7, 2], [9, 2], [4, 5, 6, 7, 8, 9, 10, 4, 2]]
    given = [[2, 6, 4], [2, 5, 7, 4, 6, 5], [2]]
    given = [[min(token, rows - 1) for token in row] for row in given]
    src, tgt = (
        torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in side], True, 1) for side in (sources, given)
    )
    with torch.no_grad():
        found = ours.model(src, src != 1, tgt)
    for i, (source, prefix) in enumerate(zip(sources, given, strict=True)):
        expected = reference.logits(source, prefix)
        torch.testing.assert_close(found[i, : len(prefix)], expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(("conv", "glu"), [(None, False), ("light", True), ("dynamic", False)])
@pytest.mark.parametrize("changed", [JOINT, OTHER, MIXED], ids=["joint", "other", "mixed"])
def test_logits_are_those_of_the_equations(tmp_path, conv, glu, changed):
    args = arguments(**changed)
    state = write_fairseq(tmp_path, args, conv=conv, glu=glu)
    ours = read(tmp_path)
    assert ours.tokenizer.joint == ("share_all_embeddings" in changed)
    require_same_logits(ours, Reference(state, args, conv=conv), len(state["decoder.embed_tokens.weight"]))


def test_settings_are_those_of_the_checkpoint(tmp_path):
    write_fairseq(tmp_path, arguments(**JOINT, weight_dropout=0.2), conv="dynamic", glu=False)
    meta = read(tmp_path).meta
    model, mixer = meta["model"]["model"], meta["model"]["mixer"]
    assert (meta["src_lang"], meta["tgt_lang"], meta["search"]["min_len"]) == ("de", "en", 1)
    assert (model["positions"], model["norm"], model["tie"], model["dropout"]) == ("fairseq", "post", "all", 0.3)
    assert mixer["encoder"]["per_layer"] == {"kernel_size": [3, 5]}
    assert mixer["decoder"]["per_layer"] == {"kernel_size": [3, 4]}
    assert (mixer["encoder"]["glu"], mixer["encoder"]["weight_dropout"]) == (False, 0.2)
    assert mixer["cross"]["bias"] is True


def test_kernels_may_be_without_softmax(tmp_path):
    write_fairseq(tmp_path, arguments(**JOINT, weight_softmax=False), conv="light")
    assert read(tmp_path).meta["model"]["mixer"]["decoder"]["softmax"] is False


def test_names_of_earlier_versions(tmp_path):
    """Joined projections, numbered norms, the output's name, and files of torch before 1.6."""
    args = arguments()
    state = write_fairseq(tmp_path, args)
    old = {}
    for name, weight in state.items():
        for number, norm in enumerate(("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm")):
            place = 1 if norm == "final_layer_norm" and name.startswith("encoder") else number
            name = name.replace(norm, f"layer_norms.{place}")
        old[name.replace("decoder.output_projection.weight", "decoder.embed_out")] = weight
    for name in [name for name in old if ".q_proj." in name]:
        parts = [old.pop(name.replace("q_proj", f"{letter}_proj")) for letter in "qkv"]
        old[name.replace("q_proj.", "in_proj_")] = torch.cat(parts)
    now = imported(tmp_path, trust=True).weights
    # Its weights stay on the disk
    (tmp_path / "model.pt").unlink()
    torch.save(checkpoint_of(args, old), tmp_path / "model.pt", _use_new_zipfile_serialization=False)
    before = imported(tmp_path, trust=True).weights
    assert now.keys() == before.keys()
    assert all(torch.equal(now[name], before[name]) for name in now)


def test_settings_of_later_versions(tmp_path):
    """`cfg` instead of `args`: a dictionary, or a configuration of OmegaConf."""
    state = write_fairseq(tmp_path, arguments(**JOINT))
    expected = imported(tmp_path, trust=True)
    model = {key: value for key, value in arguments(**JOINT).items() if not key.endswith("_lang")}
    task = {"source_lang": "de", "target_lang": "en", "dropout": 0.9}
    for cfg in (
        {"model": argparse.Namespace(**model), "task": task, "criterion": None},
        OmegaConf.create({"model": model, "task": task, "criterion": None}),
    ):
        torch.save({"args": None, "cfg": cfg, "model": state}, tmp_path / "model.pt")
        found = imported(tmp_path, trust=True)
        assert found.meta["model"] == expected.meta["model"]
        assert found.meta["src_lang"] == "de"


def test_statistics_of_classes_that_are_not_here(tmp_path, monkeypatch):
    """Meters of fairseq become stand-ins; no class of that name is imported."""
    args = arguments(**JOINT)
    state = write_fairseq(tmp_path, args)
    module: Any = types.ModuleType("fairseq.meters")
    meter: Any = type("AverageMeter", (), {"__module__": "fairseq.meters"})
    module.AverageMeter = meter
    monkeypatch.setitem(sys.modules, "fairseq", types.ModuleType("fairseq"))
    monkeypatch.setitem(sys.modules, "fairseq.meters", module)
    average = meter()
    average.sum = 3.0
    torch.save({**checkpoint_of(args, state), "extra_state": {"loss": average}}, tmp_path / "model.pt")
    monkeypatch.delitem(sys.modules, "fairseq.meters")
    monkeypatch.delitem(sys.modules, "fairseq")
    loaded = read_torch_pickle(tmp_path / "model.pt")
    assert loaded["extra_state"]["loss"].state == {"sum": 3.0}
    assert imported(tmp_path, trust=True).meta["src_lang"] == "de"


def test_plain_values():
    assert plain(argparse.Namespace(a=(1, argparse.Namespace(b=None)))) == {"a": [1, {"b": None}]}
    # Values that contain themselves, or each other a million times
    value: list = [1]
    value.append(value)
    assert plain(value) == [1, None]
    for _ in range(100):
        value = [value, value]
    assert plain(value)


class Command:
    """A pickle that runs a command when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


class Evaluated(Command):
    """A pickle that evaluates Python."""

    def __reduce__(self):
        return eval, (f"open({str(self.path)!r}, 'w')",)


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("attack", [Command, Evaluated])
def test_code_is_refused_in_one_line_and_never_run(tmp_path, capsys, attack, old):
    args = arguments(**JOINT)
    state = write_fairseq(tmp_path, args)
    ran = tmp_path / "ran"
    hostile = {**checkpoint_of(args, state), "extra_state": attack(ran)}
    torch.save(hostile, tmp_path / "model.pt", _use_new_zipfile_serialization=not old)
    assert convert.main([str(tmp_path), "--out", str(tmp_path / "x.safetensors"), "--trust"]) == 2
    error = capsys.readouterr().err
    assert "is refused" in error
    assert error.count("\n") == 1
    assert not ran.exists()
    assert not (tmp_path / "x.safetensors").exists()


def test_a_pickle_needs_trust(tmp_path, capsys):
    write_fairseq(tmp_path, arguments(**JOINT))
    assert convert.main([str(tmp_path), "--out", str(tmp_path / "x.safetensors")]) == 2
    assert "--trust" in capsys.readouterr().err


def test_compressed_and_damaged_files_are_refused(tmp_path):
    write_fairseq(tmp_path, arguments(**JOINT))
    path = tmp_path / "model.pt"
    whole = path.read_bytes()
    with zipfile.ZipFile(io.BytesIO(whole)) as archive, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as small:
        for name in archive.namelist():
            small.writestr(name, archive.read(name))
    for content in (path.read_bytes(), whole[:1000], b"", b"text"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is refused"):
            read_torch_pickle(path)
    torch.save([1], path)
    with pytest.raises(ValueError, match="holds no dictionary"):
        read_torch_pickle(path)


@pytest.mark.parametrize(
    ("changed", "extra", "message"),
    [
        (JOINT, {"encoder.layernorm_embedding.weight": torch.ones(8)}, "have no place here"),
        (JOINT, {"encoder.layers.0.fc1.weight": torch.ones(1).expand(10**6, 10**6)}, "larger than the numbers"),
        (JOINT | {"activation_fn": "tanh"}, {}, "activation"),
        (JOINT | {"decoder_normalize_before": True}, {}, "place the norms differently"),
        ({"source_lang": None}, {}, "--src-lang"),
        (JOINT | {"decoder_langtok": True}, {}, "decoder_langtok=True"),
        (JOINT | {"encoder_attention_heads": "two"}, {}, "two"),
        (JOINT | {"activation_fn": ["relu"]}, {}, "do not fit together"),
    ],
)
def test_models_that_cannot_be_expressed_are_refused(tmp_path, changed, extra, message):
    args = arguments(**changed)
    state = write_fairseq(tmp_path, args)
    torch.save(checkpoint_of(args, state | extra), tmp_path / "model.pt")
    with pytest.raises(ValueError, match=message):
        imported(tmp_path, trust=True)


def test_files_of_the_tokenizer_must_be_there_and_fit(tmp_path):
    write_fairseq(tmp_path, arguments(**JOINT))
    (tmp_path / "dict.en.txt").write_text("".join(f"{word} 1\n" for word in WORDS["de"][:-1]))
    with pytest.raises(ValueError, match="has 11 words, which make 15 ids"):
        imported(tmp_path, trust=True)
    (tmp_path / "dict.en.txt").unlink()
    with pytest.raises(ValueError, match=r"has no file dict\.en\.txt"):
        imported(tmp_path, trust=True)
    write_fairseq(tmp_path, arguments(**JOINT))
    (tmp_path / "bpecodes").write_text(CODES + "one two three\n")
    with pytest.raises(ValueError, match="bpecodes: the line 'one two three'"):
        imported(tmp_path, trust=True)
    (tmp_path / "bpecodes").unlink()
    with pytest.raises(ValueError, match="neither codes of BPE"):
        imported(tmp_path, trust=True)
    torch.save({}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match="has 2 files"):
        imported(tmp_path, trust=True)
    with pytest.raises(ValueError, match="neither args nor cfg"):
        imported(tmp_path / "other.pt", trust=True)


def test_text_goes_in_and_comes_out(tmp_path, capsys):
    write_fairseq(tmp_path / "model", arguments(**JOINT), conv="light")
    out = tmp_path / "ours.safetensors"
    assert convert.main([str(tmp_path / "model" / "model.pt"), "--out", str(out), "--trust"]) == 0
    assert "translates de to en" in capsys.readouterr().out
    translator = Translator.load(out)
    lines = ["low lower, new.", "", "x"]
    found = [beams[0].text for beams in translator.translate(lines)]
    assert len(found) == 3
    assert not any("@@" in text for text in found)
    # As init_from does: the tokenizer through the files of a cache
    tokenizer = load_tokenizer(ready_models(translator.tokenizer, TokenizerSettings(), tmp_path))
    assert tokenizer.fingerprint == translator.tokenizer.fingerprint
    assert tokenizer.encode_src(lines) == translator.tokenizer.encode_src(lines)


def test_other_programs_get_the_codes_and_the_dictionary_s_spelling(tmp_path):
    """CTranslate2 gets pieces as subword-nmt cuts them; MarianTokenizer cannot read them."""
    write_fairseq(tmp_path, arguments(**JOINT))
    ours = read(tmp_path)
    source, target = vocabularies(ours.tokenizer)
    assert source == target == [*SYMBOLS, *WORDS["de"]]
    (tmp_path / "out").mkdir()
    write_piece_models(tmp_path / "out", ours.tokenizer)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["bpecodes"]
    assert (tmp_path / "out" / "bpecodes").read_text() == CODES
    plain_positions = dict(ours.meta["model"]["model"], positions="sinusoidal")
    ours.meta["model"]["model"] = plain_positions
    with pytest.raises(UnsupportedError, match="Moses and BPE"):
        write_marian(tmp_path, ours)


def test_sentencepiece_with_a_dictionary(tmp_path):
    """Pieces are cut by the model, and numbered by the dictionary, which lacks some."""
    lines = tiny.sentences(tiny.GERMAN, 200)
    model = piece_model(lines, 60)
    pieces = pieces_of(model)[3:]
    words = [*reversed(pieces[2:]), "madeupword0000"]
    args = arguments(**JOINT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(WORDS, "de", words)
        write_fairseq(tmp_path, args)
    (tmp_path / "bpecodes").unlink()
    (tmp_path / "sentencepiece.bpe.model").write_bytes(model)
    ours = checkpoint.load_tokenizer(imported(tmp_path, trust=True).meta, tmp_path)
    ids = {word: i + 4 for i, word in enumerate(words)}
    processor = spm.SentencePieceProcessor()
    processor.load_from_serialized_proto(model)
    for line in [*lines[:20], "Zürich"]:
        expected = [ids.get(piece, 3) for piece in processor.encode(line, out_type=str)]
        assert ours.encode_src([line]) == [[*expected, 2]]
    assert (ours.bos_id, ours.pad_id, ours.eos_id, ours.unk_id) == (2, 1, 2, 3)
    # As forced decoding calls it
    assert ours.tgt.decode(["▁Haus", "▁und"]) == ours.tgt.decode([ids["▁Haus"], ids["▁und"]]) == "Haus und"


@pytest.mark.parametrize("joint", [False, True])
def test_each_language_may_have_its_own_piece_model(tmp_path, monkeypatch, joint):
    lines = tiny.sentences(tiny.GERMAN, 200)
    texts = {"de": lines, "en": translated(lines)}
    models = {lang: piece_model(text, 60) for lang, text in texts.items()}
    words = {lang: pieces_of(model)[3:] for lang, model in models.items()}
    both = list(dict.fromkeys([*words["de"], *words["en"]]))
    for lang in texts:
        monkeypatch.setitem(WORDS, lang, both if joint else words[lang])
    write_fairseq(tmp_path, arguments(**(JOINT if joint else {})))
    (tmp_path / "bpecodes").unlink()
    (tmp_path / "spm.de.nopretok.model").write_bytes(models["de"])
    with pytest.raises(ValueError, match="for both"):
        imported(tmp_path, trust=True)
    (tmp_path / "spm.en.nopretok.model").write_bytes(models["en"])
    ours = read(tmp_path).tokenizer
    assert ours.joint == joint
    for side, encode, lang in ((ours.src, ours.encode_src, "de"), (ours.tgt, ours.encode_tgt, "en")):
        processor = spm.SentencePieceProcessor()
        processor.LoadFromSerializedProto(models[lang])
        rows = [[side.id_to_piece(i) for i in row[:-1]] for row in encode(texts[lang][:20])]
        assert rows == processor.encode(texts[lang][:20], out_type=str)


def test_each_language_may_have_its_own_codes(tmp_path):
    write_fairseq(tmp_path, arguments())
    (tmp_path / "bpecodes").rename(tmp_path / "de.codes")
    (tmp_path / "en.codes").write_text("#version: 0.2\nt h\nth e</w>\no w</w>\n")
    ours = read(tmp_path).tokenizer
    assert [ours.src.id_to_piece(i) for i in ours.encode_src(["low ."])[0]] == ["low▁", ".▁", "</s>"]
    assert [ours.tgt.id_to_piece(i) for i in ours.encode_tgt(["the ."])[0]] == ["the▁", ".▁", "</s>"]
    # Names that tell no language
    (tmp_path / "de.codes").rename(tmp_path / "a.codes")
    (tmp_path / "en.codes").rename(tmp_path / "b.codes")
    with pytest.raises(ValueError, match=r"a\.codes, b\.codes"):
        imported(tmp_path, trust=True)
