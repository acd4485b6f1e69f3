"""Source factors: ids and embeddings by hand, and every place that looks up pieces of a source."""

from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
import toycorpus
from exported import plain

from seq2seq import checkpoint
from seq2seq.data.extension import extend_tokenizer, origins
from seq2seq.data.multi_corpus import parts_of
from seq2seq.data.pace import Pace
from seq2seq.data.plan import DataPlan
from seq2seq.data.preparation import prepare_corpora
from seq2seq.data.streaming import PairStream
from seq2seq.data.token_cache import PairEncoder, read_ids, write_ids
from seq2seq.data.tokenizer import Tokenizer, make_tokenizer, same_pieces
from seq2seq.data.vocabulary_fit import report_fit
from seq2seq.inference.encoding import encode_pieces, source_pieces
from seq2seq.inference.export.agreement import SENTENCES, drawn_sources
from seq2seq.inference.export.ctranslate2_model import write_ctranslate2
from seq2seq.inference.export.onnx_graphs import write_onnx
from seq2seq.inference.export.plain_transformer import UnsupportedError
from seq2seq.inference.lexical_shortlist import Shortlist, make_shortlist
from seq2seq.inference.model_files import load_model
from seq2seq.inference.notes import Note
from seq2seq.inference.parts import split
from seq2seq.inference.translator import Translator
from seq2seq.network.build import build_model
from seq2seq.settings.declare import read_section
from seq2seq.settings.search import SearchSettings
from seq2seq.settings.tokenizer import TokenizerSettings
from seq2seq.system.errors import LineError
from seq2seq.training.finetune import start_weights
from seq2seq.training.objective.guided_alignment import align_pieces

# 3 x 4 combinations
LISTED = {"pos": ["NOUN", "VERB"], "case": ["lower", "title", "upper"]}
TEXT = "das Haus￨NOUN￨title geht￨VERB nicht.￨￨lower"
# v_pos + 3 v_case, for each word
CODES = [0, 1 + 3 * 2, 2, 3 * 1]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tiny.tokenizer(factors=LISTED)


def words_and_codes(tokenizer: Tokenizer, ids: list[int]) -> list[tuple[str, int]]:
    """The words of a source, each with the one code of its pieces."""
    words: list[tuple[str, int]] = []
    for i in ids:
        code, piece = divmod(i, tokenizer.src_vocab_size)
        text = tokenizer.src.id_to_piece(piece)
        if text.startswith("▁") or not words:
            words.append((text, code))
        else:
            assert words[-1][1] == code
            words[-1] = (words[-1][0] + text, code)
    return words


def test_ids_by_hand(tokenizer):
    (ids,) = tokenizer.encode_src([TEXT])
    pieces = tokenizer.src.encode("das Haus geht nicht.", out_type=str)
    counts = [len(tokenizer.src.encode(word)) for word in ("das", "Haus", "geht", "nicht.")]
    assert counts[1] >= 3
    codes = np.repeat(CODES, counts)
    numbers = [tokenizer.src.piece_to_id(piece) for piece in pieces]
    assert ids == [*(n + tokenizer.src_vocab_size * code for n, code in zip(numbers, codes, strict=True)), 3]
    # Words without factors have the ids of a tokenizer without factors, on the target's side too
    bare = tiny.tokenizer()
    assert tokenizer.encode_src(["das Haus."]) == bare.encode_src(["das Haus."])
    assert tokenizer.encode_tgt(["a￨NOUN"]) == bare.encode_tgt(["a￨NOUN"])
    assert bare.encode_src(["a￨NOUN"]) == bare.encode_tgt(["a￨NOUN"])
    assert source_pieces(tokenizer, ids) == [*pieces, "</s>"]
    assert tokenizer.encode_src(["Haus￨￨ Haus￨", "￨NOUN", ""]) == tokenizer.encode_src(["Haus Haus", "", ""])


