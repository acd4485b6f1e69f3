"""Terminology tags: phrases of a pair by hand, learned translations, batches, and glossaries written into sources."""

from __future__ import annotations

import functools
import itertools
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
import toycorpus

from seq2seq import checkpoint, translate
from seq2seq.data.augmentation import Augmentation
from seq2seq.data.context import ContextWindow
from seq2seq.data.extension import extend_tokenizer
from seq2seq.data.marks import SEPARATOR, TERM, TERM_END
from seq2seq.data.terms import learn_lexicon, mark_words
from seq2seq.inference.glossary import Term
from seq2seq.inference.lexical_shortlist import Shortlist
from seq2seq.inference.service.loaded_models import BatchTranslator
from seq2seq.inference.service.messages import TranslateRequest, checked, chosen_options
from seq2seq.inference.service.settings import ServiceSettings
from seq2seq.inference.translator import Translator
from seq2seq.settings.data import AugmentSettings
from seq2seq.settings.search import SearchSettings
from seq2seq.settings.tokenizer import TokenizerSettings
from seq2seq.training.lightning_parts.datamodule import TranslationDataModule
from seq2seq.training.plan import make_plan
from seq2seq.training.run import train

PIECES = ("<term>", "</term>")


def shown(text: str) -> str:
    return text.replace(TERM, "[").replace(TERM_END, "]")


def marked(src: str, tgt: str, lexicon: dict[str, list[str]]) -> set[str]:
    """All results for a pair."""
    return {shown(mark_words(src, tgt, lexicon, random.Random(seed))) for seed in range(200)}


def test_phrases_by_hand():
    lexicon = {"das": ["the"], "alte": ["old"], "haus": ["house", "home"], "ruft": ["calls"], "an": ["calls"]}
    # Single words, and phrases with the same order; the end of a phrase is the place of its translation
    found = marked("das alte Haus!", "the old House", lexicon)
    single = {"das[the] alte Haus!", "das alte[old] Haus!", "das alte[the old] Haus!"}
    ends = {f"das alte Haus[{translation}]!" for translation in ("House", "old House", "the old House")}
    assert {each for each in found if each.count("[") == 1} == single | ends
    # Several phrases do not overlap
    assert "das[the] alte[old] Haus[House]!" in found
    assert not any("[the old]" in each and "das[" in each for each in found)
    # Words with one translation together, and apart from each other
    assert marked("er ruft an", "he calls", lexicon) == {"er ruft an[calls]"}
    assert marked("er ruft Tom an", "he calls Tom", lexicon) == {"er ruft Tom an"}
    # A translation in two places, or in two words that are apart
    assert marked("das Haus", "the house and the home", lexicon) == {"das Haus"}
    assert marked("Haus", "house home", lexicon) == {"Haus[house home]"}
    # The context stays as it is
    assert marked(f"Haus{SEPARATOR}das Haus", "the x", lexicon) == {f"Haus{SEPARATOR}das[the] Haus"}
    assert marked("家は古い", "old house", {"家": ["house"]}) == {"家[house]は古い"}
    # A combining mark belongs to its word
    assert marked("मकान में", "in house", {"में": ["in"]}) == {"मकान में[in]"}


def test_translations_are_learned():
    pairs = toycorpus.pairs(200)
    lexicon = learn_lexicon([([german for german, _ in pairs], [english for _, english in pairs])], seed=0)
    for words in (toycorpus.NOUNS, toycorpus.VERBS):
        for german, english in words.items():
            assert english in lexicon[german.lower()]
    assert lexicon["und"] == ["and"]
    with pytest.raises(ValueError, match=r"data\.augment\.terms: .* leave it out"):
        learn_lexicon([(["ein Haus", "das Haus"], ["a house", "the house"])], seed=0)


module = functools.partial(toycorpus.module, augment={"terms": 0.5})


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return toycorpus.write(tmp_path_factory.mktemp("toy"), (200, 10, 10))


