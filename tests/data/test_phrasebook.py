"""The embedded corpus: committed files, their splits, and the grammar that writes exactly these files."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from random import Random

import pytest

EXHAUSTIVE = {"test_one_sentence_has_one_translation", "test_orthography"}

FOLDER = Path(__file__).resolve().parents[2] / "data" / "phrasebook"
SPLITS = ("train", "valid", "test")
MODULES = ("lexicon", "morphology", "syntax", "phrases", "constructions", "generate")


@pytest.fixture(scope="module")
def grammar():
    """Import the grammar's modules as `python data/phrasebook/generate.py` does, and forget them afterwards."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield {name: importlib.import_module(name) for name in MODULES}
    finally:
        for name in MODULES:
            sys.modules.pop(name, None)
        while str(FOLDER) in sys.path:
            sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def corpus():
    """Return the committed pairs of each split."""
    read = {}
    for name in SPLITS:
        lines = (FOLDER / f"{name}.jsonl").read_bytes().decode("utf-8").split("\n")
        assert lines.pop() == ""
        read[name] = [tuple(json.loads(line)["translation"][side] for side in ("de", "en")) for line in lines]
    return read


@pytest.fixture(scope="module")
def fresh(grammar):
    """Return pairs of a seed that no committed file has."""
    draws = grammar["constructions"].Constructions(Random(271828))
    return [draws.draw() for _ in range(6000)]


def words(pairs, side):
    return {word for pair in pairs for word in re.findall(r"[\w'-]+", pair[side])}


@pytest.mark.slow
def test_regeneration_is_byte_identical(grammar, tmp_path):
    generate = grammar["generate"]
    generate.write(generate.generate(), tmp_path)
    for name in SPLITS:
        assert (tmp_path / f"{name}.jsonl").read_bytes() == (FOLDER / f"{name}.jsonl").read_bytes(), name


def test_counts_schema_and_distinct_sentences(corpus):
    assert {name: len(pairs) for name, pairs in corpus.items()} == {"train": 20000, "valid": 500, "test": 500}
    everything = [pair for name in SPLITS for pair in corpus[name]]
    for side in (0, 1):
        assert len({pair[side] for pair in everything}) == 21000
    first = (FOLDER / "train.jsonl").read_text(encoding="utf-8").split("\n")[0]
    assert list(json.loads(first)) == ["translation"]
    assert "\\u" not in first


@pytest.mark.parametrize("side", [0, 1])
def test_held_out_sentences_do_not_occur_in_training(corpus, side):
    train = {pair[side] for pair in corpus["train"]}
    assert not train & {pair[side] for name in ("valid", "test") for pair in corpus[name]}


@pytest.mark.parametrize("side", [0, 1])
def test_many_word_forms_all_known_from_training(corpus, side):
    assert len(words(corpus["train"], side)) >= 600
    unseen = words(corpus["test"], side) - words(corpus["train"], side)
    assert len(unseen) <= 5, unseen


def test_lengths_are_mixed(corpus):
    lengths = [len(pair[0].split()) for pair in corpus["train"]]
    assert min(lengths) <= 3
    assert 15 <= max(lengths) <= 25
    assert 7 <= sum(lengths) / len(lengths) <= 10


PARTICLES = "auf|zu|an|aus|ab|mit|ein|weg|zurück|vor|nach|fern|um"
SHARES = {
    "weil, obwohl, wenn, dass, ob": (
        r"(?:, | ^)?\b([Ww]eil|[Oo]bwohl|[Ww]enn|dass|ob|[Bb]evor|[Nn]achdem|[Ww]ährend)\b",
        0.12,
    ),
    "particle closes the clause": (rf" ({PARTICLES})[.?!]$", 0.05),
    "particle inside the infinitive": (rf"\b({PARTICLES})zu\w+en\b", 0.008),
    "particle inside the participle": (rf"\b({PARTICLES})ge\w+(t|en)\b", 0.05),
    "participle last": (r"\bge\w+(t|en)[.?!]$", 0.08),
    "sein perfect": (r"\b([Bb]in|[Bb]ist|[Ii]st|[Ss]ind)\b.* \w*ge\w+[.?,]", 0.02),
    "infinitive last after a modal": (
        r"\b([Kk]ann|[Kk]önnen|[Mm]uss|[Mm]üssen|[Ww]ill|[Ww]ollen|[Dd]arf|[Dd]ürfen|[Mm]öchten?|[Ss]ollten?)\b.*en[.?]$",
        0.08,
    ),
    "kein": (r"\b[Kk]ein", 0.02),
    "nicht": (r"\bnicht\b", 0.08),
    "yes-no question": (r"^(Hat|Haben|Hast|Ist|Sind|Bist|Kann|Muss|Will|Wird|Werden)\b.*\?$", 0.03),
    "wh question": (r"^(Wer|Wen|Wem|Was|Wo|Wann|Warum|Wie oft|Wohin|Woher|Welche[rsnm]?|Auf wen|Wo\w+)\b.*\?$", 0.06),
    "relative clause": (r"\w, ((auf|mit) )?(der|die|das|den|dem|denen) ", 0.08),
    "clock time": (r"\b(Uhr|halb|Viertel|(fünf|zehn|zwanzig) (vor|nach)) ", 0.05),
    "compound number": (r"\b\w+und(zwanzig|dreißig|vierzig|fünfzig|sechzig|siebzig|achtzig|neunzig)\b", 0.03),
    "comparative": (r"(er als|\bso \w+ wie) ", 0.015),
    "dative plural": (r"\b(den|meinen|deinen|unseren|diesen|ihren) \w+(en|ern) ", 0.005),
    "genitive": (r"\b(des|meines|deines|unseres) \w+s\b", 0.003),
    "imperative": (r"!$", 0.02),
    "zu infinitive": (r", .*\bzu \w+en[.]$", 0.01),
}
ADVERB = r"^(Gestern|Morgen|Heute|Am|Vor|Letzte\w*|Nächste\w*|Jede\w*|In|Übermorgen|Vorgestern|Jetzt|Um|Nach|Bald) "