@pytest.mark.parametrize("kind", ["unigram", "bpe", "word"])
def test_normalization_shifts_no_factors(kind):
    """NFKC joins and splits characters: the ligature has two letters, the sign three, an accent joins its letter."""
    more: dict[str, Any] = {"byte_fallback": False, "vocab_size": 35} if kind == "word" else {}
    made = tiny.tokenizer(factors=LISTED, type=kind, normalizer="nfkc", **more)
    words = ["ﬁ", "das…Haus", "e\u0301in", "☃", "geht", "ＡＢ"]
    codes = [1, 2, 3, 4, 0, 5]
    marks = ["￨NOUN", "￨VERB", "￨￨lower", "￨NOUN￨lower", "", "￨VERB￨lower"]
    text = "  " + "   ".join(word + mark for word, mark in zip(words, marks, strict=True)) + " "
    (ids,) = made.encode_src([text])
    assert [i % made.src_vocab_size for i in ids] == tiny_ids(made, "  " + "   ".join(words) + " ")
    if kind == "word":
        # Unknown words in a row are one piece
        assert [i // made.src_vocab_size for i in ids] == [1, 0, 5, 0]
    else:
        assert [code for _, code in words_and_codes(made, ids[:-1])] == codes


def tiny_ids(made: Tokenizer, text: str) -> list[int]:
    return Tokenizer.from_state({**made.to_state(), "factors": None}).encode_src([text])[0]


def test_sampled_segmentations_have_factors():
    made = tiny.tokenizer(factors=LISTED, sampling_alpha=0.01)
    bare = Tokenizer.from_state({**made.to_state(), "factors": None})
    drawn = {str(made.encode_src([TEXT], seed=seed)[0]) for seed in range(5)}
    assert len(drawn) > 1
    (ids,) = made.encode_src([TEXT], seed=1)
    (plain_ids,) = bare.encode_src(["das Haus geht nicht."], seed=1)
    assert [i % made.src_vocab_size for i in ids] == plain_ids
    assert [code for _, code in words_and_codes(made, ids[:-1])] == CODES


@pytest.mark.parametrize("tie", ["all", "none"])
def test_an_embedding_by_hand(tokenizer, tie):
    torch.manual_seed(0)
    model = build_model(tiny.model_config(tokenizer, tie=tie, positions="none")).eval()
    weights = model.state_dict()
    pieces, factors = (weights[f"encoder.embedding.table.{name}.weight"] for name in ("pieces", "factors"))
    assert pieces.shape == (tokenizer.src_vocab_size, 16)
    # The row of none, 2 rows of pos, 3 of case
    assert factors.shape == (6, 16)
    assert not factors[0].any()
    piece = 7
    rows = {0: [], 1: [1], 2: [2], 3: [3], 7: [1, 4], 11: [2, 5]}
    tokens = torch.tensor([[piece + tokenizer.src_vocab_size * code for code in rows]])
    found = model.encoder.embedding(tokens)
    for place, own in enumerate(rows.values()):
        expected = 4.0 * (pieces[piece] + sum((factors[row] for row in own), torch.zeros(16)))
        torch.testing.assert_close(found[0, place], expected)
    # The row of none stays zero
    found.sum().backward()
    table: Any = model.encoder.embedding.table
    assert table.factors.weight.grad[1:].any(1).all()
    assert not table.factors.weight.grad[0].any()
    assert (table.pieces is model.decoder.embedding.table) == (tie == "all")


def test_a_checkpoint_keeps_factors(tokenizer, tmp_path):
    path = tiny.save(tmp_path, t=tokenizer)
    loaded = checkpoint.load(path)
    assert loaded.tokenizer.to_state() == tokenizer.to_state()
    assert loaded.tokenizer.fingerprint == tokenizer.fingerprint
    assert loaded.tokenizer.encode_src([TEXT]) == tokenizer.encode_src([TEXT])
    assert "factors" not in tiny.tokenizer().to_state() | tiny.tokenizer().sizes
    others = [tiny.tokenizer(), tiny.tokenizer(factors={**LISTED, "case": ["lower", "upper", "title"]})]
    assert len({each.fingerprint for each in (*others, tokenizer)}) == 3
    # Values of another number do not fit the weights
    stored = checkpoint.read(path)
    stored.meta["tokenizer"]["factors"] = {"pos": ["NOUN"]}
    checkpoint.save(path, stored)
    with pytest.raises(ValueError, match="its tokenizer has factors"):
        checkpoint.load(path)


@pytest.mark.parametrize("state", [["NOUN"], {"pos": 1.5}, {"pos": [[]]}, 3])
def test_a_hostile_state_is_refused(tokenizer, state):
    with pytest.raises(ValueError, match="factors"):
        Tokenizer.from_state({**tokenizer.to_state(), "factors": state})


@pytest.mark.parametrize("sizes", [[0], [-1, 3], [2.0], ["3"]])
def test_hostile_sizes_are_refused(tokenizer, sizes):
    with pytest.raises(ValueError, match="factors is"):
        build_model({**tiny.model_config(tokenizer), "factors": sizes})


@pytest.mark.parametrize(
    ("factors", "named"),
    [
        ({"pos": ["NOUN", "NOUN"]}, "factors.pos=.*NOUN"),
        ({"pos": ["A B"]}, "factors.pos=.*A B"),
        ({"pos": ["A￨B"]}, "factors.pos=.*A￨B"),
        ({"pos": []}, "factors.pos="),
        ([["NOUN"]], "tokenizer.factors="),
        ({"pos": [1.5]}, "tokenizer.factors="),
    ],
)
def test_wrong_settings_are_refused(factors, named):
    with pytest.raises(ValueError, match=named):
        TokenizerSettings(factors=factors)


def test_what_has_no_factors(tokenizer):
    state = tokenizer.to_state()
    many = {name: [str(i) for i in range(2**14)] for name in "abcde"}
    with pytest.raises(ValueError, match="63 bits"):
        Tokenizer(src_model=state["src_model"], factors=many)
    assert Tokenizer(src_model=state["src_model"], factors={**many, "d": ["x"], "e": ["y"]}).codes > 2**40
    grid: Any = {"height": 4, "width": 4, "size": 2}
    with pytest.raises(ValueError, match="factors=pos"):
        Tokenizer.from_state({**state, "patches": grid, "tgt_model": state["src_model"], "joint": False})


def test_ids_of_any_size_are_kept(tokenizer, tmp_path):
    """With many values, an id has more than 16 or 32 bits."""
    for size, dtype in ((3, np.uint16), (300, np.int32), (3000, np.int64)):
        values = {name: [str(i) for i in range(size)] for name in ("one", "two", "three")[: 2 + (size > 300)]}
        made = Tokenizer(src_model=tokenizer.to_state()["src_model"], factors=values)
        last = f"￨{size - 1}" * len(values)
        encoder = PairEncoder(tokenizer=made)
        write_ids(tmp_path, [([f"Hund{last} geht￨1"], ["dog"])], encoder=encoder, num_proc=1, pace=Pace("x", total=1))
        src, _ = read_ids(tmp_path)
        assert src.ids.dtype == dtype
        assert {int(i) // made.src_vocab_size for i in src.row(0)} == {made.codes - 1, 2, 0}


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("Hund￨ADV", "ADV of the word Hund￨ADV"),
        ("Hund￨NOUN￨lower￨x", "has 3 factors, and tokenizer.factors 2"),
        ("a￨NOUN￨lower￨￨￨y", "has 5 factors"),
        ("Hund￨lower", "lower of the word"),
    ],
)
def test_an_unknown_value_is_an_error_of_its_line(tokenizer, line, named):
    with pytest.raises(LineError, match=named) as caught:
        tokenizer.encode_src(["Haus￨NOUN", f"das {line}"])
    assert caught.value.position == 1
    notes: list[Note] = []
    found = encode_pieces(tokenizer, ["Haus￨NOUN", line, " "], note=notes.append)
    assert [bool(each) for each in found] == [True, False, False]
    assert [(note.position, note.kind) for note in notes] == [(1, "failed")]
    assert named in notes[0].reason


