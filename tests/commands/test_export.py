"""Test exports: each folder against the model it came from, by the other program's own reader, and every refusal."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from exported import need, plain

from seq2seq import checkpoint, export
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.inference.export.agreement import SENTENCES, drawn_sources, require_agreement
from seq2seq.inference.export.card import Origin, model_card
from seq2seq.inference.export.ctranslate2_model import EXPRESSED, write_ctranslate2
from seq2seq.inference.export.layouts import LAYOUTS, foreign_part
from seq2seq.inference.export.marian import write_marian
from seq2seq.inference.export.plain_transformer import UnsupportedError, halves_order, plain_weights, require_plain
from seq2seq.inference.model_files import locate
from seq2seq.inference.translator import Translator
from seq2seq.network.build import max_positions
from seq2seq.settings.search import SearchSettings
from seq2seq.system.model_path import CheckpointError
from seq2seq.system.packages import MissingPackageError, require

need("safetensors", "ctranslate2", "transformers")

# Transformers takes seconds to import
EXHAUSTIVE = {
    "test_marian_is_the_model",
    "test_marian_cuts_text_as_we_do_with_a_vocabulary_for_each_side",
    "test_a_name_on_the_hub_is_read_from_its_cache",
    "test_a_model_that_translates_otherwise_is_refused",
    "test_two_tokens_as_good_as_equal_are_no_disagreement",
    "test_only_an_earlier_export_is_replaced",
}
REPRESENTATIVE = {"test_ctranslate2_is_the_model": {"pre-fairseq"}}

LINES = tiny.sentences(tiny.GERMAN, 12)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tiny.tokenizer()


@pytest.fixture(scope="module")
def ckpt(tmp_path_factory) -> Path:
    return tiny.save(tmp_path_factory.mktemp("checkpoint"), search=SearchSettings(beam_size=3, length_penalty=0.6))


@pytest.fixture
def without_marian(monkeypatch):
    """Leave the folder for Marian out, as where Transformers is not installed."""

    def missing(*_: Any) -> int:
        raise MissingPackageError("MarianMTModel needs the package transformers: pip install it")

    monkeypatch.setattr("seq2seq.inference.export.marian.write_marian", missing)


def run(*options: str | Path) -> int:
    return export.main([str(option) for option in options])


def exported(ckpt: Path, out: Path) -> Path:
    """A folder of weights."""
    assert run("--ckpt", ckpt, "--format", "huggingface", "--out", out) == 0
    return out


@pytest.mark.usefixtures("without_marian")
def test_a_folder_of_weights_is_the_checkpoint(ckpt, tmp_path, capsys):
    folder = exported(ckpt, tmp_path / "out")
    assert "without the folder marian: MarianMTModel needs" in capsys.readouterr().err
    ours = Translator.load(ckpt, device="cpu")
    theirs = Translator.load(folder, device="cpu")
    assert theirs.translate(LINES) == ours.translate(LINES)
    assert theirs.settings == ours.settings
    # The file is the checkpoint; other programs read the other files
    assert (folder / "model.safetensors").read_bytes() == ckpt.read_bytes()
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "seq2seq-mixers"
    assert config["seq2seq"]["src_lang"] == "de"
    assert (folder / "source.spm").read_bytes() == ours.tokenizer.to_state()["src_model"]
    # The folder can be exported again
    again = exported(folder, tmp_path / "again")
    assert (again / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


@pytest.mark.usefixtures("without_marian")
def test_a_name_on_the_hub_is_read_from_its_cache(ckpt, tmp_path, monkeypatch):
    """A repository is in the cache in the layout of the hub's own client; nothing is fetched."""
    from huggingface_hub import constants

    revision = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--someone--german"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(revision)
    (repository / "snapshots").mkdir()
    exported(ckpt, repository / "snapshots" / revision)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert locate("someone/german") == repository / "snapshots" / revision
    expected = Translator.load(ckpt, device="cpu").texts(LINES[:2])
    assert Translator.load("someone/german", device="cpu").texts(LINES[:2]) == expected
    with pytest.raises(CheckpointError, match=r"someone/else: no such file or folder, and the Hugging Face hub"):
        Translator.load("someone/else")