def sources(made: TranslationDataModule, batches) -> dict[int, tuple[int, ...]]:
    return {
        i: tuple(row[mask].tolist())
        for batch in batches
        for i, row, mask in zip(batch.index.tolist(), batch.src, batch.src_mask, strict=True)
    }


def test_batches_hold_terms_within_the_budget(folder):
    made = module(folder)
    tokenizer = made.prepared.tokenizer
    term, end = (tokenizer.src.piece_to_id(piece) for piece in PIECES)
    pairs = made.prepared.split("train").pairs(range(200))
    seen = []
    for number in (0, 1, 0):
        made.set_epoch(number)
        batches = list(made.train_dataloader())
        assert all(max(b.src.numel(), b.tgt_in.numel()) <= 300 for b in batches)
        seen.append(sources(made, batches))
    assert seen[0] == seen[2] != seen[1]
    changed = {i: list(row) for i, row in seen[0].items() if term in row}
    assert 70 < len(changed) < 130
    for i, row in changed.items():
        assert row.count(term) == row.count(end) <= 3
        # What stands in the marks is in the target, and the rest is the source
        first, last = row.index(term), row.index(end)
        assert tokenizer.src.decode(row[first + 1 : last]) in pairs[i][1]
        assert pairs[i][0].startswith(tokenizer.src.decode(row[:first]))
    assert not any(term in row for row in sources(made, made.val_dataloader()).values())


def test_a_stream_has_the_terms_of_its_text(folder):
    made = module(folder, streaming=True, shuffle_buffer=70)
    assert made.prepared.augment
    term, end = (made.prepared.tokenizer.src.piece_to_id(piece) for piece in PIECES)
    rows: dict[int, tuple[int, ...]] = {}
    for batch in made.train_dataloader():
        rows |= {i: row for i, row in sources(made, [batch]).items() if i not in rows}
        if len(rows) == 200:
            break
    assert 70 < sum(term in row for row in rows.values()) < 130
    assert all(row.count(term) == row.count(end) for row in rows.values())
    # The same text has the same terms if it is prepared
    prepared = module(folder)
    prepared.set_epoch(0)
    assert prepared.prepared.augment
    assert prepared.prepared.augment.lexicon == made.prepared.augment.lexicon