def test_lines_are_translated_with_their_factors(tokenizer, tmp_path):
    """A wrong line is empty, also if only one part of it is wrong, and the others are translated as alone."""
    how = SearchSettings(beam_size=2, max_len_ratio=0, max_len_extra=6)
    translator = Translator.load(tiny.save(tmp_path, t=tokenizer), device="cpu", settings=how)
    lines = ["das Haus￨NOUN geht.", "das Haus geht.", "der Hund\nder Hund￨x\nich", "", "ich￨￨lower\nund￨VERB du."]
    notes: list[Note] = []
    found = translator.translate(lines, note=notes.append)
    assert [note.position for note in notes if note.kind == "failed"] == [2]
    assert found[2][0].text == ""
    assert found[2][0].score == float("-inf")
    assert found[3][0].score == 0
    # A factor without a word is a blank line, and so is one whose characters are spaces
    assert [row[0] for row in translator.translate(["￨NOUN", "\ufdd1￨NOUN"])] == [found[3][0]] * 2
    assert found[0][0].score != found[1][0].score
    for line, row in zip(lines, found, strict=True):
        (alone,) = translator.translate([line], note=notes.append)
        assert alone[0].text == row[0].text
        assert alone[0].score == pytest.approx(row[0].score)
    # As the model itself computes it
    (score,) = translator.score([(lines[0], "the house")])
    src = torch.tensor([tokenizer.encode_src(lines[:1])[0]])
    tgt = torch.tensor([tokenizer.encode_tgt(["the house"])[0]])
    before = torch.cat([torch.tensor([[tokenizer.bos_id]]), tgt[:, :-1]], 1)
    with torch.no_grad():
        logs = translator.model(src, torch.ones_like(src).bool(), before).log_softmax(-1)  # type: ignore[operator]
    assert score == pytest.approx(float(logs.gather(-1, tgt[..., None]).sum()), abs=1e-4)
    notes = []
    Translator.load(tiny.save(tmp_path), device="cpu", settings=how).translate(lines[:2], note=notes.append)
    assert [note.position for note in notes if note.kind == "marked"] == [0]
    # A term is found in words, not in values
    terms = {"Haus": "house", "NOUN": "dog", "title": "cat"}
    (row,) = translator.translate([TEXT], glossary=terms)
    assert [term.source for term in row[0].terms] == ["Haus"]