def test_names_that_are_paths_never_ask_the_hub(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in (
        "runs/x/checkpoints/best.safetensors",
        "runs/best.safetensors",
        "./model",
        "/absent/x/y",
        "model",
        "mine/run",
    ):
        assert locate(name) == Path(name)


def test_the_card_has_scores_with_signatures_and_leaves_the_license_open(ckpt):
    meta = checkpoint.read_description(ckpt)
    results = {
        "command": "python -m seq2seq.train mixer=transformer",
        "test": {"bleu": 26.41, "chrf": 50.0, "sentences": 1000, "signatures": ["nrefs:1|tok:13a", "nrefs:1|nc:6"]},
    }
    settings = {"optim": {"lr": 0.0007}, "data": {"train": "/somebody/private"}}
    card = model_card(meta, Origin(results, settings), parameters=12345, marian=True)
    header, _, text = card.removeprefix("---\n").partition("---\n")
    assert 'language: ["de", "en"]' in header
    assert "\nlicense:" not in header
    # A bar that is no border is escaped, within code as well (GitHub Flavored Markdown)
    assert r"| test | bleu | 26.41 | 1000 | `nrefs:1\|tok:13a` |" in text
    assert r"| test | chrf | 50.00 | 1000 | `nrefs:1\|nc:6` |" in text
    assert "mixer=transformer" in text
    assert '"lr": 0.0007' in text
    assert "private" not in text
    assert "Attention (encoder), Attention (decoder), CrossAttention (cross)" in text
    conv = {"_target_": "seq2seq.mixers.conv.Conv"}
    slots = meta["model"]["mixer"]
    deep = {"kinds": {"a": {"kinds": {"b": conv}, "pattern": ["b"]}, "c": slots["encoder"]}, "pattern": ["a", "c"]}
    hybrid = {**meta, "model": {**meta["model"], "mixer": {**slots, "encoder": deep, "decoder": None}}}
    text = model_card(hybrid, Origin({}, {}), parameters=1, marian=False)
    assert "Conv and Attention (encoder), none (decoder), CrossAttention (cross)" in text
    assert "None are known" in model_card(meta, Origin({}, {}), parameters=1, marian=False)
    assert "trust" not in text
    own = {**meta, "model": {**meta["model"], "mixer": {**slots, "decoder": {"_target_": "mine.x.Y"}}}}
    assert "hub\", trust=['mine'])" in model_card(own, Origin({}, {}), parameters=1, marian=False)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["mixer=gru", "cache=/home/me/.cache", "runs=/home/me/runs", "resume=auto"], "mixer=gru"),
        (["data.train=/home/me/my corpora/train.de", "run=x"], "data.train=train.de run=x"),
        (["data.train=[~/me/a/,../../me/b]", "optim.teacher='/me/c'"], "data.train=[a/,b] optim.teacher='c'"),
        (["mixer/self@mixer.decoder=gru", "data.name=owner/set", "+experiment=wu_table3/lightconv"], None),
        (["data.train=corpus/train", "model.dim=8", "logger.w.host=https://host/path"], None),
    ],
)
def test_the_card_has_no_paths_of_the_machine(ckpt, words, shown):
    program = "python -m seq2seq.train"
    results = {"command": shlex.join([*program.split(), *words])}
    settings = {"optim": {"teacher": "/home/me/runs/teacher", "lr": 0.1}}
    card = model_card(checkpoint.read_description(ckpt), Origin(results, settings), parameters=1, marian=False)
    (block,) = re.findall("```bash\\n(.*?)\\n```", card, re.S)
    assert shlex.split(block) == [*program.split(), *(shown or " ".join(words)).split()]
    assert '"teacher": "teacher"' in card
    assert "/home" not in card


ATTENTION = {"_target_": "seq2seq.mixers.attention.Attention", "num_heads": 2}
CROSS = {"_target_": "seq2seq.mixers.attention.CrossAttention", "num_heads": 2}
BIASED = {slot: {**ATTENTION, "bias": True} for slot in ("encoder", "decoder")} | {"cross": {**CROSS, "bias": True}}


