"""Several corpora in one run: entries, shares, tags, directions, resuming, ranks."""

from __future__ import annotations

import json
import math
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import toycorpus
from hypothesis import given, settings
from hypothesis import strategies as st

from seq2seq import train, translate
from seq2seq.data import overlap, updates
from seq2seq.data.batching import Ragged, token_batches
from seq2seq.data.languages import Tags
from seq2seq.data.multi_corpus import Mixture, NamedCorpus
from seq2seq.data.multi_corpus import parts_of as parts_of_settings
from seq2seq.data.pace import Pace
from seq2seq.data.preparation import PreparedData, prepare_corpora, text_fingerprint
from seq2seq.data.token_cache import PairEncoder, read_ids, write_ids
from seq2seq.data.updates import TokenBatchSampler, exactly
from seq2seq.inference import translator
from seq2seq.inference.forced_text import encoded_pairs
from seq2seq.inference.notes import Note
from seq2seq.training.lightning_parts.datamodule import TranslationDataModule

fast = settings(max_examples=60, deadline=None)
WORDS = {
    "de": [
        "der",
        "die",
        "das",
        "Haus",
        "Katze",
        "Hund",
        "geht",
        "kommt",
        "schnell",
        "ein",
        "und",
        "ich",
        "nicht",
        "wir",
    ],
    "en": ["the", "house", "cat", "dog", "walks", "comes", "quickly", "a", "and", "I", "you", "not", "today", "we"],
    "fr": ["le", "la", "maison", "chat", "chien", "marche", "vient", "vite", "un", "et", "je", "ne", "pas", "nous"],
}


def write(folder: Path, name: str, size: int, languages: tuple[str, str] = ("de", "en")) -> None:
    rng = random.Random(name)
    for language in languages:
        lines = [" ".join(rng.choices(WORDS[language], k=rng.randint(2, 14))) + f" {name} {i}." for i in range(size)]
        (folder / f"{name}.{language}").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("mixed")
    for name, size in (("train", 300), ("valid", 21), ("test", 11), ("bt", 120), ("small", 40)):
        write(root, name, size)
    write(root, "french", 90, ("en", "fr"))
    write(root, "fr-test", 13, ("en", "fr"))
    return root


def prepared(folder: Path, tokenizer: dict | None = None, **changes) -> PreparedData:
    data = {"name": "toy", "src": "de", "tgt": "en", "max_tokens": 300, "clean": {"length_ratio": None}}
    data |= {split: str(folder / split) for split in ("train", "valid", "test")} | changes
    tokenizer = {"vocab_size": 78, "byte_fallback": False} | (tokenizer or {})
    return prepare_corpora(toycorpus.data_plan(data, tokenizer=tokenizer, seed=1, cache_dir=folder / "cache"))


def module(folder: Path, tokenizer: dict | None = None, **changes) -> TranslationDataModule:
    made = TranslationDataModule(prepared(folder, tokenizer, **changes))
    made.describe()
    return made


def bt(folder: Path, **more) -> dict:
    return {"bt": {"train": str(folder / "bt"), "tag": "<bt>", **more}}


def test_tag_stands_before_the_sources_of_its_corpus_only(folder):
    made = module(folder, corpora=bt(folder))
    tokenizer = made.prepared.tokenizer
    tag = tokenizer.src.piece_to_id("<bt>")
    assert tag > 3
    seen = {}
    for batch in made.train_dataloader():
        for index, row, mask, out in zip(batch.index, batch.src, batch.src_mask, batch.tgt_out, strict=True):
            seen[int(index)] = (
                int(row[0]) == tag,
                tokenizer.src.decode(row[mask][:-1].tolist()),
                out.tolist(),
            )
            assert tag not in row[1:].tolist()
    assert sorted(seen) == list(range(made.prepared.size("train"))) == list(range(420))
    assert text_fingerprint(made.prepared.plan) == made.prepared.fingerprint
    assert [seen[i][0] for i in range(420)] == [False] * 300 + [True] * 120
    assert [seen[i][1].removeprefix(" ⁇ ").strip() for i in range(420)] == made.prepared.sources("train")
    assert [tokenizer.decode([seen[i][2]])[0] for i in range(420)] == made.prepared.references("train")
    # Text that looks like the tag is text
    assert tag not in tokenizer.encode_src(["<bt> der Hund"])[0]
    assert "<bt>" not in tokenizer.decode([[tag, *tokenizer.encode_tgt(["the dog"])[0]]])[0]
    for loader in (made.val_dataloader(), made.test_dataloader()):
        assert all(tag not in batch.src[:, 0].tolist() for batch in loader)


