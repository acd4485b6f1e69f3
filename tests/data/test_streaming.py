"""Streamed training text: rounds, ranks, resuming, and settings that a stream refuses."""

from __future__ import annotations

import itertools
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch
import toycorpus

from seq2seq.data import hub, raw_pairs
from seq2seq.data.preparation import prepare_corpora, text_fingerprint
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.settings.data import CorpusSettings
from seq2seq.system.errors import CorpusFault
from seq2seq.training.lightning_parts.datamodule import TranslationDataModule
from seq2seq.training.plan import make_plan
from seq2seq.training.run import train

GERMAN = "der die das Haus Katze Hund geht kommt schnell ein und ich nicht wir"
ENGLISH = "the house cat dog walks comes quickly a and I you not today we"
SIZE = 230
EXHAUSTIVE = {"test_a_streamed_run_resumed_has_the_weights_of_one_that_was_not"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root, rng = tmp_path_factory.mktemp("streamed"), random.Random(0)
    for split, size in {"train": SIZE, "valid": 20, "test": 12}.items():
        for language, words in (("de", GERMAN.split(" ")), ("en", ENGLISH.split(" "))):
            lines = [" ".join(rng.choices(words, k=rng.randint(2, 14))) + f" {i}." for i in range(size)]
            (root / f"{split}.{language}").write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Read blocks of 40 pairs, which do not end where buffers end."""
    monkeypatch.setattr("seq2seq.data.readers.ROWS", 40)


def streamed(folder: Path, *, world: tuple[int, int] = (0, 1), **changes) -> TranslationDataModule:
    data = {"name": "toy", "src": "de", "tgt": "en", "max_tokens": 300, "clean": {"length_ratio": None}}
    data |= {split: str(folder / split) for split in ("train", "valid", "test")}
    data |= {"streaming": True, "shuffle_buffer": 70}
    tokenizer = {"vocab_size": 75, "byte_fallback": False} | changes.pop("tokenizer", {})
    chosen = toycorpus.data_plan(data | changes, tokenizer=tokenizer, seed=1, cache_dir=folder / "cache")
    made = TranslationDataModule(prepare_corpora(chosen))
    made.trainer = toycorpus.trainer(*world)
    made.describe()
    return made


def first(made, count: int) -> list:
    return list(itertools.islice(made.train_dataloader(), count))


def rounds(made, pairs: int) -> list:
    """Return the first batches that together have at least `pairs` pairs."""
    found, seen = [], 0
    for batch in made.train_dataloader():
        found.append(batch)
        seen += len(batch.index)
        if seen >= pairs:
            return found
    raise AssertionError("a stream does not end")


def same(left: list, right: list) -> bool:
    return len(left) == len(right) and all(
        torch.equal(a, b) for one, two in zip(left, right, strict=True) for a, b in zip(one, two, strict=True)
    )


def test_every_pair_comes_once_a_round_with_its_position(folder):
    made = streamed(folder)
    batches = rounds(made, 2 * SIZE)
    places = [i for batch in batches for i in batch.index.tolist()]
    assert sorted(places[:SIZE]) == sorted(places[SIZE:]) == list(range(SIZE))
    assert places[:SIZE] != places[SIZE:]
    assert sorted(places[:70]) != places[:70]
    assert max(places[:80]) < 80 + 40  # a buffer holds what was read, no more than a block beyond its size
    lines = [(folder / f"train.{language}").read_text().split("\n") for language in ("de", "en")]
    for batch in batches:
        assert max(batch.src.numel(), batch.tgt_in.numel()) <= 300
        for i, src, mask, tgt in zip(batch.index, batch.src, batch.src_mask, batch.tgt_out, strict=True):
            assert made.prepared.tokenizer.src.decode(src[mask][:-1].tolist()) == lines[0][i]
            assert made.prepared.tokenizer.decode([tgt.tolist()]) == [lines[1][i]]
    assert 0 < made.padding_share < 0.5
    # No training text is written to the disk
    assert made.prepared.fingerprint.endswith("-70")
    assert text_fingerprint(made.prepared.plan) == made.prepared.fingerprint
    with pytest.raises(ValueError, match="'train' is streamed"):
        made.prepared.sources("train")
    sizes = [path.stat().st_size for path in (folder / "cache").glob("text-*/*.arrow")]
    assert sum(sizes) < (folder / "train.de").stat().st_size


def test_files_are_hashed_once(folder, monkeypatch):
    """A large corpus is read from the disk for that."""
    calls = []
    monkeypatch.setattr("seq2seq.data.streaming.corpus_fingerprint", lambda corpus: calls.append(corpus) or "f")
    streamed(folder)
    assert len(calls) == 1


def test_buffers_follow_the_seed_and_the_cleaning(folder):
    one, again = first(streamed(folder), 9), first(streamed(folder), 9)
    assert same(one, again)
    kept = rounds(streamed(folder, clean={"length_ratio": None, "max_length": 25}), 400)
    assert max(batch.src.shape[1] for batch in kept) <= 26
    assert len({i for batch in kept for i in batch.index.tolist()}) < SIZE
    with pytest.raises(ValueError, match="no training pair of the stream is left"):
        first(streamed(folder, clean={"max_length": 1}), 1)


def test_sampling_drops_no_further_pair(folder):
    """Rules on lengths hold for best segmentations, which replace sampled ones that are too long."""
    rules = {"length_ratio": None, "max_length": 25}
    best = rounds(streamed(folder, clean=rules), 2 * SIZE)
    drawn = rounds(streamed(folder, clean=rules, tokenizer={"sampling_alpha": 0.1}), 2 * SIZE)
    left = [{i for batch in batches for i in batch.index.tolist()} for batches in (best, drawn)]
    assert left[0] == left[1] != set(range(SIZE))
    assert not same(best, drawn)
    assert max(int(batch.src_mask.sum(1).max()) for batch in drawn) <= 25
    assert all(max(batch.src.numel(), batch.tgt_in.numel()) <= 300 for batch in drawn)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_resumes_at_its_position(folder, workers):
    whole = first(streamed(folder), 60)
    at = random.randrange(1, 50)
    made = streamed(folder, num_workers=workers)
    made.seek(epoch=0, step=at)
    assert same(first(made, 60 - at), whole[at:])
    assert same(first(made, 5), whole[:5])  # the next iteration begins at the beginning


def test_ranks_share_the_pairs(folder):
    places = [
        [i for batch in rounds(streamed(folder, world=(rank, 3)), SIZE // 3) for i in batch.index.tolist()]
        for rank in range(3)
    ]
    for rank, found in enumerate(places):
        mine = list(range(rank, SIZE, 3))
        assert sorted(found[: len(mine)]) == mine


def test_segmentations_are_drawn_anew_every_round(folder):
    made = streamed(folder, tokenizer={"sampling_alpha": 0.2})
    batches = rounds(made, 2 * SIZE)
    rows = [
        (int(i), tuple(row[mask].tolist()))
        for b in batches
        for i, row, mask in zip(b.index, b.src, b.src_mask, strict=True)
    ]
    assert len(dict(rows[:SIZE]).items() & dict(rows[SIZE:]).items()) < SIZE / 2
    assert all(max(batch.src.numel(), batch.tgt_in.numel()) <= 300 for batch in batches)
    assert same(first(streamed(folder, tokenizer={"sampling_alpha": 0.2}), 20), batches[:20])


def test_both_sides_of_a_block_are_sampled_independently(folder, monkeypatch):
    made = streamed(folder, tokenizer={"sampling_alpha": 0.2})
    seeds = []
    encode = Tokenizer._encode

    def noted(self, model, lines, seed, *factors):
        # The best segmentations, which the rules on lengths use, need no seed
        seeds.extend([] if seed is None else [seed])
        return encode(self, model, lines, seed, *factors)

    monkeypatch.setattr(Tokenizer, "_encode", noted)
    rounds(made, SIZE)
    assert len(set(seeds)) == len(seeds) > 2


def test_tokenizer_learns_from_the_beginning_only(folder, monkeypatch):
    read: Counter[str] = Counter()
    whole = raw_pairs.open_split

    def counted(split, *args, **options):
        for block in whole(split, *args, **options):
            read[split] += len(block[0])
            yield block

    monkeypatch.setattr("seq2seq.data.streaming.open_split", counted)
    made = streamed(folder, tokenizer={"input_sentence_size": 60, "vocab_size": 56})
    assert made.prepared.tokenizer.src.get_piece_size() == 56
    # A block for each side of the tokenizer, one for the statistics of lines, and the first buffer for its padding
    assert read["train"] <= 3 * 80 + 80


def test_remote_text_is_not_downloaded_first(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(hub, "_tables", lambda path, options, **rest: asked.append((path, options)) or iter(()))
    settings = CorpusSettings(src="de", tgt="en", path="wmt/wmt14", train="train")
    for streaming in (False, True):
        list(raw_pairs.open_split("train", settings, cache_dir=tmp_path, streaming=streaming))
    assert [options.get("streaming", False) for _, options in asked] == [False, True]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"valid": None}, r"set data\.valid"),
        ({"clean": {"length_deviation": 4}}, r"data\.clean\.length_deviation=4 .*set it to null"),
        ({"shuffle_buffer": 0}, r"data\.shuffle_buffer=0"),
        ({"num_workers": 2}, r"data\.num_workers=2.*set 0 or 1"),
        ({"corpora": {"bt": {"train": "x"}}}, r"reads one corpus"),
    ],
)
def test_what_cannot_be_streamed_is_refused(folder, changes, message):
    with pytest.raises(ValueError, match=message):
        streamed(folder, **changes)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_in_a_worker_is_one_sentence(folder, tmp_path, workers):
    for language in ("de", "en"):
        shutil.copy(folder / f"train.{language}", tmp_path)
    made = streamed(folder, train=str(tmp_path / "train"), num_workers=workers)
    with (tmp_path / "train.en").open("a") as file:
        file.write("one more\n")
    # Batches came before it, so it is no wrong setting
    with pytest.raises(CorpusFault, match=r"^[^\n]*\b231\b[^\n]*$"):
        rounds(made, 2 * SIZE)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [(["trainer.max_epochs=2"], "not max_epochs"), (["trainer.val_steps=null"], r"set trainer\.val_steps")],
)
def test_a_stream_has_no_epochs(tmp_path, overrides, message):
    corpus = toycorpus.write(tmp_path / "corpus")
    settings = toycorpus.settings(corpus, tmp_path, "data.streaming=true", "trainer.val_steps=2", *overrides)
    with pytest.raises(ValueError, match=message):
        train(make_plan(settings, mixer="transformer"))


def test_a_streamed_run_resumed_has_the_weights_of_one_that_was_not(tmp_path):
    corpus = toycorpus.write(tmp_path / "corpus")

    def run(name: str, steps: int, *more: str) -> dict:
        settings = toycorpus.settings(
            corpus, tmp_path, "data.streaming=true", "data.shuffle_buffer=64", "trainer.val_steps=2", "optim=adam",
            "optim.warmup_steps=4", f"trainer.max_steps={steps}", f"run={name}", "trainer.test=false", *more,
        )  # fmt: skip
        train(make_plan(settings, mixer="transformer"))
        last = tmp_path / "runs" / name / "checkpoints" / "last.ckpt"
        return torch.load(last, weights_only=True)["state_dict"]

    whole = run("whole", 9)
    run("broken", 5)
    resumed = run("broken", 9, "resume=auto")
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)
