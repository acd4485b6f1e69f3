"""Shortlists: Model 1 against computations by hand and by loops, files, and translations with a shortlist."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from seq2seq import checkpoint, shortlist, translate
from seq2seq.data import ibm1 as module
from seq2seq.data.ibm1 import lexical_table
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.inference.lexical_shortlist import Shortlist, make_shortlist
from seq2seq.inference.translator import Translator
from seq2seq.settings.search import SamplingSettings, SearchSettings

EXHAUSTIVE = {"test_translations_use_the_lists_of_their_own_sources"}

LINES = [*tiny.sentences(tiny.GERMAN, 8, seed=4), ""]
HOW = SearchSettings(beam_size=3, n_best=3, max_len_ratio=1.0, max_len_extra=5)
# Das Haus, das Buch, ein Buch: the house, the book, a book
TOY = [([0, 1], [0, 1]), ([0, 2], [0, 2]), ([3, 2], [3, 2])]


def toy_shortlist(tokenizer: Tokenizer) -> Shortlist:
    """Three translations of each source piece, and five frequent pieces."""
    rng = np.random.default_rng(0)
    size, every = tokenizer.src_vocab_size, tokenizer.tgt_vocab_size
    tokens = rng.integers(4, every, 3 * size, dtype=np.int32)
    return Shortlist(tokenizer, np.arange(size + 1) * 3, tokens, np.arange(20, 25, dtype=np.int32))


def probability(table, source: int, target: int) -> float:
    at = np.flatnonzero(table.keys == source * table.tgt_size + target)
    return float(table.probs[at[0]]) if len(at) else 0.0


def estimate(pairs, iterations: int, **how):
    sides = tuple([list(side) for side in zip(*pairs, strict=True)])
    return lexical_table(lambda: [sides], src_size=4, tgt_size=4, iterations=iterations, **how)


def test_model_1_by_hand():
    """Two sentence pairs, (f, e) and (f g, e h), each source with an empty word, which is number 4.

    First iteration, all t equal: the first pair gives c(e|f) = c(e|0) = 1/2; in the second each of f, g and 0 gets 1/3
    of e and of h. So t(e|f) = (1/2 + 1/3) / (1/2 + 2/3) = 5/7, t(h|f) = 2/7, t(e|g) = t(h|g) = 1/2, and 0 as f.
    Second: the first pair 1/2 and 1/2; in the second e is shared as 5/7 : 1/2 : 5/7, 10/27 7/27 10/27, and h as
    2/7 : 1/2 : 2/7, 4/15 7/15 4/15. t(e|g) = (7/27) / (7/27 + 7/15) = 5/14.
    """
    pairs = [([0], [0]), ([0, 1], [0, 1])]
    first = estimate(pairs, 1)
    for source in (0, 4):
        assert probability(first, source, 0) == pytest.approx(5 / 7)
        assert probability(first, source, 1) == pytest.approx(2 / 7)
    assert probability(first, 1, 0) == pytest.approx(1 / 2)
    second = estimate(pairs, 2)
    assert probability(second, 1, 0) == pytest.approx(5 / 14)
    assert probability(second, 1, 1) == pytest.approx(9 / 14)
    assert probability(second, 0, 0) == pytest.approx((1 / 2 + 10 / 27) / (1 / 2 + 10 / 27 + 4 / 15))


def loops(pairs, iterations: int) -> dict[tuple[int, int], float]:
    """Model 1 as the paper has it, in dictionaries."""
    t: dict[tuple[int, int], float] = defaultdict(lambda: 1.0)
    for _ in range(iterations):
        counts: dict[tuple[int, int], float] = defaultdict(float)
        totals: dict[int, float] = defaultdict(float)
        for source, target in pairs:
            words = [*source, 4]
            for e in target:
                norm = sum(t[f, e] for f in words)
                for f in words:
                    counts[f, e] += t[f, e] / norm
                    totals[f] += t[f, e] / norm
        t = defaultdict(float, {(f, e): count / totals[f] for (f, e), count in counts.items()})
    return t


@pytest.mark.parametrize("cells", [1, 7, 1 << 21])
def test_model_1_equals_loops(cells, monkeypatch):
    """Model 1 agrees in one block and in many; repeated words count each time, pairs with an empty side do not."""
    monkeypatch.setattr(module, "_CELLS", cells)
    pairs = [*TOY, ([2, 2, 1], [3, 3]), ([], [1]), ([1], [])]
    expected = loops([pair for pair in pairs if all(pair)], 4)
    seen = []
    table = estimate(pairs, 4, progress=lambda done, entries: seen.append((done, entries)))
    for source, target in itertools.product(range(5), range(4)):
        assert probability(table, source, target) == pytest.approx(expected[source, target], abs=1e-9)
    assert (np.diff(table.keys) > 0).all()
    assert [done for done, _ in seen] == [1, 2, 3, 4]
    # Each word with its translation
    starts, tokens = estimate(TOY, 30).best(1, 4)
    assert starts.tolist() == [0, 1, 2, 3, 4]
    assert tokens[1:].tolist() == [1, 2, 3]


def test_a_table_has_a_limit():
    table = estimate(TOY, 3, most=8)
    assert len(table.keys) == 4
    with pytest.raises(ValueError, match="no sentence pair"):
        estimate([([], [1])], 1)


@pytest.fixture(scope="module")
def ckpt(tmp_path_factory) -> Path:
    return tiny.save(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def corpus(ckpt) -> tuple[Path, Path]:
    """Words translate one by one."""
    sides = ckpt.with_name("train.de"), ckpt.with_name("train.en")
    german = tiny.sentences(tiny.GERMAN[:13], 200, seed=1)
    words = dict(zip(tiny.GERMAN, tiny.ENGLISH, strict=False))
    english = [" ".join(words[word] for word in line.rstrip(".").split()) + "." for line in german]
    for path, lines in zip(sides, (german, english), strict=True):
        path.write_text("\n".join(lines) + "\n")
    return sides


@pytest.fixture(scope="module")
def made(ckpt, corpus) -> Path:
    out = ckpt.with_name("short.npz")
    sides = ["--src", str(corpus[0]), "--tgt", str(corpus[1])]
    assert shortlist.main(["--ckpt", str(ckpt), *sides, "--out", str(out), "--best", "2", "--frequent", "3"]) == 0
    return out


def texts(results):
    return [[candidate.text for candidate in row] for row in results]


def test_a_shortlist_has_the_words_of_its_corpus(ckpt, made):
    """A word of one piece has its translation of one piece in its list."""
    tokenizer = Translator.load(ckpt, device="cpu").tokenizer
    found = Shortlist.load(made, tokenizer)
    right = 0
    for german, english in zip(tiny.GERMAN[:13], tiny.ENGLISH, strict=True):
        source, target = tokenizer.encode_src([german])[0], tokenizer.encode_tgt([english])[0]
        if len(source) == len(target) == 2:
            allowed = found.tokens[found.starts[source[0]] : found.starts[source[0] + 1]]
            assert target[0] in allowed
            right += 1
    assert right >= 5
    assert len(found.frequent) == 3
    allowed = found([])
    assert allowed.sum() == 3 + 2 + len(tokenizer.byte_of)
    assert allowed[[tokenizer.eos_id, tokenizer.unk_id]].all()


def test_an_estimate_can_be_repeated_and_ignores_blank_lines(ckpt, corpus, made, tmp_path):
    tokenizer = Translator.load(ckpt, device="cpu").tokenizer
    sides = [tmp_path / side.name for side in corpus]
    for path, side in zip(sides, corpus, strict=True):
        path.write_text("\n" + side.read_text() + "\n\n")
    again, covered, _ = make_shortlist(tokenizer, *sides, best=2, frequent=3, iterations=5)
    written = Shortlist.load(made, tokenizer)
    for name in ("starts", "tokens", "frequent"):
        assert np.array_equal(getattr(again, name), getattr(written, name))
    assert 0.5 < covered <= 1


def test_translations_use_the_lists_of_their_own_sources(ckpt, made):
    """Batches equal single sentences: searched, sampled, with a prefix and with phrases."""
    translator = Translator.load(ckpt, device="cpu", settings=HOW, shortlist=made)
    ways: list[dict[str, Any]] = [
        {},
        {"sampling": SamplingSettings(seed=3)},
        {"prefixes": ["the cat"] * len(LINES)},
        {"phrases": [["quickly"]] * len(LINES)},
    ]
    for how in ways:
        together = translator.translate(LINES, **how)
        for number, line in enumerate(LINES[:3]):
            own: dict[str, Any] = {name: given[:1] if isinstance(given, list) else given for name, given in how.items()}
            (alone,) = translator.translate([line], **own)
            assert [each.text for each in alone] == [each.text for each in together[number]]
            assert [each.score for each in alone] == pytest.approx([each.score for each in together[number]], abs=1e-4)
    plain = Translator.load(ckpt, device="cpu", settings=HOW)
    assert texts(plain.translate(LINES)) != texts(translator.translate(LINES))
    rows = [torch.tensor(row) for row in translator.tokenizer.encode_src(LINES[:-1])]
    src = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    assert texts(translator.decode(src, src > 0)) == texts(translator.translate(LINES[:-1]))


def test_the_command_takes_a_shortlist(ckpt, made, tmp_path):
    source, out = tmp_path / "in.de", tmp_path / "out.en"
    source.write_text("\n".join(LINES) + "\n")
    command = ["--ckpt", str(ckpt), "--input", str(source), "--output", str(out), "--max-len-ratio", "1"]
    assert translate.main([*command, "--beam-size", "3", "--shortlist", str(made), "--ensemble", str(ckpt)]) == 0
    translator = Translator.load(ckpt, device="cpu", settings=SearchSettings(beam_size=3, max_len_ratio=1))
    translator.shortlist = Shortlist.load(made, translator.tokenizer)
    assert out.read_text() == "".join(f"{text}\n" for text in translator.texts(LINES))


def damaged(path: Path, **changes) -> None:
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **{**arrays, **changes})


def test_bad_files_are_one_line(ckpt, made, tmp_path, capsys):
    """Other files, damage, another tokenizer, a pickle and compressed arrays give an error of one line."""
    bad = tmp_path / "bad.npz"
    meta = json.loads(np.load(made)["meta"].tobytes())

    def message() -> str:
        assert translate.main(["--ckpt", str(ckpt), "--input", str(ckpt), "--shortlist", str(bad)]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    assert "no such file" in message()
    bad.write_text("no archive")
    assert "is not a shortlist" in message()
    shutil.copy(made, bad)
    bad.write_bytes(bad.read_bytes()[:-200])
    assert "is not a shortlist" in message()
    for changes in ({"starts": np.zeros(3, np.int64)}, {"tokens": np.full(9, 10**6, np.int32)}):
        shutil.copy(made, bad)
        damaged(bad, **changes)
        assert "is damaged" in message()
    shutil.copy(made, bad)
    damaged(bad, tokens=np.array([print], dtype=object))
    assert "is not a shortlist" in message()
    for change, words in (({"tokenizer": "0" * 16}, "for another tokenizer"), ({"format": 2}, "is not a shortlist")):
        shutil.copy(made, bad)
        damaged(bad, meta=np.frombuffer(json.dumps(meta | change).encode(), np.uint8))
        assert words in message()
    with np.load(made) as file:
        np.savez_compressed(bad, **dict(file))
    assert "is not a shortlist" in message()


def test_bad_options_are_one_line(ckpt, corpus, made, tmp_path, capsys):
    src, tgt = map(str, corpus)

    def message(*options: str) -> str:
        try:
            status = shortlist.main(["--ckpt", str(ckpt), *options])
        except SystemExit as stop:
            status = stop.code
        assert status == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    out = ["--out", str(tmp_path / "short.npz")]
    assert "--tgt" in message("--src", src, *out)
    assert "the same file" in message("--src", src, "--tgt", src, *out)
    assert "the same file" in message("--src", src, "--tgt", os.path.relpath(src), *out)
    assert "is the input" in message("--src", src, "--tgt", tgt, "--out", tgt)
    assert f"--src {tmp_path} is not a regular file" in message("--src", str(tmp_path), "--tgt", tgt, *out)
    os.mkfifo(pipe := str(tmp_path / "pipe"))
    assert "each iteration reads it again" in message("--src", src, "--tgt", pipe, *out)
    other = tmp_path / "notes.txt"
    other.write_text("kept\n")
    assert "is not a shortlist" in message("--src", src, "--tgt", tgt, "--out", str(other))
    assert other.read_text() == "kept\n"
    assert "whole number" in message("--src", src, "--tgt", tgt, *out, "--best", "0")
    assert "has 200 lines" in message("--src", src, "--tgt", str(other), *out)
    other.write_text("\n" * 200)
    assert "no sentence pair" in message("--src", src, "--tgt", str(other), *out)
    assert not (tmp_path / "short.npz").exists()


def test_a_checkpoint_with_another_tokenizer_is_refused(ckpt, made, tmp_path):
    entry = tiny.payload()
    entry.meta["tokenizer"] = tiny.tokenizer(normalizer="nfkc").to_state()
    checkpoint.save(tmp_path / "foreign.safetensors", entry)
    with pytest.raises(ValueError, match="was made for another tokenizer"):
        Translator.load(tmp_path / "foreign.safetensors", device="cpu", shortlist=made)