def test_pairs_held_out_of_one_corpus_that_another_one_trains_on_are_counted(folder, tmp_path, caplog):
    """There is no warning if corpora share no pair, or about a corpus's own pairs."""
    sides = [(folder / f"train.{language}").read_text().splitlines() for language in ("de", "en")]
    for language, lines in zip(("de", "en"), sides, strict=True):
        (tmp_path / f"again.{language}").write_text("\n".join(lines[200:]) + "\n")
    held = {"valid": None, "test": None, "holdout": 40}
    again = prepared(folder, corpora={"again": {"train": str(tmp_path / "again")}}, **held)
    shared = set(zip(*(lines[200:] for lines in sides), strict=True))
    for split in ("valid", "test"):
        pairs = list(zip(again.sources(split), again.references(split), strict=True))
        assert len(pairs) == 40
        count = sum(pair in shared for pair in pairs)
        assert (
            f"{count} of the 40 pairs of data.{split} are also training pairs of data.corpora.again.train"
            in caplog.text
        )
    caplog.clear()
    # In the other direction, with other spaces
    for language, lines in zip(("de", "en"), sides, strict=True):
        (tmp_path / f"turned.{language}").write_text("\n".join(f"{line} " for line in lines) + "\n")
    turned = {"train": str(tmp_path / "turned"), "src": "en", "tgt": "de"}
    prepared(folder, corpora={"turned": turned}, tag_target=True, **held)
    assert "40 of the 40 pairs of data.test are also training pairs of data.corpora.turned.train" in caplog.text
    caplog.clear()
    prepared(folder, corpora=bt(folder), **held)
    prepared(folder, corpora={"again": {"train": str(tmp_path / "again")}})
    assert "are also training pairs" not in caplog.text


@pytest.mark.parametrize("named", [False, True])
def test_a_named_set_whose_pairs_are_trained_on_is_warned_of(folder, tmp_path, caplog, monkeypatch, named):
    """The training text is the section's or that of a corpus with a name, and keeps its duplicates."""
    for language in ("de", "en"):
        lines = (folder / f"train.{language}").read_text().splitlines(keepends=True)
        (tmp_path / f"seen.{language}").write_text("".join([*lines[:3], f"Nur {language}\n"]))
    changes = {"train": None, "corpora": {"a": {"train": str(folder / "train")}}} if named else {}
    changes |= {"valid": str(tmp_path / "seen"), "clean": {"length_ratio": None, "duplicates": None}}
    prepared(folder, **changes)
    # A second start reads the counts from the cache
    monkeypatch.delattr(overlap, "text_hashes")
    prepared(folder, **changes)
    found = [line.partition(", so")[0] for line in caplog.messages if "are also training pairs" in line]
    owner = "data.corpora.a" if named else "data"
    assert found == [f"3 of the 4 pairs of data.valid are also training pairs of {owner}.train"] * 2


@pytest.mark.parametrize("num_proc", [1, 2])
def test_tags_reach_every_process_that_encodes(tmp_path, num_proc):
    block = tiny.sentences(tiny.GERMAN, 9), tiny.sentences(tiny.ENGLISH, 9)
    encoder = PairEncoder(tokenizer=tiny.tokenizer(), tags=Tags([5], []))
    write_ids(tmp_path, [block, block], encoder=encoder, num_proc=num_proc, pace=Pace("pairs"))
    src, tgt = read_ids(tmp_path)
    assert (src.ids[src.starts] == 5).all()
    assert len(src.starts) == len(tgt.starts) == 18


def test_one_corpus_by_another_name_is_the_same_as_before(folder):
    plain, named = prepared(folder), prepared(folder, corpora={"train": {}})
    assert named.fingerprint == plain.fingerprint
    assert named.folders == plain.folders


def test_tagged_corpora_share_text_and_keep_ids_apart(folder):
    tagged, plain = prepared(folder, corpora=bt(folder)), prepared(folder, corpora=bt(folder, tag=None))
    assert tagged.folders["text of bt"] == plain.folders["text of bt"]
    assert tagged.folders["ids of train of bt"] != plain.folders["ids of train of bt"]
    assert tagged.fingerprint != plain.fingerprint