@pytest.mark.parametrize(
    "model",
    [
        pytest.param({"norm": "pre"}, id="pre-sinusoidal"),
        pytest.param({"norm": "post", "positions": "learned", "tie": "none", "activation": "gelu"}, id="post-learned"),
        pytest.param(
            {"norm": "post", "positions": "none", "tie": "target", "activation": "silu", "scale_embedding": False},
            id="post-none",
        ),
        # As imported models have it
        pytest.param({"norm": "pre", "positions": "fairseq", "output_bias": True, "mixer": BIASED}, id="pre-fairseq"),
    ],
)
def test_ctranslate2_is_the_model(model, tokenizer, tmp_path):
    """CTranslate2 agrees token for token, and gives each token of a translation the same log-probability."""
    import ctranslate2

    given = plain(tokenizer, encoder_layers=2, **model)
    positions = max_positions(given.meta["model"])
    assert write_ctranslate2(tmp_path, given, positions=positions, tags=[]) == SENTENCES
    translator = ctranslate2.Translator(str(tmp_path), device="cpu", compute_type="float32", intra_threads=1)
    src = tokenizer.encode_src(LINES[:1])[0]
    tgt = tokenizer.encode_tgt(["the dog walks quickly today."])[0]
    pieces = [[tokenizer.src.id_to_piece(i) for i in src[:-1]], [tokenizer.tgt.id_to_piece(i) for i in tgt[:-1]]]
    theirs = translator.score_batch(pieces[:1], pieces[1:])[0].log_probs
    with torch.no_grad():
        tokens = torch.tensor([src])
        logits = given.model(tokens, torch.ones_like(tokens).bool(), torch.tensor([[tokenizer.bos_id, *tgt[:-1]]]))[0]
    ours = logits.log_softmax(-1)[torch.arange(len(tgt)), torch.tensor(tgt)]
    assert torch.tensor(theirs) == pytest.approx(ours, abs=1e-4)


@pytest.mark.parametrize("model", [{}, {"tie": "none", "activation": "gelu"}, {"tie": "target", "activation": "silu"}])
def test_marian_is_the_model(model, tokenizer, tmp_path):
    from transformers import MarianMTModel, MarianTokenizer

    given = plain(tokenizer, norm="post", decoder_layers=2, **model)
    given.meta["search"] = {"no_repeat_ngram": 2, "min_len": 5}
    assert write_marian(tmp_path, given) == SENTENCES
    assert foreign_part(tmp_path, LAYOUTS["huggingface"].folders["marian"]) is None
    theirs = MarianMTModel.from_pretrained(tmp_path).eval()
    reader = MarianTokenizer.from_pretrained(tmp_path)
    batch = reader(LINES, return_tensors="pt", padding=True)
    assert [row[row != reader.pad_token_id].tolist() for row in batch["input_ids"]] == tokenizer.encode_src(LINES)
    tgt = torch.tensor([[tokenizer.bos_id, *tokenizer.encode_tgt(["the cat comes."])[0]]] * len(LINES))
    # In float64, which tells a mistake from rounding; both compute their sines in float32, each in its own way
    given.model.double()
    theirs.double()
    ours = given.model.encoder.embedding.positions(torch.arange(64))[:, halves_order(16)].double()
    for side in (theirs.model.encoder, theirs.model.decoder):
        table = side.embed_positions.weight.data
        assert table[:64] == pytest.approx(ours, abs=1e-5)
        table[:64] = ours
    with torch.no_grad():
        logits = theirs(**batch, decoder_input_ids=tgt).logits
        expected = given.model(batch["input_ids"], batch["attention_mask"].bool(), tgt)
    assert logits == pytest.approx(expected, abs=1e-9)


def test_marian_cuts_text_as_we_do_with_a_vocabulary_for_each_side(tmp_path):
    from transformers import MarianTokenizer

    separate = tiny.tokenizer(joint=False, vocab_size=290)
    given = plain(separate, norm="post", tie="target")
    assert write_marian(tmp_path, given) == SENTENCES
    reader = MarianTokenizer.from_pretrained(tmp_path)
    assert reader(LINES)["input_ids"] == separate.encode_src(LINES)
    ids = separate.encode_tgt(["the dog walks."])
    assert reader.batch_decode(ids, skip_special_tokens=True) == separate.decode(ids)


