"""Documents: nothing changes but text, and marks follow their words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import tiny

from seq2seq import translate
from seq2seq.inference.documents.formats import FORMATS
from seq2seq.inference.documents.segments import Mark, Segment, replace
from seq2seq.inference.forced_text import Alignment

PAGE = """\ufeff<!DOCTYPE html>\r
<html lang="de"><head><title>Tee &amp; Kuchen</title><script>if (a<b) "</p>"; x = "<p>nein</p>";</script></head><body>
<!-- ein Kommentar --><h1 title='Ein "Titel"'>Guten Tag</h1>
<p>Das <b>rote <i>Haus</i></b> ist <a href="x?a&b" title="Link">sehr alt</a>, sagt <code>make x</code>.</p>
<ul><li>Eins<ol><li><b><a href=q>Zwei</a></b></li></ol></li></ul><table><tr><td>Zelle<td>Noch eine</table>
<pre>nicht <b>das</b></pre><p>Siehe https://x.org/a?b=c. Und x &lt; y &#128512;<br>neu <img alt="Ein Bild" src=q> da</p>
<p dir=rtl>شكرا <b>جزيلا</b><!-- c --> هنا</p><div translate="no">nein <div>nein</div></div>
<p><b>offen</p><p>zu</b> Ende</p> 1234 <p>  </p>&nbsp;</body></html>\r
"""


def stub(words, seen: list[str] | None = None):
    """Translate each text by a function of its words, which are aligned by equality, whatever their case."""

    def translated(texts: Sequence[str], marked: Sequence[bool]):
        found = []
        for text in texts:
            old = text.split()
            new = words(old)
            folded = [word.lower() for word in new]
            links = [(i, folded.index(word.lower())) for i, word in enumerate(old) if word.lower() in folded]
            found.append((" ".join(new), Alignment(old, new, links, [])))
        if seen is not None:
            seen.extend(texts)
        return found

    return translated


def same(texts: Sequence[str], marked: Sequence[bool]):
    return [(text, None) for text in texts]


def upper(words):
    return [word.upper() for word in words]


def reverse(words):
    return [word.upper() for word in reversed(words)]


@pytest.mark.parametrize(("suffix", "content"), [(".html", PAGE)])
def test_a_document_whose_texts_stay_is_the_same(suffix, content):
    assert FORMATS[suffix](content, same, "de") == content


def test_a_page_has_these_texts():
    seen: list[str] = []
    found = FORMATS[".html"](PAGE, stub(upper, seen), "en-GB")
    assert [each for each in seen if each] == [
        'Ein "Titel"', "Link", "Ein Bild", "Tee & Kuchen", "Guten Tag", "Das rote Haus ist sehr alt, sagt.", "Eins",
        "Zwei", "Zelle", "Noch eine", "Siehe. Und x < y 😀", "neu da", "شكرا جزيلا هنا", "offen", "zu Ende",
    ]  # fmt: skip
    assert '<html lang="en-GB">' in found
    assert "<title>TEE &amp; KUCHEN</title>" in found
    assert (
        '<p>DAS <b>ROTE <i>HAUS</i></b> IST <a href="x?a&b" title="LINK">SEHR ALT</a>, SAGT <code>make x</code>.<'
        in found
    )
    assert '<p>SIEHE https://x.org/a?b=c. UND X &lt; Y 😀<br>NEU <img alt="EIN BILD" src=q> DA</p>' in found
    for kept in ('x = "<p>nein</p>"', "nicht <b>das</b>", "<div>nein</div>", "<!-- ein Kommentar -->", "<b>جزيلا</b>"):
        assert kept in found


def test_marks_follow_their_words():
    found = FORMATS[".html"]("<p>Das <b>rote <i>Haus</i></b> ist <a href=x>hier</a></p>", stub(reverse), "")
    assert found == "<p><a href=x>HIER</a> IST <b><i>HAUS</i> ROTE</b> DAS</p>"


@pytest.mark.parametrize(
    ("page", "words", "wanted"),
    [
        # Words of a mark that are torn apart: from the first to the last
        ("<b>a b</b> c", ["a", "c", "b"], "<b>a c b</b>"),
        # Marks that would cross
        ("<b>a b</b> <i>c d</i>", ["a", "c", "b", "d"], "<b>a <i>c b</i></b> d"),
        # A word without a link
        ("a <b>b</b> c", ["a", "c", "x"], "a <b></b>c x"),
        ("<b>Note:</b> a b", ["a", "note:", "b"], "a <b>note:</b> b"),
        ("a <code>x</code> b", ["b", "a", "c"], "b a <code>x</code> c"),
        ("a <code>x</code>", ["b", "a", "c"], "b a c <code>x</code>"),
        ("<code>x</code> a", ["b", "a"], "<code>x</code> b a"),
        ("a <img src=x>b", ["b", "a"], "b a<img src=x>"),
        ("<b>a</b> b: <code>x</code> c", ["c", "b:", "a"], "c b: <code>x</code> <b>a</b>"),
    ],
)
def test_marks_stay_nested(page, words, wanted):
    assert FORMATS[".html"](page, stub(lambda _: words), "") == wanted


def test_without_an_alignment_a_mark_stays_at_its_place():
    segment = Segment(0, 9, "a b", [Mark(2, 3, "<", ">")])
    assert replace("a <b>b</b>"[:9], [segment], lambda *_: [("x y", None)]) == "x <y>"


@pytest.mark.parametrize(
    "content",
    [
        "<!--" * 50_000,
        "<p " * 50_000,
        '<a x="' * 50_000,
        "<b>" * 2000,
        "&a;" * 50_000,
        "<script>" * 50_000,
        "<" * 200_000,
    ],
)
def test_hostile_pages_stay_as_they_are(content):
    """Each takes linear time; entities that a document declares are not known."""
    assert FORMATS[".html"](content, same, "") == content


@pytest.mark.slow
@pytest.mark.parametrize("content", ["<b>a" * 50_000, "<i>a</i> " * 50_000, "&a;" * 50_000, "a@" * 50_000])
def test_hostile_pages_are_translated_in_linear_time(content):
    """Without it, each takes minutes or all memory."""
    assert "A" in FORMATS[".html"](content, stub(reverse), "")


@pytest.mark.slow
def test_the_command_translates_a_document(tmp_path: Path, capsys, monkeypatch):
    ckpt = tiny.save(tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("in.html").write_bytes(b'<html lang="de"><p>der <b>Hund</b></p><pre>du</pre>\r\n')
    Path("terms.tsv").write_text("Hund\tdog\n")
    common = ["--ckpt", str(ckpt), "--device", "cpu", "--max-len-ratio", "1", "--max-len-extra", "8"]
    options = [*common, "--glossary", "terms.tsv", "--document"]
    assert translate.main([*options, "in.html", "--output", "out.html"]) == 0
    written = Path("out.html").read_bytes().decode()
    assert written.startswith('<html lang="en"><p>')
    assert written.endswith("</p><pre>du</pre>\r\n")
    assert all(part in written for part in ("dog", "<b>", "</b>"))
    assert "glossary: 1 of 1 terms" in capsys.readouterr().err
    Path("in.docx").write_bytes(b"")
    Path("latin.html").write_bytes(b"<p>\xe4")
    for name, out in (("in.docx", "x"), ("latin.html", "x"), ("in.html", "in.html"), ("in.html", str(ckpt))):
        assert translate.main([*options, name, "--output", out]) == 2
    for wrong in ([], ["--output", "x", "--n-best", "2"]):
        with pytest.raises(SystemExit):
            translate.main([*options, "in.html", *wrong])
