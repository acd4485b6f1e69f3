"""The campaign of real files: its rule for outcomes, its kinds, and a few attempts."""

from __future__ import annotations

import random

import pytest
import sentencepiece

from benchmarks.hostile.processes import Command, Done
from benchmarks.real_files import __main__ as campaign
from benchmarks.real_files import attempts, relations, sentences
from benchmarks.real_files.attempts import FileAttempt
from benchmarks.real_files.lines import PACKERS
from benchmarks.real_files.world import LINES, FileWorld


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("world")
    (root / "cache" / "tokenizer-1").mkdir(parents=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences.sentences("de") + sentences.sentences("en")),
        model_prefix=str(root / "cache" / "tokenizer-1" / "src_model"),
        vocab_size=400,
        byte_fallback=True,
        pad_id=3,
        minloglevel=2,
    )
    every = [*sum(sentences.phrasebook(), ()), *(s for code in sentences.LANGUAGES for s in sentences.sentences(code))]
    lines = every[:LINES]
    return FileWorld(root, (), lines, {text: text for text in every}, lines, lines)


def attempt(world, folder, kind, seed=0):
    for name in ("work", "kept"):
        (folder / name).mkdir()
    return campaign.kinds()[kind](rng=random.Random(seed), world=world, work=folder / "work")


def done(status=0, err="", out=b"", exceeded="", module="seq2seq.score"):
    return Done(status=status, out=out, err=err, exceeded=exceeded, cpu=0.1, wall=0.2, megabytes=3)


@pytest.mark.parametrize(
    ("ended", "wrong", "verdict"),
    [
        (done(), "", "right"),
        (done(), "other", "silent"),
        (done(err="warning: t.de is in latin-1\n"), "other", "warned"),
        (done(err="warning: t.de is long\n"), "other", "unclear"),
        (done(2, "error: t.de is in latin-1\n"), "", "refused"),
        (done(2, "error: a file is in latin-1\n"), "", "unclear"),
        (done(2, "error: t.de is wrong\n"), "", "unclear"),
        (done(2, "error: t.de is in latin-1\nand more\n"), "", "unclear"),
        (done(1, "error: t.de is in latin-1\n"), "", "unclear"),
        (done(1, "Traceback (most recent call last):\n  x\nValueError: latin-1\n"), "", "crash"),
        (done(-11), "", "crash"),
        (done(-9, exceeded="more than 60 CPU seconds"), "", "hang"),
    ],
)
def test_an_outcome_is_sorted_by_the_rule(ended, wrong, verdict, tmp_path):
    drawn = FileAttempt("x", Command("seq2seq.score"), lambda _: wrong, "right refused warned", "latin", ("t.de",))
    assert attempts.judge(drawn, ended, tmp_path)[0] == verdict


def test_a_warning_about_a_good_file_is_a_false_alarm(tmp_path):
    drawn = FileAttempt("x", Command("seq2seq.score"), lambda _: "")
    assert attempts.judge(drawn, done(err="warning: odd\n"), tmp_path)[0] == "unclear"


@pytest.mark.parametrize("kind", campaign.kinds())
def test_an_attempt_follows_from_its_seed(kind, world, tmp_path):
    both = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        drawn = attempt(world, folder, kind, seed=3)
        files = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        # Writers stamp archives with the time
        times = kind in ("archive", "not text", "table, compressed", "compressed", "columns exchanged", "parquet")
        both.append((drawn.what, drawn.command.words, None if times or "suffix" in kind else files))
    assert both[0] == both[1]


@pytest.mark.parametrize(
    ("kind", "seed", "verdict"), [("plain", 3, "right"), ("byte order mark", 0, "right"), ("truncated", 1, "refused")]
)
def test_a_file_of_lines_is_read_as_known(kind, seed, verdict, world, tmp_path):
    drawn = next(
        found for found in (attempt_of_files(world, tmp_path / str(i), kind, seed + i) for i in range(99)) if found
    )
    found = attempts.carry_out(*drawn)
    assert found["outcome"] == verdict, found


def attempt_of_files(world, folder, kind, seed):
    """Draw an attempt; None for one that needs a checkpoint."""
    folder.mkdir()
    drawn = attempt(world, folder, kind, seed)
    return None if str(world.ckpt) in drawn.command.words else (drawn, folder)


@pytest.mark.parametrize("suffix", PACKERS)
def test_compressed_output_is_read_by_other_means(suffix):
    assert relations.unpacked(PACKERS[suffix](b"a\nb\n"), suffix) == b"a\nb\n"


def test_unequal_lengths_are_refused(world, tmp_path):
    assert attempts.carry_out(attempt(world, tmp_path, "unequal lengths"), tmp_path)["outcome"] == "refused"