def test_subword_sampling_keeps_the_tag_and_the_budget(folder):
    made = module(folder, tokenizer={"sampling_alpha": 0.3}, corpora=bt(folder))
    tag = made.prepared.tokenizer.src.piece_to_id("<bt>")
    for batch in made.train_dataloader():
        assert max(batch.src.numel(), batch.tgt_in.numel()) <= 300
        assert [i >= 300 for i in batch.index.tolist()] == [i == tag for i in batch.src[:, 0].tolist()]


def test_ready_tokenizer_without_the_tag_is_refused(folder, tmp_path):
    path = tmp_path / "ready.model"
    path.write_bytes(prepared(folder).tokenizer.to_state()["src_model"])
    with pytest.raises(ValueError, match=r"no piece <bt>.*--control_symbols=<bt>"):
        prepared(folder, tokenizer={"model": str(path)}, corpora=bt(folder))


def test_weights_decide_how_often_a_corpus_comes(folder):
    corpora = {"train": {"weight": 1}, **bt(folder, weight=3)}
    made = module(folder, corpora=corpora)
    counts = [Counter[int]() for _ in range(4)]
    for epoch in range(4):
        made.set_epoch(epoch)
        for batch in made.train_dataloader():
            counts[epoch].update(batch.index.tolist())
            assert max(batch.src.numel(), batch.tgt_in.numel()) <= 300
    total = sum(counts, Counter())
    ours, theirs = ([total[i] for i in rows] for rows in (range(300), range(300, 420)))
    # 420 pairs an epoch, 105 and 315 of each corpus; at most one batch may be missing
    assert sum(ours) == pytest.approx(420, abs=30)
    assert sum(theirs) == pytest.approx(1260, abs=60)
    assert len({frozenset(c.items()) for c in counts}) == 4


def test_resuming_and_ranks(folder):
    def loader(rank: int, world: int):
        made = module(folder, corpora={"train": {"weight": 1}, **bt(folder, weight=2)})
        made.trainer = toycorpus.trainer(rank, world, epoch=3)
        return made.train_dataloader()

    whole = [batch.index.tolist() for batch in loader(0, 1)]
    again = loader(0, 1)
    again.batch_sampler.seek(epoch=3, step=4)  # type: ignore[union-attr]
    assert [batch.index.tolist() for batch in again] == whole[4:]
    both = [[batch.index.tolist() for batch in loader(rank, 2)] for rank in (0, 1)]
    assert len(both[0]) == len(both[1])
    rows = Counter(i for batches in both for batch in batches for i in batch)
    assert sum(rows.values()) == pytest.approx(420, abs=30)


def test_loaders_pad_sources_to_a_multiple(folder):
    """With one corpus or several, the batches stay the same."""
    for corpora in (None, bt(folder)):
        data = prepared(folder, corpora=corpora)
        plain, padded = (TranslationDataModule(data, src_multiple=multiple) for multiple in (1, 8))
        loaders = zip(plain.train_dataloader(), padded.train_dataloader(), strict=True)
        assert all(a.index.equal(b.index) and b.src.shape[1] % 8 == 0 for a, b in loaders)


def test_languages_by_tag(folder):
    french = {"src": "en", "tgt": "fr", "train": str(folder / "french"), "test": str(folder / "fr-test")}
    made = module(folder, tag_target=True, corpora={"fr": french})
    ids = {tag: made.prepared.tokenizer.src.piece_to_id(tag) for tag in ("<2en>", "<2fr>")}
    firsts = {int(i): int(row[0]) for b in made.train_dataloader() for i, row in zip(b.index, b.src, strict=True)}
    assert [firsts[i] for i in range(390)] == [ids["<2en>"]] * 300 + [ids["<2fr>"]] * 90
    assert made.prepared.size("test") == 24
    assert {int(row[0]) for b in made.val_dataloader() for row in b.src} == {ids["<2en>"]}
    assert made.directions("valid") == []
    assert [(d.name, d.tokenize, d.rows) for d in made.directions("test")] == [
        ("de-en", "13a", range(11)), ("en-fr", "13a", range(11, 24)),
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"several target languages \(en, fr\).*data\.tag_target=true"):
        prepared(folder, corpora={"fr": french})