def test_channels_in_another_order_compute_the_same(tokenizer):
    """A model whose channels are permuted computes the same; no other program is involved."""
    given = plain(tokenizer, norm="post", positions="none", decoder_layers=2)
    other = plain(tokenizer, norm="post", positions="none", decoder_layers=2)
    reordered = plain_weights(given.model, halves_order(16)).values()
    other.model.load_state_dict(dict(zip(given.model.state_dict(), reordered, strict=True)))
    # In float64, which tells a mistake from rounding
    given.model.double()
    other.model.double()
    src = torch.tensor(drawn_sources(tokenizer)[-1:])
    mask = torch.ones_like(src).bool()
    with torch.no_grad():
        assert other.model(src, mask, src) == pytest.approx(given.model(src, mask, src), abs=1e-9)
    assert halves_order(6).tolist() == [0, 2, 4, 1, 3, 5]


@pytest.mark.parametrize(
    ("mixer", "model", "reason"),
    [
        ({"decoder": {"_target_": "seq2seq.mixers.dynamicconv.DynamicConv"}}, {}, "mixer.decoder is DynamicConv"),
        ({"encoder": {**ATTENTION, "rotary": True}}, {}, "mixer.encoder.rotary is true"),
        ({"decoder": {**ATTENTION, "num_kv_heads": 1}}, {}, "mixer.decoder.num_kv_heads is 1"),
        ({"cross": {**CROSS, "num_heads": 4}}, {}, "its layers have different numbers of heads (2, 4)"),
        ({"encoder": None}, {}, "mixer.encoder is none"),
        ({}, {"residual": False}, "model.residual is false"),
        ({}, {"ffn_dim": 0}, "model.ffn_dim is 0"),
        ({}, {"norm": "none"}, "model.norm is none"),
        ({}, {"src_positions": "grid"}, "model.src_positions is grid"),
    ],
    ids=str,
)
def test_what_is_no_plain_transformer_is_refused_with_its_setting(mixer, model, reason, tokenizer):
    config = tiny.model_config(tokenizer, **model)
    config["mixer"] = {**config["mixer"], **mixer}
    with pytest.raises(UnsupportedError) as error:
        require_plain(config, "CTranslate2", EXPRESSED)
    assert f"CTranslate2 cannot express this model: {reason}" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_plain_transformer_of_a_pattern_is_one(tokenizer):
    config = tiny.model_config(tokenizer)
    config["mixer"]["encoder"] = {"kinds": {"a": ATTENTION}, "pattern": ["a"]}
    assert require_plain(config, "CTranslate2", EXPRESSED) == 2


def test_a_model_that_translates_otherwise_is_refused(tokenizer):
    given, other = plain(tokenizer), plain(tokenizer)

    def wrong(rows, limit):
        from seq2seq.inference.export.agreement import greedy

        return greedy(other.model, tokenizer, rows, limit)

    with pytest.raises(match="Theirs does not translate as this model does, and was not written"):
        require_agreement(given.model, tokenizer, wrong, what="Theirs")


def test_two_tokens_as_good_as_equal_are_no_disagreement(tokenizer):
    given = plain(tokenizer, tie="none")
    one, other = 20, 21
    with torch.no_grad():
        # The twins have the same logit everywhere, above all others
        given.model.output.weight[[one, other]] = 0.0
        given.model.output.bias[[one, other]] = 100.0
    ours = require_agreement(given.model, tokenizer, lambda rows, limit: [[one] * (limit - 1)] * len(rows), what="x")
    twin = require_agreement(given.model, tokenizer, lambda rows, limit: [[other] * (limit - 1)] * len(rows), what="x")
    assert {ours, twin} == {0, SENTENCES}