def test_a_long_line_is_cut_between_words(tokenizer, tmp_path):
    how = SearchSettings(beam_size=1, max_len_ratio=0, max_len_extra=3)
    translator = Translator.load(tiny.save(tmp_path, t=tokenizer), device="cpu", max_len=20, settings=how)
    line = " ".join(["Das Haus.￨NOUN", "Der Hund￨VERB￨upper"] * 6)
    for mode in ("auto", "split", "keep"):
        (row,) = translator.translate([line], sentences=mode, note=lambda note: None)
        texts = [source for source, _ in row[0].parts]
        assert 2 < len(texts) < 12
        assert " ".join(texts) == line
        # A line that fits has no sentences
        (row,) = translator.translate(["Das Haus.￨NOUN Der Hund."], sentences=mode, note=lambda note: None)
        assert not row[0].parts
    assert len(split(tokenizer, tokenizer.encode_src(["x" * 50 + "￨NOUN"])[0], 20)) == 3


def test_shortlists_and_exports_look_up_pieces(tokenizer, tmp_path):
    for side, text in (("de", TEXT), ("en", "the house walks not.")):
        (tmp_path / side).write_text(f"{text}\n" * 3)
    made, *_ = make_shortlist(tokenizer, tmp_path / "de", tmp_path / "en", best=5, frequent=1, iterations=2)
    bare = Shortlist(tokenizer, made.starts, made.tokens, made.frequent)
    ids = tokenizer.encode_src([TEXT, "das Haus geht nicht."])
    assert bare(ids[0]).equal(bare(ids[1]))
    assert bare(ids[0]).sum() > bare([]).sum()
    # Drawn sentences have all kinds of factors
    codes = {i // tokenizer.src_vocab_size for row in drawn_sources(tokenizer) for i in row}
    assert codes == set(range(12))
    with pytest.raises(UnsupportedError, match="factors"):
        write_ctranslate2(tmp_path, plain(tokenizer), positions=None, tags=[])


def test_a_tokenizer_grows_with_its_factors(tokenizer):
    lines = ["ξένος κόσμος"] * 20
    grown = extend_tokenizer(tokenizer, src_lines=lines, tgt_lines=lines, settings=TokenizerSettings(extend=10))
    assert grown.factors == tokenizer.factors
    assert grown.src_vocab_size > tokenizer.src_vocab_size
    start = plain(tokenizer)
    rows = start_weights(start, grown)
    assert rows["encoder.embedding.table.pieces.weight"].shape[0] == grown.src_vocab_size
    build_model(tiny.model_config(grown)).load_state_dict(rows)
    # The order of factors counts
    turned = Tokenizer.from_state({**tokenizer.to_state(), "factors": dict(reversed(LISTED.items()))})
    for other in (turned, tiny.tokenizer()):
        assert not same_pieces(tokenizer.to_state(), other.to_state())
        with pytest.raises(ValueError, match="factors"):
            origins(tokenizer, other)
    assert (
        make_tokenizer([grown.to_state()["src_model"]], TokenizerSettings(factors=LISTED)).fingerprint
        == grown.fingerprint
    )


def write(folder: Path, pairs: list[tuple[str, str]], sizes: tuple[int, int, int]) -> None:
    """Write pairs as three splits."""
    folder.mkdir(parents=True, exist_ok=True)
    rest = iter(pairs)
    for name, size in zip(("train", "valid", "test"), sizes, strict=True):
        rows = [next(rest) for _ in range(size)]
        for side, lang in enumerate(("de", "en")):
            (folder / f"{name}.{lang}").write_text("".join(f"{row[side]}\n" for row in rows))


def corpus(folder: Path, *, marked: bool) -> dict[str, Any]:
    """The settings of a corpus in `folder`, the first word of its sources with a factor or without."""
    pairs = [(src.replace(" ", "￨NOUN ", 1) if marked else src, tgt) for src, tgt in toycorpus.pairs(34)]
    write(folder, pairs, (30, 2, 2))
    files = {name: str(folder / name) for name in ("train", "valid", "test")}
    return {"src": "de", "tgt": "en", "max_tokens": 200, **files}


def test_data_with_factors(tmp_path, caplog):
    """Tokenizer, statistics, alignments and the report of a checkpoint's tokenizer are those of the text alone."""
    caplog.set_level(logging.INFO)
    found = []
    for marked in (False, True):
        folder = tmp_path / str(marked)
        settings = {"vocab_size": 300, "factors": LISTED if marked else None}
        plan = toycorpus.data_plan(corpus(folder, marked=marked), tokenizer=settings, cache_dir=folder)
        prepared = prepare_corpora(plan)
        links = align_pieces(prepared)
        caplog.clear()
        report_fit(prepared.tokenizer, plan, "x")
        rows = [links.row(i).tolist() for i in range(30)]
        found.append((prepared.tokenizer.to_state()["src_model"], prepared.statistics, rows, caplog.messages))
        src, _ = prepared.split("train").ids(np.array([0]))
        assert {int(i) // prepared.tokenizer.src_vocab_size for i in src.row(0)} == ({0, 1} if marked else {0})
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("marked", "factors", "warned"), [(False, LISTED, True), (True, None, True), (True, LISTED, False)]
)
def test_forgotten_factors_are_warned_of(tmp_path, caplog, marked, factors, warned):
    toycorpus.data_plan(corpus(tmp_path, marked=marked), tokenizer={"factors": factors}, cache_dir=tmp_path)
    assert ("tokenizer.factors" in caplog.text) == warned


@pytest.mark.parametrize(
    ("data", "more"),
    [
        ({"context": 1}, {}),
        ({"augment": {"upper": 0.1}}, {}),
        ({"clean": {"language": 0.9}}, {}),
        ({}, {"patches": {"height": 4, "width": 4}, "joint": False}),
    ],
)
def test_what_excludes_factors(tmp_path, data, more):
    given = toycorpus.data_settings({"train": "x", "valid": "x", "test": "x", "src": "de", "tgt": "en", **data})
    tokenizer = read_section(TokenizerSettings, {"factors": LISTED, **more}, "tokenizer")
    with pytest.raises(ValueError, match="factors: leave out"):
        DataPlan.of(given, tokenizer=tokenizer, seed=1, cache_dir=tmp_path, parts=parts_of(given))


def test_a_wrong_line_of_a_corpus_has_its_number(tokenizer, tmp_path):
    data = corpus(tmp_path / "corpus", marked=True)
    path = tmp_path / "corpus/train.de"
    text = path.read_text()
    # A context, which joins lines, is refused as such
    path.write_text(text.replace("\n", " Haus￨NOUN\n"))
    with pytest.raises(ValueError, match="factors: leave out"):
        toycorpus.data_plan({**data, "context": 1}, tokenizer={"factors": LISTED}, cache_dir=tmp_path)
    path.write_text(text.replace("￨NOUN", "￨ADV", 3).replace("￨ADV", "￨NOUN", 2))
    message = r"data\.train: line 3 is .*: ADV of the word"
    with pytest.raises(ValueError, match=message):
        toycorpus.data_plan(data, tokenizer={"factors": LISTED}, cache_dir=tmp_path)
    # A stream, of which only the beginning is read before training
    given = {**data, "streaming": True, "clean": {"duplicates": False}}
    plan = toycorpus.data_plan(given, cache_dir=tmp_path)
    assert plan.stream
    stream = PairStream(text=plan.stream, encoder=PairEncoder(tokenizer=tokenizer), max_tokens=200, seed=1)
    with pytest.raises(ValueError, match=message):
        next(iter(stream))


# Every word has two translations, chosen by its factor
SENSES = {"Bank": ("bench", "bank"), "Schloss": ("castle", "lock"), "Ton": ("clay", "sound"), "Kiefer": ("pine", "jaw")}


def ambiguous(count: int) -> list[tuple[str, str]]:
    """Different pairs, of one to three such words with articles."""
    rng, found = random.Random(0), {}
    while len(found) < count:
        words = range(rng.randint(1, 3))
        drawn = [(rng.choice(("der the", "ein a")).split(), rng.choice(list(SENSES)), rng.randrange(2)) for _ in words]
        source = " ".join(f"{article[0]} {word}￨{'AB'[sense]}" for article, word, sense in drawn)
        found[source] = " ".join(f"{article[1]} {SENSES[word][sense]}" for article, word, sense in drawn)
    return list(found.items())


def command(folder: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    given = [sys.executable, "-m", f"seq2seq.{name}", *arguments]
    return subprocess.run(given, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_factor_decides_the_translation(tmp_path):
    """With factors, all test sentences are right; without, a guess is right for half of the words."""
    pairs = ambiguous(400)
    bare = [(source.replace("￨A", "").replace("￨B", ""), target) for source, target in pairs]
    scores = {}
    more = ["data.vocab_size=20", "tokenizer.type=word", "tokenizer.byte_fallback=false", "model.dim=32"]
    more += ["model.dropout=0", "optim.lr=0.02", "trainer.max_steps=200", "search.max_len_extra=20"]
    for name, rows in (("marked", pairs), ("bare", bare)):
        write(tmp_path / name, rows, (340, 30, 30))
        words = toycorpus.words(tmp_path / name, tmp_path, *more, f"run={name}")
        words += ["tokenizer.factors={sense:[A,B]}"] if name == "marked" else []
        done = command(tmp_path, "train", *words)
        assert not done.returncode, done.stderr
        scores[name] = json.loads((tmp_path / "runs" / name / "results.json").read_text())["test"]["bleu"]
    assert scores["marked"] == pytest.approx(100)
    assert scores["bare"] < 75
    run = str(tmp_path / "runs/marked")
    (tmp_path / "in").write_text("ein Ton￨B\nein Ton￨C\n\nder Ton￨A ein Kiefer￨B\n")
    done = command(tmp_path, "translate", "--ckpt", run, "--input", "in")
    assert done.returncode == 1
    assert done.stdout.splitlines() == ["a sound", "", "", "the clay a jaw"]
    assert "C of the word Ton￨C" in done.stderr
    # Fine-tuning keeps the factors, and other ones are refused
    words = [*toycorpus.words(tmp_path / "marked", tmp_path), "run=tuned", f"init_from={run}", "trainer.max_steps=2"]
    words = [word for word in words if not word.startswith(("model.", "mixer=", "data.vocab_size"))]
    done = command(tmp_path, "train", *words)
    assert not done.returncode, done.stderr
    tuned = checkpoint.load(tmp_path / "runs/tuned")
    assert tuned.tokenizer.fingerprint == checkpoint.load(Path(run)).tokenizer.fingerprint
    done = command(tmp_path, "train", *words, "run=x", "tokenizer.factors={sense:[A,B,C]}")
    assert "tokenizer.factors is" in done.stderr
    done = command(tmp_path, "inspect", "--ckpt", run, "--text", "ein Ton￨B")
    assert not done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_graphs_translate_factors(tokenizer, tmp_path, dtype):
    assert write_onnx(tmp_path, plain(tokenizer), positions=None, tags=[], dtype=dtype) == SENTENCES
    assert load_model(tmp_path, device="cpu", dtype="float32").tokenizer.fingerprint == tokenizer.fingerprint
