"""Glossaries: how terms are found and read, and what the search does with them."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny

from seq2seq import translate
from seq2seq.inference import search_parts
from seq2seq.inference.glossary import Glossary, Term, TermCounts, has_words
from seq2seq.inference.line_stream import LineStream
from seq2seq.inference.parts import SourceLine, SourcePart
from seq2seq.inference.service.loaded_models import BatchTranslator
from seq2seq.inference.service.messages import RefusedError, TranslateRequest, checked, chosen_options, texts_of
from seq2seq.inference.service.settings import ServiceSettings
from seq2seq.inference.translator import Translator
from seq2seq.settings.search import SearchSettings


@pytest.fixture(scope="module")
def ckpt(tmp_path_factory) -> Path:
    return tiny.save(tmp_path_factory.mktemp("glossary"))


@pytest.fixture
def translator(ckpt) -> Translator:
    return Translator.load(ckpt, settings=SearchSettings(beam_size=2, max_len_ratio=1, max_len_extra=2), device="cpu")


def sources(terms: list[str], text: str) -> list[str]:
    """Find terms whose targets are themselves."""
    return [term.source for term in Glossary((term, term) for term in terms).find(text)]


@pytest.mark.parametrize(
    ("terms", "text", "found"),
    [
        # Whole words, the longest first, no overlaps
        (["Haus", "Haus am See", "See"], "Haus am See, Hausboot, Seehaus", ["Haus am See"]),
        (["am See", "Haus am"], "Haus am See", ["Haus am"]),
        (["Haus"], "Haus. Haus!", ["Haus"]),
        (["C++", ".NET", "C"], "C, C++17 und .NET", ["C", "C++", ".NET"]),
        (["е"], "е ели", ["е"]),
        # A letter with a combining mark is one word with it
        (["e"], "e\u0301 a", []),
        # Substrings where a script has no spaces
        (["東京", "東京都"], "私は東京都に住む", ["東京都"]),
        (["ไทย"], "ภาษาไทยง่าย", ["ไทย"]),
        # A small letter stands for both, a capital for itself; as it is written takes precedence
        (["haus", "IT", "Essen"], "Das HAUS und it, essen", ["haus"]),
        (["das Haus"], "Das Haus", ["das Haus"]),
        (["haus", "Haus", "HAUS"], "Haus", ["Haus"]),
        # Lower case that is longer than its capital
        (["istanbul", "x"], "İİ x", ["x"]),
    ],
)
def test_terms_are_found(terms, text, found):
    assert sources(terms, text) == found


def test_equal_targets_are_asked_for_once():
    assert Glossary.of({"Auto": "car", "Wagen": "car"}).find("Wagen, Auto") == [Term("Wagen", "car")]
    assert has_words("a car, cars", "car")
    assert not has_words("cars", "car")


def test_a_file_is_read(tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_bytes(b"\xef\xbb\xbfSource\ttarget\r\n# a comment\n\n#tag\t#label\r\nHaus\thome \nHaus\thome\n")
    assert Glossary.read(path).terms == {"#tag": "#label", "Haus": "home"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"Haus\thome\n\nHaus\thouse\n", r"line 3: 'Haus' is 'house', and 'home' in .*line 1"),
        (b"Haus\n", "line 1 has 1 columns"),
        (b"a\tb\tc\n", "line 1 has 3 columns"),
        (b"a\t \n", "line 1: the source or the target is empty"),
        (b"H\xe4user\thouses\n", "line 1 is not valid UTF-8"),
        (b"a\t" + b"b" * 1001, "line 1 has more than 1,000 characters"),
        (b"# nothing\n", "has no terms"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, content, message):
    (tmp_path / "terms.tsv").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Glossary.read(tmp_path / "terms.tsv")


def test_terms_are_in_the_translations_of_their_sentences(translator):
    """A sentence with a term has its target, other sentences and lines are as without a glossary."""
    lines = ["das Haus geht. Der Hund kommt. Du und ich.", "du nicht"]
    plain = translator.translate(lines, note=lambda note: None)
    found = translator.translate(lines, glossary={"Hund": "you dog", "Igel": "x"}, note=lambda note: None)
    assert found[1] == plain[1]
    before, after = plain[0][0].parts, found[0][0].parts
    assert (after[0], after[2]) == (before[0], before[2])
    assert has_words(after[1][1], "you dog")
    assert found[0][0].terms == (Term("Hund", "you dog", True),)
    # A line with a phrase of its own stays whole, and has both
    (both,) = translator.translate(lines[:1], phrases=[["cat"]], glossary={"Hund": "dog"}, note=lambda note: None)
    assert (both[0].parts, has_words(both[0].text, "cat"), both[0].terms[0].found) == ((), True, True)


def test_a_term_without_its_pieces_is_not_found():
    """The tokenizer has no ♯, and would write "you"."""
    tokenizer, term = tiny.tokenizer(byte_fallback=False, vocab_size=50), Term("du", "you♯", True)
    (ids,) = tokenizer.encode_tgt(["you see"])
    line = SourceLine([SourcePart([5], "du", "", terms=(term,))], "")
    ((found,),) = search_parts.as_text(tokenizer, [[search_parts.Joined([ids], -1.0, -1.0)]], [line], spaces=True)
    assert (found.text, found.terms) == ("you see", (term._replace(found=False),))


def test_phrases_of_unspaced_scripts_need_no_space():
    pieces = {"東京": [7, 8], "▁x": [9], " 東": [7, 5]}
    inner = SimpleNamespace(piece_to_id={"▁": 7}.get)
    tokenizer: Any = SimpleNamespace(tgt=inner, encode_tgt=lambda texts: [[*pieces[text], 3] for text in texts])
    assert search_parts._phrase_ids(tokenizer, list(pieces)) == [[8], [9], [5]]


def test_terms_that_cannot_be_placed_are_left_out(translator):
    """They are too long for the translation, or the search fails; the line is translated without them."""
    lines = ["Der Hund kommt."]
    plain = translator.translate(lines, note=lambda note: None)
    long = "house " * 150
    (found,) = translator.translate(lines, glossary={"Hund": long}, note=lambda note: None)
    assert (found[0].text, found[0].terms) == (plain[0][0].text, (Term("Hund", long.strip(), False),))
    # A term that is left out takes no room of those after it
    (found,) = translator.translate(lines, glossary={"Hund": long, "kommt": "you"}, note=lambda note: None)
    assert [term.found for term in found[0].terms] == [False, True]
    search = translator._search
    translator._search = lambda sources, *rest: (
        ([(0, [])] for _ in sources) if sources[0].phrases else search(sources, *rest)
    )
    (found,) = translator.translate(lines, glossary={"Hund": "dog"}, note=lambda note: None)
    assert (found[0].text, found[0].score) == (plain[0][0].text, plain[0][0].score)


def test_targets_that_the_tokenizer_makes_equal_are_required_once(translator, monkeypatch):
    encode, search, asked = translator.tokenizer.encode_tgt, translator._search, []
    monkeypatch.setattr(translator.tokenizer, "encode_tgt", lambda texts: encode([text.lower() for text in texts]))

    def spy(sources, *rest):
        asked.extend(len(source.phrases) for source in sources.values())
        return search(sources, *rest)

    monkeypatch.setattr(translator, "_search", spy)
    terms = {"Hund": "dog", "kommt": "Dog"}
    translator.translate(["Der Hund kommt."], glossary=terms, note=lambda note: None)
    assert max(asked) == 1


def test_a_suppressed_term_leaves_the_others(translator):
    (never,) = translator.tokenizer.tgt.encode("dog", out_type=str)[-1:]
    terms = {"Hund": "dog", "kommt": "you"}
    (found,) = translator.translate(["Der Hund kommt."], glossary=terms, suppress=[never], note=lambda note: None)
    assert found[0].terms == (Term("Hund", "dog", False), Term("kommt", "you", True))


def test_a_glossary_goes_with_a_search_of_one_group(ckpt, tmp_path):
    (tmp_path / "terms.tsv").write_text("Hund\tdog\n")
    loaded = Translator.load(ckpt, device="cpu", glossary=tmp_path / "terms.tsv")
    how = {"note": lambda note: None, "max_len_extra": 5, "max_len_ratio": 0}
    assert loaded.translate(["Hund"], **how)[0][0].terms
    # The translator's own glossary is left out of samples and groups, and of a call with another
    for other in ({"samples": 2}, {"beam_size": 2, "beam_groups": 2}, {"glossary": []}):
        assert not loaded.translate(["Hund"], **other, **how)[0][0].terms
    for wrong in ({"samples": 2}, {"beam_size": 2, "beam_groups": 2}):
        with pytest.raises(ValueError, match="glossar"):
            loaded.translate(["Hund"], glossary={"a": "b"}, **wrong, **how)
    entries: list[Any] = ["ab", ("a",), ("a", 1)]
    for entry in entries:
        with pytest.raises(ValueError, match="glossary has the entry"):
            loaded.translate(["Hund"], glossary=[entry])


@pytest.mark.slow
def test_the_command_counts_terms(ckpt, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("terms.tsv").write_text("Hund\tdog\nKatze\t" + "cat " * 200 + "\n")
    Path("in.de").write_text("der Hund\n\ndie Katze\ndu\n")
    options = ["--ckpt", str(ckpt), "--input", "in.de", "--output", "out", "--glossary", "terms.tsv"]
    assert translate.main([*options, "--format", "json", "--device", "cpu"]) == 0
    first, _, third, last = map(json.loads, Path("out").read_text().splitlines())
    assert first["glossary"] == [{"source": "Hund", "target": "dog", "found": True}]
    assert [term["found"] for term in third["glossary"]] == [False]
    assert "glossary" not in last
    assert re.search(r"glossary: 1 of 2 terms in 2 lines .*'Katze' .*\(line 3\)", capsys.readouterr().err)
    with pytest.raises(SystemExit):
        translate.main([*options, "--samples", "2"])
    # No output replaces the glossary
    assert translate.main([*options[:4], "--output", "terms.tsv", *options[6:]]) == 2


def test_missing_terms_are_named_up_to_a_limit():
    counts = TermCounts()
    for number in range(1, 9):
        counts.add(number, [Term("a", "b"), Term(f"c{number}", "d")])
    assert str(counts).startswith("0 of 16 terms in 8 lines")
    assert "'a' as 'b' (line 1, 2, 3, ...)" in str(counts)
    assert str(counts).count("' as '") == 5


def test_a_request_brings_its_own_glossary(translator):
    limits = ServiceSettings(max_terms=2, max_characters=60)
    served = BatchTranslator(lambda: translator, name="model", make_room=lambda model: None)

    def answered(glossary):
        request = checked(TranslateRequest, {"text": "der Hund", "glossary": glossary})
        texts = texts_of(request, limits)
        options = chosen_options(request, translator.settings, ("de", "en"), limits)
        (answer,) = served(texts, options)
        # The queue knows that terms widen the beam
        assert served.beam(options) == (10 if glossary else 2)
        return answer.model_dump(exclude_none=True).get("glossary")

    assert answered([["Hund", "cat"]]) == [{"source": "Hund", "target": "cat", "found": True}]
    assert answered([]) is None
    for wrong, status in (
        ([["Hund"]], 422),
        ([["Hund", ""]], 422),
        ([["a", "b"], ["a", "c"]], 422),
        ([["a", "b"]] * 3, 413),
        ([["a" * 60, "b"]], 413),
    ):
        with pytest.raises(RefusedError) as refused:
            answered(wrong)
        assert refused.value.status_code == status


def test_a_glossary_is_of_two_languages(translator, monkeypatch):
    translator.glossary = Glossary([("Hund", "cat")])
    (row,) = translator.translate(["der Hund"])
    assert row[0].terms == (Term("Hund", "cat", found=True),)
    monkeypatch.setattr("seq2seq.inference.translator.tags_of", lambda *given: translator.tags)
    (row,) = translator.between("de", "fr").translate(["der Hund"])
    assert row[0].terms == ()


def test_a_stream_has_terms_without_a_command(translator):
    out = io.BytesIO()
    stream = LineStream(translator=translator, format="text", warn=print, options={"glossary": {"Hund": "dog"}})
    stream.run(io.BytesIO(b"der Hund\n"), out)
    assert (stream.terms.terms, has_words(out.getvalue().decode(), "dog")) == (1, True)
