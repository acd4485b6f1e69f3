"""Published models become checkpoints: the same logits, ids and translations as their own programs compute."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from exported import need, plain
from published import CONTROLS, RARE, translated, write_marian
from safetensors.torch import load_file

from seq2seq import checkpoint, convert, export
from seq2seq.checkpoint import Loaded
from seq2seq.data.extension import extend_tokenizer
from seq2seq.data.languages import tags_of
from seq2seq.data.protobuf import field
from seq2seq.data.shared_vocabulary import split_vocabulary
from seq2seq.data.tokenizer import Tokenizer, load_tokenizer
from seq2seq.inference.export.agreement import SENTENCES, specials
from seq2seq.inference.export.marian import write_marian as write_marian_again
from seq2seq.inference.imports.marian import NAME
from seq2seq.inference.imports.shared import Languages
from seq2seq.search import search
from seq2seq.settings.search import SearchSettings
from seq2seq.settings.tokenizer import TokenizerSettings
from seq2seq.system.model_path import CheckpointError
from seq2seq.training.finetune import ready_models

EXHAUSTIVE = {"test_marian_has_the_same_logits", "test_tags_choose_a_target_language"}
REPRESENTATIVE = {"test_models_that_were_trained_here_come_back": {"all"}}

need("transformers")

LINES = tiny.sentences(tiny.GERMAN, 200)
# Foreign words, characters without a piece, and no text
ODD = ["Ünknöwn 漢字 text", "", "quickly > x", "  two  blanks "]


@pytest.fixture(scope="module")
def marian(tmp_path_factory) -> Path:
    """A folder of a MarianMTModel with biases everywhere."""
    folder = tmp_path_factory.mktemp("published") / "opus-mt-de-en"
    write_marian(folder, LINES)
    return folder


@pytest.fixture(scope="module")
def ours(marian, tmp_path_factory) -> Loaded:
    out = tmp_path_factory.mktemp("converted") / "de-en.safetensors"
    assert run(marian, "--out", out) == 0
    return checkpoint.load(out)


@pytest.fixture(scope="module")
def theirs(marian) -> Any:
    from transformers import MarianMTModel

    return MarianMTModel.from_pretrained(marian).eval()


def run(*options: str | Path) -> int:
    return convert.main([str(option) for option in options])


def same_logits(ours: Loaded, theirs: Any) -> None:
    """Compare the logits of a padded batch."""
    size = ours.tokenizer.tgt_vocab_size
    src, tgt = torch.randint(1, size - 1, (3, 11)), torch.randint(1, size - 1, (3, 9))
    tgt[:, 0] = ours.tokenizer.bos_id
    mask = torch.arange(11) < torch.tensor([[11], [7], [1]])
    with torch.no_grad():
        expected = theirs(input_ids=src, attention_mask=mask.long(), decoder_input_ids=tgt).logits
        torch.testing.assert_close(ours.model(src, mask, tgt), expected, atol=1e-5, rtol=0)


def test_marian_has_the_same_logits(ours, theirs):
    same_logits(ours, theirs)
    assert ours.model.output.bias is not None
    assert ours.meta["model"]["mixer"]["cross"]["bias"] is True
    assert (ours.meta["src_lang"], ours.meta["tgt_lang"]) == ("de", "en")


@pytest.mark.parametrize("beam", [1, 4])
def test_marian_translates_as_generate(ours, theirs, beam):
    """Both searches end when the beam is full of finished hypotheses, or at the limit, which for ours includes eos."""
    for row in ours.tokenizer.encode_src(tiny.sentences(tiny.GERMAN, 4, seed=5)):
        src = torch.tensor([row])
        options = {"num_beams": beam, "early_stopping": beam > 1, "max_length": None, "forced_eos_token_id": None}
        limit = 2 * len(row) + 20
        expected = theirs.generate(src, max_new_tokens=limit, do_sample=False, **options)[0].tolist()[1:limit]
        settings = SearchSettings(beam_size=beam)
        mask = torch.ones_like(src).bool()
        found = search(ours.model, src, mask, special=specials(ours.tokenizer), settings=settings)[0][0].ids
        assert found == list(itertools.takewhile(lambda i: i != ours.tokenizer.eos_id, expected))


def test_marian_cuts_text_alike(marian, ours):
    from transformers import MarianTokenizer

    theirs = MarianTokenizer.from_pretrained(marian)
    lines = [*LINES[:50], *ODD]
    assert ours.tokenizer.encode_src(lines) == [theirs(line)["input_ids"] for line in lines]
    assert ours.tokenizer.encode_tgt(lines) == [theirs(text_target=line)["input_ids"] for line in lines]
    ids = ours.tokenizer.encode_tgt(lines[:5])
    assert ours.tokenizer.decode(ids) == [theirs.decode(row, skip_special_tokens=True) for row in ids]
    # A piece that the vocabulary lacks is unk, and not cut into others
    assert ours.tokenizer.encode_src([RARE[1:]]) == [[ours.tokenizer.unk_id, ours.tokenizer.eos_id]]
    assert ours.tokenizer.src.piece_to_id(CONTROLS) != ours.tokenizer.unk_id
    assert pickle.loads(pickle.dumps(ours.tokenizer)).encode_src(lines) == ours.tokenizer.encode_src(lines)


def test_marian_and_back(ours, theirs, tmp_path):
    """What is exported again is the same model, and converts to the same checkpoint."""
    from transformers import MarianMTModel

    given = tmp_path / "given.safetensors"
    checkpoint.save(given, checkpoint.Stored(ours.meta, ours.model.state_dict()))
    assert export.main(["--ckpt", str(given), "--format", "huggingface", "--out", str(tmp_path / "out")]) == 0
    folder = tmp_path / "out" / "marian"
    same_logits(ours, back := MarianMTModel.from_pretrained(folder).eval())
    for name, weight in theirs.state_dict().items():
        # A key's bias has no effect, and is not kept
        if not name.endswith("k_proj.bias"):
            assert torch.equal(back.state_dict()[name], weight), name
    again = tmp_path / "again.safetensors"
    assert run(folder, "--out", again) == 0
    stored = checkpoint.read(again)
    assert stored.meta["model"] == ours.meta["model"]
    assert stored.meta["tokenizer"] == ours.meta["tokenizer"]
    for name, weight in checkpoint.read(given).weights.items():
        assert torch.equal(stored.weights[name], weight), name


@pytest.mark.parametrize("separate", [False, True])
def test_tags_choose_a_target_language(tmp_path, separate):
    """>>fra<< of the source's vocabulary becomes the tag of a language, in both directions."""
    from transformers import MarianTokenizer

    folder = tmp_path / "opus-mt-de-ROMANCE"
    write_marian(folder, LINES, steps=0, tags=("fra", "ita"), share_encoder_decoder_embeddings=not separate)
    (folder / "tokenizer_config.json").unlink()
    if separate:
        ids = json.loads((folder / "vocab.json").read_text())
        lacking = {name.replace(">>", "no "): number for name, number in ids.items()}
        (folder / "target_vocab.json").write_text(json.dumps(lacking))
        (folder / "tokenizer_config.json").write_text(json.dumps({"separate_vocabs": True}))
    out = tmp_path / "out"
    assert run(folder, "--out", out, "--tgt-lang", "fr") == 0
    converted = checkpoint.load(out)
    assert (converted.meta["tgt_langs"], converted.meta["tgt_lang"]) == (["fra", "ita"], "fra")
    tags = tags_of(converted.meta, converted.tokenizer, "ita").source
    theirs = MarianTokenizer.from_pretrained(folder)
    for line in (LINES[0], "", ">> x"):
        assert [*tags, *converted.tokenizer.encode_src([line])[0]] == theirs(f">>ita<<{line}")["input_ids"]
    # No text is cut into a tag
    assert not {*tags} & {*converted.tokenizer.encode_src([">>ita<< <2ita>"])[0]}
    assert write_marian_again(tmp_path / "again", converted) == SENTENCES
    again = MarianTokenizer.from_pretrained(tmp_path / "again")
    assert again(f">>ita<<{LINES[0]}")["input_ids"] == theirs(f">>ita<<{LINES[0]}")["input_ids"]