@fast
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=4), st.integers(0, 9), st.floats(1, 20), st.data(), st.booleans()
)
def test_a_pair_comes_again_when_all_of_its_corpus_have_come(sizes, seed, temperature, data, weighted):
    weights = data.draw(st.lists(st.floats(0.1, 9), min_size=len(sizes), max_size=len(sizes))) if weighted else None
    mixture = Mixture(sizes, weights=weights, temperature=temperature, seed=seed)
    share = np.array(weights or np.array(sizes) ** (1 / temperature))
    share = share / share.sum() * sum(sizes)
    first = np.cumsum([0, *sizes])
    total = Counter[int]()
    for epoch in range(6):
        rows = mixture.rows(epoch)
        assert (rows == Mixture(sizes, weights=weights, temperature=temperature, seed=seed).rows(epoch)).all()
        total.update(rows.tolist())
        for i in range(len(sizes)):
            times = [total[row] for row in range(first[i], first[i + 1])]
            assert max(times) - min(times) <= 1
            assert sum(times) == (epoch + 1) * mixture.counts[i]
            assert abs(mixture.counts[i] - share[i]) <= 1


def test_the_order_of_a_mixture_follows_the_seed():
    one, other = (Mixture([50], weights=None, temperature=1, seed=seed).rows(0).tolist() for seed in (1, 2))
    assert sorted(one) == sorted(other)
    assert one != other