def test_nothing_is_left_where_a_check_fails(ckpt, tmp_path, monkeypatch, capsys):
    def refuse(*_: Any, **__: Any) -> int:
        raise ValueError("CTranslate2 does not translate as this model does")

    monkeypatch.setattr("seq2seq.inference.export.ctranslate2_model.require_agreement", refuse)
    assert run("--ckpt", ckpt, "--format", "ctranslate2", "--out", tmp_path / "out") == 2
    assert capsys.readouterr().err.endswith("\nerror: CTranslate2 does not translate as this model does\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("out", [".", ".."])
def test_the_folder_of_the_shell_is_not_replaced(ckpt, tmp_path, monkeypatch, capsys, out):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert run("--ckpt", ckpt, "--format", "huggingface", "--out", out) == 2
    assert f"--out {out}: this command runs within that folder" in capsys.readouterr().err


@pytest.mark.usefixtures("without_marian")
def test_only_an_earlier_export_is_replaced(ckpt, tmp_path, capsys):
    folder = exported(ckpt, tmp_path / "out")
    exported(ckpt, folder)
    (folder / "notes.txt").write_text("mine")
    assert run("--ckpt", ckpt, "--format", "huggingface", "--out", folder) == 2
    assert "has notes.txt, which this export does not write; choose another folder" in capsys.readouterr().err
    # The checkpoint's own folder
    assert run("--ckpt", ckpt, "--format", "onnx", "--out", ckpt.parent) == 2
    assert ckpt.is_file()
    # A folder of another format
    (folder / "notes.txt").unlink()
    assert run("--ckpt", ckpt, "--format", "ctranslate2", "--out", folder) == 2
    # The folder also has the files that the other program needs
    for _ in range(2):
        assert run("--ckpt", ckpt, "--format", "ctranslate2", "--out", tmp_path / "other") == 0


@pytest.mark.parametrize(
    ("format", "files", "message"),
    [
        ("huggingface", {"README.md": "mine"}, "has no config.json, which this export writes"),
        ("huggingface", {"config.json": "{}", "marian/thesis.txt": "mine"}, "its folder marian has thesis.txt, which"),
        ("huggingface", {"marian/vocab.json": "{}"}, "its folder marian has no config.json"),
        # The folder as CTranslate2's own converters write it
        (
            "ctranslate2",
            {"config.json": '{"unk_token": "<unk>"}', "model.bin": "", "source.spm": "", "target.spm": ""},
            "has a config.json that no export wrote",
        ),
        (
            "onnx",
            {"config.json": '{"model_type": "bert"}', "encoder.onnx": "", "step.onnx": ""},
            "has a config.json that",
        ),
    ],
)
def test_what_is_no_earlier_export_stays(format, files, message, tmp_path, capsys):
    """A folder that is not an earlier export is refused before the checkpoint is read."""
    out = tmp_path / "out"
    for name, text in files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text)
    assert run("--ckpt", tmp_path / "no.safetensors", "--format", format, "--out", out) == 2
    assert capsys.readouterr().err.startswith(f"error: --out {out}: {message}")
    assert {str(path.relative_to(out)): path.read_text() for path in out.rglob("*") if path.is_file()} == files


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "is damaged"),
        ("[]", "is not a mapping"),
        ('{"a":' * 100 + "1" + "}" * 100, "nested more than"),
        ("{}", "is not of this program"),
        ('{"seq2seq": {}, "weights": {}}', "has no model.safetensors"),
        ('{"seq2seq": {"format": 99}, "onnx": {"format": 1}}', "is of format 99"),
        (" " * (1 << 20) + "{}", "at most 1,048,576 bytes"),
    ],
    ids=lambda value: value[:40],
)
def test_a_damaged_folder_is_one_clear_line(config, message, tmp_path):
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(CheckpointError) as error:
        Translator.load(tmp_path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_an_exported_folder_without_a_checkpoint_is_named(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"model_type": "seq2seq-mixers"}')
    command = ["--ckpt", tmp_path, "--format", "onnx", "--out", tmp_path / "out"]
    (tmp_path / "step.onnx").touch()
    assert run(*command) == 2
    assert "holds ONNX graphs, which translate, score and serve read" in capsys.readouterr().err
    (tmp_path / "step.onnx").rename(tmp_path / "model.bin")
    assert run(*command) == 2
    assert "holds a CTranslate2 model" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match="holds a CTranslate2 model"):
        Translator.load(tmp_path)


def test_a_missing_package_is_one_line_with_the_remedy():
    with pytest.raises(MissingPackageError) as error:
        require("no_such_package.part", "--format onnx", extra="export")
    assert str(error.value) == ("--format onnx needs the package no_such_package: pip install 'seq2seq-mixers[export]'")


def test_ctranslate2_may_translate_to_nothing(tokenizer, tmp_path):
    """A model that ends at once gives empty text, as in our search; CTranslate2's default is at least one piece."""
    given = plain(tokenizer, norm="post", tie="none")
    with torch.no_grad():
        given.model.decoder.layers[-1].transform.post_norm.bias.add_(1.0)
        given.model.output.weight[tokenizer.eos_id] += 1.0
    assert write_ctranslate2(tmp_path, given, positions=None, tags=[]) == SENTENCES