def test_a_cached_lexicon_is_of_the_same_sample(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("seq2seq.data.terms._PAIRS", 40)
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    one, two = (module(tmp_path, tokenizer={"seed": seed}).prepared.augment for seed in (1, 2))
    assert one
    assert two
    assert one.lexicon != two.lexicon


@pytest.mark.slow
def test_a_resumed_epoch_and_workers_see_the_same_terms(folder):
    whole = module(folder)
    whole.set_epoch(3)
    made = module(folder, num_workers=2)
    made.set_epoch(3)
    made.seek(epoch=3, step=4)
    for left, right in zip(list(whole.train_dataloader())[4:], made.train_dataloader(), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_other_changes_keep_their_draws():
    """A share of terms takes pairs that had no change."""
    rows = np.arange(2000)
    before = Augmentation(AugmentSettings(upper=0.2, typos=0.3), 1, {}).kinds(rows, 0)
    after = Augmentation(AugmentSettings(upper=0.2, typos=0.3, terms=0.1), 1, {}).kinds(rows, 0)
    assert (after[before > 0] == before[before > 0]).all()
    assert set(after[before == 0].tolist()) == {0, 5}


def test_a_ready_tokenizer_needs_the_pieces(folder, tmp_path):
    plain = tiny.tokenizer()
    (tmp_path / "spm.model").write_bytes(plain.to_state()["src_model"])
    with pytest.raises(ValueError, match=r"no piece <term>: .*data\.augment\.terms.*tokenizer\.extend=0"):
        module(folder, tokenizer={"model": str(tmp_path / "spm.model"), "vocab_size": 8000}, vocab_size=8000)
    given = TokenizerSettings(extend=0, symbols=PIECES)
    extended = extend_tokenizer(plain, src_lines=[], tgt_lines=[], settings=given)
    size = plain.src_vocab_size
    assert extended.marks == {TERM: size, TERM_END: size + 1}
    assert extended.separator is None
    # A tokenizer without the pieces reads the characters as text
    assert plain.encode_src([f"a{TERM}b"]) == plain._encode(plain.src, [f"a{TERM}b"], None)


@pytest.fixture(scope="module")
def ckpt(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    stored = tiny.payload(t=tiny.tokenizer(symbols=("<sep>", *PIECES)))
    checkpoint.save(path, stored._replace(meta={**stored.meta, "terms": True}))
    return path


HOW: dict[str, Any] = {"device": "cpu", "settings": SearchSettings(beam_size=2, max_len_ratio=0, max_len_extra=6)}


def test_a_glossary_is_written_into_the_source(ckpt):
    translator: Any = Translator.load(ckpt, glossary_by="tags", **HOW)
    encode = translator.tokenizer.src.encode
    term, end = (translator.tokenizer.src.piece_to_id(piece) for piece in PIECES)
    searched = []
    plain = translator._search

    def search(given, *rest):
        searched.extend(source.ids for source in given.values())
        assert not any(source.phrases for source in given.values())
        return plain(given, *rest)

    translator._search = search
    text = f"der Hund, das Haus{TERM} und der Hund."
    glossary = {"Hund": "cat", "das Haus": f"the {TERM}house", "Igel": "x"}
    ((found,),) = translator.translate([text], glossary=glossary, sentences="keep", note=lambda note: None)
    row = [*encode("der Hund"), term, *encode("cat"), end, *encode(", das Haus"), term, *encode("the  house"), end]
    row += [*encode("und der Hund"), term, *encode("cat"), end, *encode("."), translator.tokenizer.eos_id]
    assert searched == [row]
    assert [each.source for each in found.terms] == ["Hund", "das Haus"]
    # As in a source without terms, invisible characters are left out
    searched.clear()
    translator.translate([text.replace("und der", "u\xadnd der")], glossary=glossary, sentences="keep", note=print)
    assert searched == [row]
    # No room for the terms
    searched.clear()
    translator.max_len = len(encode(text.replace(TERM, " "))) + 2
    translator.translate([text], glossary=glossary, sentences="keep", note=lambda note: None)
    assert searched == [[*encode(text.replace(TERM, " ")), translator.tokenizer.eos_id]]


def test_a_shortlist_has_the_marked_terms(ckpt):
    """Its lists are of the words of sources, and marks hold words of targets."""
    translator: Any = Translator.load(ckpt, glossary_by="tags", **HOW)
    tokenizer = translator.tokenizer
    starts = np.zeros(tokenizer.src_vocab_size + 1, np.int64)
    translator.shortlist = Shortlist(tokenizer, starts, np.zeros(0, np.int32), np.zeros(0, np.int32))
    wanted = tokenizer.encode_tgt(["cat"])[0]
    seen = []
    plain = translator.model.narrow

    def narrow(ids, allowed):
        seen.append({int(i) for i in ids[allowed[0]]})
        return plain(ids, allowed)

    translator.model.narrow = narrow
    translator.translate(["der Hund"], glossary={"Hund": "cat"}, note=lambda note: None)
    assert seen
    assert all(found.issuperset(wanted) for found in seen)


def test_the_characters_of_marks_in_a_text_are_spaces(ckpt):
    translator = Translator.load(ckpt, **HOW)
    for text in (f"der{TERM}Hund{TERM_END} geht", f"der{SEPARATOR}Hund  geht"):
        assert translator.texts([text]) == translator.texts(["der Hund  geht"])
        assert translator.score([(text, "dog")]) == translator.score([("der Hund geht", "dog")])
        assert ContextWindow(1)(text).split() == ["der", "Hund", "geht"]


def test_a_model_without_terms_is_searched(ckpt, tmp_path):
    plain = checkpoint.read(ckpt)
    entry = {key: value for key, value in plain.meta.items() if key != "terms"}
    checkpoint.save(tmp_path / "plain.safetensors", plain._replace(meta=entry))
    for files in (
        {"path": tmp_path / "plain.safetensors"},
        {"path": ckpt, "ensemble": [tmp_path / "plain.safetensors"]},
    ):
        with pytest.raises(ValueError, match=r"glossary_by=tags: choose search; .*data\.augment\.terms"):
            Translator.load(**files, glossary_by="tags", **HOW)
    assert Translator.load(ckpt, **HOW).glossary_by == "search"
    with pytest.raises(ValueError, match=r"glossary_by=tag: choose search or tags"):
        Translator.load(ckpt, glossary_by="tag", **HOW)
    # A search widens the beam, tags do not
    limits = ServiceSettings()
    request = checked(TranslateRequest, {"text": "der Hund", "glossary": [["Hund", "cat"]]})
    assert request == checked(TranslateRequest, {"text": "der Hund", "glossary": {"Hund": "cat"}})
    for by, beam in (("tags", 2), ("search", 10)):
        translator = Translator.load(ckpt, glossary_by=by, **HOW)
        served = BatchTranslator(lambda own=translator: own, name="model", make_room=lambda model: None)
        assert served.beam(chosen_options(request, translator.settings, ("de", "en"), limits)) == beam
    ((found,),) = translator.translate(["der Hund"], glossary={"Hund": "cat"})
    assert found.terms == (Term("Hund", "cat", True),)


@pytest.mark.slow
def test_a_trained_model_obeys_a_glossary(tmp_path, capsys, monkeypatch):
    """Nouns have five translations each, so that only the marks say which one is wanted."""
    monkeypatch.chdir(tmp_path)
    german, english = list(toycorpus.NOUNS)[:5], list(toycorpus.NOUNS.values())[:5]
    rows = list(itertools.product(german, english, toycorpus.VERBS.items(), toycorpus.PLACES.items()))
    random.Random(1).shuffle(rows)
    for split, part in (("train", rows[20:]), ("valid", rows[:10]), ("test", rows[10:20])):
        Path(f"{split}.de").write_text("".join(f"ein {a} {v[0]} {p[0]}\n" for a, _, v, p in part))
        Path(f"{split}.en").write_text("".join(f"a {b} {v[1]} {p[1]}\n" for _, b, v, p in part))
    # One validation, so that the checkpoint is the last one: validation text has no marks
    given = ["data.augment.terms=0.9", "trainer.max_steps=400", "trainer.val_steps=400", "trainer.test=false"]
    given += ["model.dim=32", "model.ffn_dim=64", "model.dropout=0", "optim.lr=0.005", "optim.warmup_steps=30"]
    given += ["data.clean.duplicates=false", "run=terms"]
    train(make_plan(toycorpus.settings(tmp_path, tmp_path, *given), mixer="transformer"))
    (ckpt,) = Path("runs/terms").rglob("*.safetensors")
    Path("in.de").write_text("".join(f"ein {a} {verb}\n" for a, verb in itertools.product(german, toycorpus.VERBS)))
    Path("terms.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in zip(german, english[::-1], strict=True)))
    wanted = [word for word in english[::-1] for _ in toycorpus.VERBS]
    shares = {}
    for by in ("tags", "search", "none"):
        options = ["--glossary", "terms.tsv", "--glossary-by", by] if by != "none" else []
        words = ["--ckpt", str(ckpt), "--input", "in.de", "--output", f"{by}.en", *options, "--device", "cpu"]
        assert translate.main(words) == 0
        written = Path(f"{by}.en").read_text().splitlines()
        shares[by] = sum(word in line.split() for word, line in zip(wanted, written, strict=True)) / 20
        assert ("glossary: " in capsys.readouterr().err) == bool(options)
    assert shares["search"] == 1
    # One in five by chance
    assert shares["none"] < 0.35 < 0.5 < shares["tags"], json.dumps(shares)
    with pytest.raises(SystemExit):
        translate.main(["--ckpt", str(ckpt), "--glossary-by", "tags"])