@pytest.mark.parametrize("name", list(SHARES))
def test_every_construction_has_its_share(corpus, name):
    pattern, share = SHARES[name]
    found = sum(bool(re.search(pattern, pair[0])) for pair in corpus["train"])
    assert found >= share * len(corpus["train"]), found / len(corpus["train"])


def test_fronted_time_inverts_subject_and_verb(corpus):
    fronted = [pair for pair in corpus["train"] if re.match(ADVERB, pair[0])]
    assert len(fronted) >= 0.05 * len(corpus["train"])
    yesterday = [de for de, _ in fronted if re.match(r"Gestern (?!Abend|um)", de)]
    finite = re.compile(r"Gestern (hat|habe|haben|hast|ist|bin|bist|sind|konnte|musste|wollte|durfte|war)\w*\b")
    assert yesterday
    assert all(finite.match(de) for de in yesterday)


def test_held_out_combinations(grammar, corpus):
    generate = grammar["generate"]
    assert generate.combinations("Anna hat einundzwanzig rote Äpfel gekauft.") == {
        ("Anna", "einundzwanzig"),
        ("einundzwanzig", "Äpfel"),
    }
    seen = {found for de, _ in corpus["train"] for found in generate.combinations(de)}
    assert not any(map(generate.held_out, seen))
    for name in ("valid", "test"):
        novel = [de for de, _ in corpus[name] if any(map(generate.held_out, generate.combinations(de)))]
        assert len(novel) == 125
        assert all(generate.combinations(de) - seen for de in novel)


def test_names_and_numbers_of_the_test_occur_in_training(grammar, corpus):
    generate = grammar["generate"]
    tokens = [{word.strip(".,!?") for de, _ in corpus[name] for word in de.split()} for name in ("train", "test")]
    assert not (generate.NAMES & tokens[1]) - tokens[0]
    assert len((generate.NUMBERS & tokens[1]) - tokens[0]) <= 2


def test_one_sentence_has_one_translation(fresh):
    for side in (0, 1):
        meanings: dict[str, set[str]] = {}
        for pair in fresh:
            meanings.setdefault(pair[side], set()).add(pair[1 - side])
        assert not [found for found in meanings.items() if len(found[1]) > 1]


def test_orthography(fresh, corpus):
    for german, english in fresh + corpus["train"]:
        for text in (german, english):
            assert text == text.strip()
            assert "  " not in text
            assert text[0].isupper()
            assert re.fullmatch(r"[^.?!]*[.?!]", text), text
            assert not re.search(r" [,.?!]|,[^ ]|,,|\bNone\b", text), text
            assert text.isprintable()
        assert german[-1] == english[-1]
        assert not re.search(r"\ba [aeio]|\ban [^aeiou]|\bA [aeio]|\bAn [^aeiou]", english), english
        assert not re.search(r"\b(in|an|zu|von|bei) dem \b|\b(in|an) das \b|\bzu der\b", german), german
        assert not re.search(r"\bin dem\b|\b(\w\w\w\w+) \1\b", german), german


def test_english_agreement(fresh):
    singular = r"^(He|She) (are|were|have|do|don't|aren't|weren't)\b"
    plural = r"^(They|We|You) (is|was|has|does|doesn't)\b|^I (is|are|has)\b"
    infinitive = r"\b(doesn't|didn't|don't|can't|won't|will|should) (goes|went|has|had|was|reads|bought)\b"
    wrong = re.compile("|".join((singular, plural, infinitive)))
    assert not [english for _, english in fresh if wrong.search(english)]