def test_a_tokenizer_with_one_vocabulary_goes_through_files(ours, tmp_path):
    """As init_from writes it: the vocabulary, the start and joint stay."""
    settings = ready_models(ours.tokenizer, TokenizerSettings(), tmp_path)
    tokenizer = load_tokenizer(settings)
    assert tokenizer.joint
    assert tokenizer.bos_id == tokenizer.pad_id == ours.tokenizer.bos_id
    assert tokenizer.encode_src([*LINES[:9], *ODD]) == ours.tokenizer.encode_src([*LINES[:9], *ODD])
    assert tokenizer.fingerprint == ours.tokenizer.fingerprint
    # Sampled segmentations have the ids of the vocabulary, too
    sampling = load_tokenizer(dataclasses.replace(settings, sampling_alpha=0.01))
    rows = sampling.encode_src(LINES, seed=1)
    assert rows != sampling.encode_src(LINES)
    assert max(map(max, rows)) < tokenizer.src_vocab_size


def test_a_vocabulary_that_does_not_fit_is_refused(ours):
    """The file may come from a stranger."""
    vocabulary, model = split_vocabulary(ours.tokenizer.to_state()["src_model"])
    assert vocabulary is not None
    for wrong in (b"", b"{}", b"[" * 9, vocabulary.replace(b'"bos": "<pad>"', b'"bos": "<s>"')):
        with pytest.raises((ValueError, KeyError, TypeError)):
            Tokenizer(src_model=field(200, wrong) + model)
    with pytest.raises(ValueError, match="its vocabulary has more than"):
        Tokenizer(src_model=field(200, bytes(1 << 25)) + model)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"model_type": "bart"}, [], "not recognized as a model of marian"),
        ({"activation_function": "gelu_new"}, [], "activation_function gelu_new is not known"),
        ({"decoder_ffn_dim": 7}, [], "48 units in the encoder and 7 in the decoder"),
        ({"decoder_layers": 1}, [], "of its weights have no place here"),
        ({"decoder_layers": 3}, [], "weights lack model.decoder.layers.2"),
        ({"vocab_size": 9}, [], "do not fit the model's 9 embeddings"),
        ({"pad_token_id": None}, [], "pad_token_id is None"),
        ({"d_model": "x"}, [], "do not fit together"),
        ({"encoder_layers": None}, [], "do not fit together"),
        ({"d_model": 64}, [], "do not fit together"),
        ({}, ["--src-lang", "../x"], "is not a language"),
        ({}, ["--from", "m2m100"], "its tokenizer is MarianTokenizer,"),
        ({}, ["--from", "bart"], "choose from"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_refused(marian, tmp_path, change, options, message, capsys):
    folder = tmp_path / "published"
    shutil.copytree(marian, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with contextlib.suppress(SystemExit):
        assert run(folder, "--out", tmp_path / "x.safetensors", *options) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x.safetensors").exists()


def test_missing_files_and_languages_are_named(marian, tmp_path, capsys):
    folder = tmp_path / "mine"
    shutil.copytree(marian, folder)
    out = tmp_path / "x.safetensors"
    (folder / "tokenizer_config.json").unlink()
    assert run(folder, "--out", out) == 2
    assert "--src-lang and --tgt-lang" in capsys.readouterr().err
    assert run(folder, "--out", folder / "model.safetensors", "--src-lang", "de", "--tgt-lang", "en") == 2
    assert "is the input" in capsys.readouterr().err
    vocabulary = (folder / "vocab.json").read_text()
    for text, message in (("", "vocab.json: is damaged"), ("version https://git-lfs.github.com/spec/v1\n", "Git LFS")):
        (folder / "vocab.json").write_text(text)
        assert run(folder, "--out", out, "--src-lang", "de", "--tgt-lang", "en") == 2
        assert message in capsys.readouterr().err
    (folder / "vocab.json").write_text(vocabulary)
    (folder / "source.spm").unlink()
    assert run(folder, "--out", out, "--src-lang", "de", "--tgt-lang", "en") == 2
    assert "has no file source.spm" in capsys.readouterr().err
    # Other commands tell where published models go
    with pytest.raises(CheckpointError, match=r"seq2seq\.convert"):
        checkpoint.load(folder)
    assert run(tmp_path / "absent", "--out", out) == 2
    assert "no such folder" in capsys.readouterr().err


def test_added_tokens_have_their_names(marian, tmp_path, caplog):
    folder = tmp_path / "opus-mt-de-en-finetuned"
    shutil.copytree(marian, folder)
    (folder / "tokenizer_config.json").unlink()
    ids = json.loads((folder / "vocab.json").read_text())
    number = ids.pop(next(name for name in ids if name.startswith("▁")))
    (folder / "added_tokens.json").write_text(json.dumps({"<term>": number}))
    (folder / "vocab.json").write_text(json.dumps(ids))
    out = tmp_path / "x.safetensors"
    assert run(folder, "--out", out, "--tgt-lang", "fr") == 0
    assert "added tokens in text (<term>)" in caplog.text
    assert "its files say en, and --tgt-lang says fr" in caplog.text
    tokenizer = checkpoint.load(out).tokenizer
    assert tokenizer.decode([[number]]) == ["<term>"]


@pytest.mark.parametrize(
    ("settings", "least", "unread"),
    [
        ({"min_new_tokens": 3, "min_length": 9}, 3, []),
        # It counts the start
        ({"min_length": 4}, 3, []),
        (
            {"repetition_penalty": 1.3, "suppress_tokens": [8], "min_length": 0},
            0,
            ["repetition_penalty", "suppress_tokens"],
        ),
        (
            {"repetition_penalty": 1.0, "do_sample": False, "bad_words_ids": [["pad"]], "suppress_tokens": ["pad"]},
            0,
            [],
        ),
        ({"bad_words_ids": [["pad"], [7]], "diversity_penalty": 0.0}, 0, ["bad_words_ids"]),
    ],
)
def test_settings_of_generate_are_read_or_named(marian, tmp_path, caplog, settings, least, unread):
    folder = tmp_path / "opus-mt-de-en"
    shutil.copytree(marian, folder)
    pad = str(json.loads((folder / "config.json").read_text())["pad_token_id"])
    (folder / "generation_config.json").write_text(json.dumps(settings).replace('"pad"', pad))
    assert run(folder, "--out", tmp_path / "x.safetensors") == 0
    assert checkpoint.read_description(tmp_path / "x.safetensors")["search"]["min_len"] == least
    assert [name for name in settings if name in caplog.text] == unread


@pytest.mark.parametrize(
    ("name", "languages"),
    [
        ("opus-mt-de-en", ("de", "en")),
        ("opus-mt-tc-big-en-fr", ("en", "fr")),
        ("opus-mt-tc-bible-big-mul-mul", ("mul", "mul")),
        # Several targets, which the tags tell
        ("opus-mt-tc-bible-big-aav-deu_eng_fra_por_spa", None),
        ("opus-mt-en-ROMANCE", ("en", "ROMANCE")),
        ("opus-mt-de-en-finetuned", ("de", "en")),
        ("opus-mt-synthetic-de-en", None),
    ],
)
def test_names_of_folders_tell_languages(name, languages):
    found = NAME.fullmatch(name)
    assert (found and found.groups()) == languages


@pytest.mark.parametrize(
    ("named", "message"), [("zh", "ambiguous.* zho_Hans, zho_Hant$"), ("no", " nob_Latn, a00"), (None, " a00, a01")]
)
def test_a_refused_language_is_told_with_the_likely_codes(named, message):
    tagged = [*(f"a{i:02}" for i in range(50)), "nob_Latn", "zho_Hans", "zho_Hant"]
    with pytest.raises(ValueError, match=message):
        Languages("a00", named).resolve(Path("nllb"), None, None, tagged, tagged)


@pytest.mark.parametrize(
    ("named", "tagged", "chosen"),
    [
        ("zh-Hans", "zho_Hans zho_Hant", "zho_Hans"),
        ("zh-TW", "zho_Hans zho_Hant", "zho_Hant"),
        ("zh-Hant", "zh_CN zh_TW", "zh_TW"),
        ("zh-Hans-HK", "zho_Hans zho_Hant", "zho_Hans"),
        ("sr-Latn", "bos_Latn srp_Cyrl srp_Latn", "srp_Latn"),
        ("sr-Latn", "srp_Cyrl", "srp_Cyrl"),
        ("pt-BR", "pt_PT pt_BR", "pt_BR"),
        ("pt-BR", "por_Latn", "por_Latn"),
        ("pt-AO", "pt_BR pt", "pt"),
    ],
)
def test_the_script_or_region_of_a_language_chooses_its_tag(named, tagged, chosen):
    assert Languages("en", named).resolve(Path("nllb"), None, None, tagged.split()) == ("en", chosen)


def test_weights_of_torch_run_no_code(marian, ours, tmp_path):
    """pytorch_model.bin in the formats of older folders gives the same weights; a pickle of code is refused."""
    # As in a cache of the hub, where the folder's own name tells nothing
    folder = tmp_path / "models--me--opus-mt-de-en" / "snapshots" / "0123"
    shutil.copytree(marian, folder)
    (folder / "tokenizer_config.json").unlink()
    (folder / "model.safetensors").unlink()
    weights = load_file(marian / "model.safetensors")
    out = tmp_path / "x.safetensors"

    def converts() -> None:
        assert run(folder, "--out", out) == 0
        assert checkpoint.read_description(out)["src_lang"] == "de"
        for name, weight in checkpoint.read(out).weights.items():
            assert torch.equal(weight, ours.model.state_dict()[name]), name

    torch.save({name: weights[name] for name in list(weights)[:9]}, folder / "a.bin")
    torch.save({name: weights[name] for name in list(weights)[9:]}, folder / "b.bin")
    places = {name: "a.bin" if i < 9 else "b.bin" for i, name in enumerate(weights)}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    converts()
    torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    converts()
    torch.save({"x": Path("code")}, folder / "pytorch_model.bin")
    out.unlink()
    assert run(folder, "--out", out) == 2
    assert not out.exists()


def test_an_imported_tokenizer_is_not_extended(ours):
    settings = TokenizerSettings(extend=5)
    with pytest.raises(ValueError, match=r"leave tokenizer\.extend out"):
        extend_tokenizer(ours.tokenizer, src_lines=LINES, tgt_lines=LINES, settings=settings)


@pytest.mark.parametrize("tie", ["all", "target", "none"])
def test_models_that_were_trained_here_come_back(tie, tmp_path):
    """With one vocabulary a side or a joint one, all ties, and decoders that start from <s>."""
    given = plain(tiny.tokenizer(joint=tie == "all", vocab_size=290), norm="post", tie=tie)
    assert write_marian_again(tmp_path / "opus-mt-de-en", given) == SENTENCES
    assert run(tmp_path / "opus-mt-de-en", "--out", tmp_path / "out") == 0
    back = checkpoint.load(tmp_path / "out")
    for name, weight in given.model.state_dict().items():
        assert torch.equal(back.model.state_dict()[name], weight), name
    assert back.tokenizer.encode_src(LINES) == given.tokenizer.encode_src(LINES)
    ids = given.tokenizer.encode_tgt(translated(LINES))
    assert back.tokenizer.encode_tgt(translated(LINES)) == ids
    assert back.tokenizer.decode(ids) == given.tokenizer.decode(ids)
    names = ("joint", "bos_id", "eos_id", "pad_id", "unk_id", "src_vocab_size", "tgt_vocab_size", "byte_of")
    assert [getattr(back.tokenizer, name) for name in names] == [getattr(given.tokenizer, name) for name in names]