@fast
@given(st.integers(0, 5), st.integers(1, 3), st.integers(0, 99))
def test_every_epoch_of_a_mixture_has_the_same_number_of_batches(seed, world_size, draw):
    rng = np.random.default_rng(draw)
    sizes = rng.integers(5, 200, 3).tolist()
    src, tgt = rng.integers(1, 30, (2, sum(sizes)))
    mixture = Mixture(sizes, weights=[1, 2, 5], temperature=1.0, seed=seed)
    samplers = [
        TokenBatchSampler(
            src_lengths=src, tgt_lengths=tgt, max_tokens=100, seed=seed, rank=r, world_size=world_size, mixture=mixture
        )
        for r in range(world_size)
    ]
    for epoch in range(5):
        found = []
        for sampler in samplers:
            sampler.set_epoch(epoch)
            found.append(list(sampler))
            assert len(found[-1]) == len(sampler) == len(found[0])
        rows = [r for batches in found for batch in batches for r in batch.tolist()]
        drawn = Counter(mixture.rows(epoch).tolist())
        assert not Counter(rows) - drawn
        assert all(len(b) * max(src[b].max(), tgt[b].max()) <= 100 for batches in found for b in batches)
        sampler = samplers[0]
        sampler.seek(epoch=epoch, step=len(sampler) // 2)
        assert all((a == b).all() for a, b in zip(sampler, found[0][len(sampler) // 2 :], strict=True))


def test_the_order_of_an_epoch_is_computed_once(monkeypatch):
    """A mixture also computes epoch 0, which fixes the number of batches."""
    made = []

    def counted(*lengths: np.ndarray, epoch: int, **given: Any) -> list[np.ndarray]:
        made.append((len(lengths[0]), epoch))
        return token_batches(*lengths, epoch=epoch, **given)

    monkeypatch.setattr(updates, "token_batches", counted)
    src, tgt = np.random.default_rng(random.randrange(2**32)).integers(1, 30, (2, 60))
    mixture = Mixture([20, 40], weights=[3, 1], temperature=1.0, seed=1)
    sampler = TokenBatchSampler(src_lengths=src, tgt_lengths=tgt, max_tokens=100, mixture=mixture)
    assert not made
    sampler.set_epoch(4)
    for epoch in (4, 5):
        sampler.set_epoch(epoch)
        assert list(sampler)
        assert len(sampler)
    assert made == [(sum(mixture.counts), epoch) for epoch in (4, 0, 5)]


@fast
@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.data())
def test_batches_are_cut_or_left_out_to_an_exact_number(sizes, data):
    batches = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    count = data.draw(st.integers(1, sum(sizes)))
    found = exactly(list(batches), count)
    assert len(found) == count
    assert all(len(batch) for batch in found)
    rows = np.concatenate(found).tolist()
    assert rows == list(range(len(rows)))
    assert len(rows) == sum(sizes[:count])
    # No batch can be halved further
    with pytest.raises(ValueError, match=f"{sum(sizes)} sentences cannot be cut into {sum(sizes) + 1} batches"):
        exactly(list(batches), sum(sizes) + 1)


@fast
@given(st.lists(st.lists(st.lists(st.integers(4, 99), min_size=1, max_size=6), min_size=1, max_size=6), min_size=1))
def test_joined_rows_come_back_whole(parts):
    joined = Ragged.joined([Ragged.from_rows(part)._replace() for part in parts])
    assert [joined.row(i).tolist() for i in range(len(joined.lengths))] == [row for part in parts for row in part]


def parts_of(data: dict[str, Any]) -> list[NamedCorpus]:
    return parts_of_settings(toycorpus.data_settings(data))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corpora": {"bt": {"tag": "<bt>"}}}, r"data\.corpora\.bt has no train"),
        ({"corpora": {"bt": {"train": "x", "tgas": "<bt>"}}}, r"unknown setting data\.corpora\.bt\.tgas"),
        ({"corpora": {"bt": "x"}}, r"data\.corpora\.bt='x'; a corpus is a mapping"),
        ({"corpora": 5}, r"data\.corpora=5 is not a mapping"),
        ({"clean": 5}, r"^data\.clean=5 is not a section"),
        ({"corpora": {"bt": {"train": "x", "clean": [3]}}}, r"^data\.corpora\.bt\.clean=\[3\] is not a section"),
        ({"corpora": {"bt": {"train": "x", "tag": "bt"}}}, r"tag='bt': write it in angle brackets"),
        (
            {"corpora": {"bt": {"train": "x", "tag": "<b>", "test": "y"}}},
            r"bt\.tag=<b>: its validation and test sources",
        ),
        (
            {"corpora": {"bt": {"train": "x"}, "train": {"tag": "<real>"}}},
            r"train\.tag=<real>: its validation and test sources",
        ),
        ({"corpora": {"bt": {"train": "x", "weight": 0}}}, r"weight=0"),
        ({"corpora": {"bt": {"train": "x", "weight": 2}}}, r"data\.corpora\.train has no weight"),
        ({"corpora": {"bt": {"train": "x", "limit": 0}}}, r"^data\.corpora\.bt\.limit=0"),
        ({"train": None, "corpora": {"data": {"train": "x"}}}, r"data\.corpora\.data: .*choose another name"),
        (
            {"temperature": 2, "corpora": {"a": {"train": "a", "weight": 1}, "train": {"weight": 2}}},
            r"data\.temperature=2.0 draws by size, but the corpora have weights",
        ),
        ({"corpora": {"a": {"train": "a", "weight": math.inf}}}, r"a\.weight=inf: a finite number above 0"),
        ({"corpora": {"a": {"train": "a", "weight": True}}}, r"a\.weight=True: a finite number above 0"),
        ({"train": None, "valid": None, "corpora": {"bt": {"train": "x"}}}, r"data\.valid is not set"),
    ],
)
def test_what_cannot_be_mixed_is_refused(changes, message):
    data = {"src": "de", "tgt": "en", "train": "a", "valid": "b", "test": "c"}
    with pytest.raises(ValueError, match=message):
        parts_of(data | changes)


def test_an_entry_inherits_all_but_its_place():
    data = {"src": "de", "tgt": "en", "path": "wmt/wmt16", "config": "de-en", "train": "train", "valid": "validation"}
    data |= {
        "test": "test",
        "clean": {"same": False},
        "corpora": {"bt": {"train": "x", "clean": {"empty": False}, "tag": "<bt>"}, "train": {"weight": None}},
    }
    train, other = parts_of(data)
    assert (train.name, train.corpus.path, train.tags, train.corpus.splits) == (
        "train", "wmt/wmt16", (), ("train", "valid", "test"),
    )  # fmt: skip
    assert other.tags == ("<bt>",)
    assert (other.corpus.path, other.corpus.config, other.corpus.valid, other.corpus.splits) == (
        None, None, None, ("train",),
    )  # fmt: skip
    assert (other.corpus.clean.same, other.corpus.clean.empty, train.corpus.clean.empty) == (False, False, True)
    (alone, evaluation) = parts_of(data | {"train": None, "path": None, "corpora": {"bt": {"train": "x"}}})
    assert (alone.name, evaluation.corpus.splits, evaluation.corpus.train) == ("bt", ("valid", "test"), None)


def test_the_tag_of_the_language_stands_before_that_of_the_corpus():
    data = {"src": "de", "tgt": "en", "train": "a", "valid": "b", "test": "c", "tag_target": True}
    data["corpora"] = {"bt": {"train": "x", "tag": "<bt>"}}
    assert [part.tags for part in parts_of(data)] == [("<2en>",), ("<2en>", "<bt>")]


def test_an_entry_for_train_keeps_the_sets_that_are_scored():
    data = {"src": "de", "tgt": "en", "valid": "b", "test": "c"}
    data["corpora"] = {"train": {"train": "x"}, "bt": {"train": "y"}}
    train, _ = parts_of(data)
    assert (train.corpus.train, train.corpus.valid, train.corpus.test) == ("x", "b", "c")
    data["corpora"]["train"]["valid"] = "own"
    train, _ = parts_of(data)
    assert (train.corpus.valid, train.corpus.test) == ("own", "c")


@pytest.mark.exhaustive
def test_from_training_to_translation_by_language(folder, tmp_path, monkeypatch, capfd):
    from toycorpus import TINY

    french = (
        f"{{src: en, tgt: fr, train: {folder / 'french'}, valid: {folder / 'fr-test'}, test: {folder / 'fr-test'}}}"
    )
    command = ["train", "data=files", "mixer=transformer", *TINY, "data.tag_target=true", f"cache={tmp_path / 'cache'}"]
    command += [f"data.{split}={folder / split}" for split in ("train", "valid", "test")]
    command += [f"data.corpora={{fr: {french}, bt: {{train: {folder / 'bt'}, tag: '<bt>'}}}}", f"runs={tmp_path}"]
    command += ["run=toy", "data.temperature=2", "data.vocab_size=78", "tokenizer.byte_fallback=false"]
    monkeypatch.setattr(sys, "argv", command)
    train.main()
    results = json.loads((tmp_path / "toy" / "results.json").read_text())
    for part in ("valid", "test"):
        assert {"bleu", "bleu_de-en", "bleu_en-fr"} <= set(results[part])
    assert "val/bleu_en-fr" in (tmp_path / "toy" / "metrics.csv").read_text().splitlines()[0]
    best = str(tmp_path / "toy" / "checkpoints" / "best.safetensors")
    lines = ["der Hund", "", "nicht wir"]
    (tmp_path / "in").write_text("\n".join(lines) + "\n")
    texts = {}
    for language in ("en", "fr", "cs"):
        capfd.readouterr()
        status = translate.main(["--ckpt", best, "--input", str(tmp_path / "in"), "--tgt-lang", language])
        texts[language] = capfd.readouterr()
        assert status == (2 if language == "cs" else 0)
    assert "does not translate to 'cs'; it translates to en, fr" in texts["cs"].err
    assert len(texts["fr"].out.split("\n")) == 4
    model = translator.Translator.load(best, device="cpu", tgt_lang="fr")
    assert model.tags.source == [model.tokenizer.src.piece_to_id("<2fr>")]
    assert translator.Translator.load(best, device="cpu").tags.source == [model.tokenizer.src.piece_to_id("<2en>")]
    notes: list[Note] = []
    whole, blank = (row for row, _ in encoded_pairs(model, [(line, "") for line in lines[:2]], note=notes.append))
    assert whole == [*model.tags.source, *model.tokenizer.encode_src(lines[:1])[0]]
    assert blank == []
    model.max_len = 5
    _, (cut, _) = encoded_pairs(model, [("", ""), ("der Hund und die Katze", "")], note=notes.append)
    assert len(cut) == 5
    assert cut[:1] == model.tags.source
    assert [(each.position, each.kind) for each in notes] == [(1, "cut")]


def test_an_error_names_the_setting_of_the_entry(tmp_path):
    data = {"src": "de", "tgt": "en", "train": None, "valid": "v", "test": "t"}
    data |= {"corpora": {"bt": {"train": str(tmp_path / "nowhere")}}}
    with pytest.raises(ValueError, match=r"^data\.corpora\.bt\.train=.*nowhere"):
        toycorpus.data_plan(data, cache_dir=tmp_path)
    # The name of a file is no setting
    (tmp_path / "data.train.csv").write_text("a,b\nc,d\n")
    data["corpora"]["bt"]["train"] = str(tmp_path / "data.train.csv")
    with pytest.raises(ValueError, match=r"/data\.train\.csv has .* 'data\.corpora\.bt\.columns=\{de: "):
        toycorpus.data_plan(data, cache_dir=tmp_path)
