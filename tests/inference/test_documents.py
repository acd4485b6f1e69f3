"""Documents: nothing changes but text, and marks follow their words."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
import tiny

from seq2seq import checkpoint, translate
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

CUES = """\ufeff1\r
00:00:01,000 --> 00:00:02,000\r
<i>Guten Morgen,</i>\r
liebe Leute hier\r
\r
2\r
00:00:03,000 --> 00:00:04,000\r
{\\an8}- Ja?\r
- <i>Nein</i>\r
"""
WEB = "WEBVTT\n\nNOTE nicht das\n\n00:01.000 --> 00:02.000 align:left\n<v Fred>Tee &amp; <c.x>Kuchen</c>\n\n"


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


def converted(suffix: str, content: str, translate, language: str = "") -> str:
    return FORMATS[suffix](content.encode(), translate, language).decode()


def same(texts: Sequence[str], marked: Sequence[bool]):
    return [(text, None) for text in texts]


def upper(words):
    return [word.upper() for word in words]


def reverse(words):
    return [word.upper() for word in reversed(words)]


@pytest.mark.parametrize(("suffix", "content"), [(".html", PAGE), (".srt", CUES), (".vtt", WEB)])
def test_a_document_whose_texts_stay_is_the_same(suffix, content):
    assert converted(suffix, content, same, "de") == content


def test_a_page_has_these_texts():
    seen: list[str] = []
    found = converted(".html", PAGE, stub(upper, seen), "en-GB")
    assert seen == [
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


def test_an_untranslated_element_without_an_end_ends_there():
    found = converted(".html", '<p>eins</p><input translate="no"><p>zwei</p>', stub(upper))
    assert found == '<p>EINS</p><input translate="no"><p>ZWEI</p>'


@pytest.mark.parametrize(
    ("page", "wanted"),
    [
        ("<p>a <code>b<p>c <code>d</code> e", "<p>A <code>b<p>C <code>d</code> E"),
        ("<div>a <span translate=no>b</div>c", "<div>A <span translate=no>b</div>C"),
        ("<code>a<div>b</div></code>c", "<code>a<div>b</div></code>C"),
        ("<ul><li translate=no>a<br/>b<li>c</ul><p>d", "<ul><li translate=no>a<br/>b<li>C</ul><p>D"),
        ("<ul><li translate=no>a<ul><li>b<li>c</ul>d</ul>e", "<ul><li translate=no>a<ul><li>b<li>c</ul>d</ul>E"),
        ("<table><tr><td translate=no>a<tr><td>b<td translate=no>c</table>d"
         , "<table><tr><td translate=no>a<tr><td>B<td translate=no>c</table>D"),
        ("<p translate=no>a<script>b</script>c<h2>d</h2>", "<p translate=no>a<script>b</script>c<h2>D</h2>"),
    ],
)  # fmt: skip
def test_an_untranslated_element_may_leave_out_its_end_tag(page, wanted):
    assert converted(".html", page, stub(upper)) == wanted


@pytest.mark.parametrize(
    ("suffix", "content", "text"),
    [
        (".html", "10 m<sup>2</sup> und CO<sub>2</sub>-frei", "10 m und CO-frei"),
        (".html", "<a>Berlin</a><sup><a href=x>[1]</a></sup>, hier", "Berlin, hier"),
        (".html", "<sup>1</sup>Siehe dort", "Siehe dort"),
        (".html", "der 1<sup>er</sup> und H<sub>2</sub>O und m<sup>2 </sup>da", "der 1er und H2O und m2 da"),
        (".md", "10 m<sup>2</sup> und H<sub>2</sub>O", "10 m und H2O"),
    ],
)
def test_raised_signs_at_the_end_of_a_word_are_codes(suffix, content, text):
    seen: list[str] = []
    assert converted(suffix, content, same) == content
    converted(suffix, content, stub(upper, seen))
    assert seen == [text]


def test_raised_signs_stay_behind_their_word():
    page = '<p><a>Berlin</a><sup><a href=x title="Ein Titel">1</a></sup>, zwei m<sup>2</sup>'
    wanted = page.replace("Berlin", "BERLIN").replace("zwei m", "ZWEI M").replace("Ein Titel", "EIN TITEL")
    assert converted(".html", page, stub(upper)) == wanted


@pytest.mark.parametrize(
    ("suffix", "content", "declared"),
    [
        (".html", "<meta charset=latin1><p>ä", "latin1"),
        (".html", '<META http-equiv=Content-Type content="text/html; charset=iso-8859-1"><p>&auml;', "iso-8859-1"),
        (".xlf", "<?xml version='1.0' encoding='US-ASCII'?><xliff><segment><source>a</source></segment></xliff>"
         , "US-ASCII"),
    ],
)  # fmt: skip
def test_another_encoding_that_a_file_declares_becomes_utf_8(suffix, content, declared):
    found = converted(suffix, content, lambda texts, _: [("ÄÖ", None)] * len(texts), "de")
    assert declared not in found
    assert "UTF-8" in found
    plain = converted(suffix, content.replace("ä", "a"), lambda texts, _: [("b", None)] * len(texts), "de")
    assert declared in plain


def test_attributes_are_texts():
    page = (
        '<textarea placeholder="a&shy;b"><b title="c">d</b></textarea><img alt="e &quot;f&quot; https://x.y/?a&amp;b">'
    )
    wanted = page.replace("a&shy;b", "AB").replace('"e &quot;f', '"E &quot;F')
    assert converted(".html", page, stub(upper)) == wanted
    assert converted(".html", page, same) == page
    page = '<img translate=no alt="a">'
    assert converted(".html", page, stub(upper)) == page


@pytest.mark.parametrize(
    ("page", "text", "wanted"),
    [
        ("看 https://x.org/a查看。", "看 查看。", "SEE https://x.org/a FOR IT."),
        ("看https://x.org/a，查看。", "看，查看。", "SEE https://x.org/a FOR IT."),
        ("看a.b@x.org查看", "看查看", "SEE a.b@x.org FOR IT."),
        ("봐 https://x.org/wiki/Größe에서", "봐 에서", "SEE https://x.org/wiki/Größe FOR IT."),
        ("看https://x.org/\u3000a", "看 a", "SEE https://x.org/ FOR IT."),
    ],
)
def test_an_address_ends_where_letters_of_unspaced_scripts_begin(page, text, wanted):
    seen: list[str] = []

    def translated(texts: Sequence[str], marked: Sequence[bool]):
        seen.extend(texts)
        return [("SEE FOR IT.", Alignment([text[:1]], ["SEE"], [(0, 0)], [])) for _ in texts]

    assert converted(".html", page, translated) == wanted
    assert [" ".join(each.split()) for each in seen] == [text]


def test_marks_are_around_characters_of_unspaced_scripts_and_whole_words_of_others():
    def translated(texts: Sequence[str], marked: Sequence[bool]):
        links = [(0, 0), (1, 1), (2, 2)]
        return [("मुझे हिन्दी पसंद", Alignment(["我", "喜欢", "印地语"], ["मुझे", "हिन्दी", "पसंद"], links, [])) for _ in texts]

    assert converted(".html", "我<b>喜欢</b>印地语", translated) == "मुझे <b>हिन्दी</b> पसंद"


def test_words_in_another_unicode_form_are_placed_as_without_an_alignment():
    def translated(texts: Sequence[str], marked: Sequence[bool]):
        return [("I am here", Alignment(["(", "ﬁ"], ["I", "am", "here"], [(0, 0), (0, 1), (0, 2)], [])) for _ in texts]

    assert converted(".html", "我<b>在</b>这", translated) == "I <b>am</b> here"


def test_marks_follow_their_words():
    found = converted(".html", "<p>Das <b>rote <i>Haus</i></b> ist <a href=x>hier</a></p>", stub(reverse), "")
    assert found == "<p><a href=x>HIER</a> IST <b><i>HAUS</i> ROTE</b> DAS</p>"


@pytest.mark.parametrize(
    ("page", "words", "wanted"),
    [
        # Words of a mark that are torn apart: from the first to the last
        ("<b>a b</b> c", ["a", "c", "b"], "<b>a c b</b>"),
        # Marks that would cross
        ("<b>a b</b> <i>c d</i>", ["a", "c", "b", "d"], "<b>a</b> <i>c b d</i>"),
        ("<b>a b</b> <i>c</i> <u>d</u>", ["a", "c", "d", "b"], "<b>a</b> <i>c</i> <u>d</u> b"),
        ("<b>a</b> <i>b</i> <u>c</u> d", ["x"], "<b></b><i></i><u>x</u>"),
        # A word without a link
        ("a <b>b</b> c", ["a", "c", "x"], "a <b>c</b> x"),
        ("a <b>b</b>", ["a"], "<b>a</b>"),
        # Marks without text
        ("a <b><code>x</code></b> b", ["a", "b"], "a <b><code>x</code></b> b"),
        ("<b><i><img src=x></i></b> a <u><wbr> </u>b", ["b", "a"], "<b><i><img src=x></i></b> b a <u><wbr> </u>"),
        ('a <a href="mailto:x@y.de">x@y.de</a> b', ["b", "a"], 'b a <a href="mailto:x@y.de">x@y.de</a>'),
        ("a <code>x</code> b", ["c", "b"], " <code>x</code> c b"),
        ("a <b><code>x</code> b</b> c", ["a", "b", "c"], "a <b><code>x</code> b</b> c"),
        ("<b><code>x</code>a</b> c", ["c", "a"], "c <b><code>x</code>a</b>"),
        ("<b>Note:</b> a b", ["a", "note:", "b"], "a <b>note:</b> b"),
        ("a <code>x</code> b", ["b", "a", "c"], "b a <code>x</code> c"),
        ("a <code>x</code>", ["b", "a", "c"], "b a c <code>x</code>"),
        ("<code>x</code> a", ["b", "a"], "<code>x</code> b a"),
        ("a <img src=x>b", ["b", "a"], "b a <img src=x>"),
        ("a <img src=x>b", ["a", "b"], "a <img src=x>b"),
        ("<b><i>a</i>   </b><img>b c", ["a", "b", "d"], "<b><i>a</i></b>   <img>b d"),
        ("<b>a</b> b: <code>x</code> c", ["c", "b:", "a"], "c b: <code>x</code> <b>a</b>"),
        ("a <b>b (<code>x</code>)</b>", ["a", "b", "()"], "a <b>b (<code>x</code>)</b>"),
        # Within a word that the translation has, too
        ("H<sub>2</sub>O a", ["a", "H2O"], "a H<sub>2</sub>O"),
        ("H<sub>2</sub>O a H<sub>2</sub>O", ["H2O", "H2O", "a"], "H<sub>2</sub>O H<sub>2</sub>O a"),
        ("<i>H<u>2</u></i>O a x<b>y<i>z</i></b>", ["a", "xyz", "H2O"], "a x<b>y<i>z</i></b> <i>H<u>2</u></i>O"),
        ("a<wbr>b c", ["c", "ab"], "c a<wbr>b"),
        ("x<b>y</b>z a", ["c", "a"], "<b>c</b> a"),
        ("<b>a!!</b> b <i>(c ...</i> d", ["a!!", "b", "(c", "...", "d"], "<b>a!!</b> b <i>(c ...</i> d"),
    ],
)
def test_marks_stay_nested(page, words, wanted):
    assert converted(".html", page, stub(lambda _: words), "") == wanted


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("eins zwei<b> </b>", "eins zwei"),
        ("eins<u> </u><img>zwei", "eins zwei"),
        ("eins<b> </b>(zwei)", "eins (zwei)"),
        ("eins <img><img>zwei", "eins zwei"),
        ("eins<a href=x> <img src=y></a>", "eins"),
        ("<b>eins<a href=x>\n<img src=y>\n</a></b> zwei", "eins zwei"),
        ("eins <i> <b> <code>x</code> </b> </i>", "eins"),
    ],
)
def test_marks_of_spaces_alone_are_codes(page, text):
    seen: list[str] = []
    found = converted(".html", page, stub(upper, seen))
    assert seen == [text]
    assert found == page.replace("eins", "EINS").replace("zwei", "ZWEI")


def test_without_an_alignment_a_mark_stays_at_its_place():
    segment = Segment(0, 9, "a b", [Mark(2, 3, "<", ">")])
    assert replace("a <b>b</b>"[:9], [segment], lambda *_: [("x y", None)]) == "x <y>"


def test_cues_keep_times_and_lines():
    assert converted(".srt", CUES, stub(upper)) == CUES.replace("Guten Morgen", "GUTEN MORGEN").replace(
        "liebe Leute hier", "LIEBE LEUTE HIER"
    ).replace("Ja?", "JA?").replace("Nein", "NEIN")
    even = converted(".srt", CUES, stub(lambda old: ["aa", "bb", "cc", "dd", "ee", "ff"]))
    assert "\r\n<i>aa</i> bb cc\r\ndd ee ff\r\n" in even
    assert "{\\an8}" in even
    assert converted(".vtt", WEB, stub(upper)) == WEB.replace("Tee", "TEE").replace("Kuchen", "KUCHEN")


def test_a_speakers_dash_is_not_given_to_the_model():
    content = "1\n00:00:01,000 --> 00:00:02,000\n- Guten Tag.\n- {\\an8}Was?\n\u2013Nein.\n"
    seen: list[str] = []
    expected = content.replace("Guten Tag", "GUTEN TAG").replace("Was", "WAS").replace("Nein", "NEIN")
    assert converted(".srt", content, stub(upper, seen)) == expected
    assert [text.strip() for text in seen] == ["Guten Tag.", "Was?", "Nein."]


def test_lines_of_webvtt_with_voices_are_texts_of_their_own():
    content = "WEBVTT\n\n00:01.000 --> 00:02.000\n<v Fred>Hallo du,\nGuter</v>\n<v.loud Bob>Ja\n"
    seen: list[str] = []
    found = converted(".vtt", content, stub(upper, seen))
    assert seen == ["Hallo du, Guter", "Ja"]
    assert found == content.replace("Hallo du,\nGuter", "HALLO DU,\nGUTER").replace("Ja", "JA")


def test_voices_on_one_line_of_webvtt_are_texts_of_their_own():
    content = "WEBVTT\n\n00:01.000 --> 00:02.000\nEins\n <v Fred>Hallo &amp; du</v> <v.loud Bob>Ja</v>\nNein\n"
    seen: list[str] = []
    found = converted(".vtt", content, stub(reverse, seen))
    assert seen == ["Eins", "Hallo & du", "Ja Nein"]
    wanted = content.replace("Eins", "EINS").replace("Hallo &amp; du", "DU &amp; HALLO")
    assert found == wanted.replace("<v.loud Bob>Ja</v>\nNein", "NEIN\n<v.loud Bob>JA</v>")


def test_a_cue_of_subrip_may_have_empty_lines():
    content = "1\n00:00:01,000 --> 00:00:02,000\n<i>- eins</i>\n\nzwei\n3\n\n2\n00:00:03,000 --> 00:00:04,000\ndrei\n"
    seen: list[str] = []
    found = converted(".srt", content, stub(upper, seen))
    assert seen == ["eins", "zwei 3", "drei"]
    assert found == content.replace("eins", "EINS").replace("zwei", "ZWEI").replace("drei", "DREI")


OLD = """<?xml version="1.0"?>\r
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file original="a" source-language="de"><body>
  <trans-unit id="1">
    <source> Das <g id="1">rote <x id="2"/>Haus</g> &amp; <ph id="3">&lt;br&gt;</ph> mehr. </source>
  </trans-unit>
  <trans-unit id="2"><source>Eins</source><target state="final">da</target></trans-unit>
  <trans-unit id="3"><source>Zwei</source><target state='new' x="y"/>
  <alt-trans><source>z</source></alt-trans></trans-unit>
  <trans-unit id="4" translate="no"><source>Nein</source></trans-unit>
  <trans-unit id="5"><source>12</source></trans-unit>
  <trans-unit id="6"><source>Ja. Nein.</source><seg-source><mrk mtype="seg" mid="0">Ja hier.</mrk> <mrk mtype="seg"
    mid="1">Nein <mrk mtype="protected">XY</mrk> da.</mrk></seg-source></trans-unit>
</body></file></xliff>
"""
NEW = """\ufeff<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="de"
  trgLang="en-GB"><file id="f"><unit id="u">
<segment id="1" state="initial"><source>Das <pc id="1">rote</pc> Haus <ph id="2"/></source></segment>
<ignorable><source> </source></ignorable><segment><source>Da</source><target></target></segment>
<segment state="final"><source>Da</source><target>A</target></segment></unit></file></xliff>"""


def test_xliff_1_gets_its_targets():
    review = ' state="needs-review-translation" state-qualifier="mt-suggestion"'
    wanted = OLD.replace('"de">', '"de" target-language="en">')
    for before, after in [
        (" mehr. </source>", " mehr. </source>\n    <target@> DAS <g id=\"1\">ROTE <x id=\"2\"/>HAUS</g> &amp;"
         ' <ph id="3">&lt;br&gt;</ph> MEHR. </target>'),
        ("<target state='new' x=\"y\"/>", '<target x="y"@>ZWEI</target>'),
        (">12</source>", ">12</source><target@>12</target>"),
        ("</seg-source>", '</seg-source><target@><mrk mtype="seg" mid="0">JA HIER.</mrk> <mrk mtype="seg"\n    mid="1">'
         'NEIN <mrk mtype="protected">XY</mrk> DA.</mrk></target>'),
    ]:  # fmt: skip
        wanted = wanted.replace(before, after.replace("@", review))
    found = converted(".xlf", OLD, stub(upper), "en")
    assert found == wanted
    assert converted(".xlf", found, stub(upper), "en") == found


def test_a_target_of_empty_segments_is_filled():
    unit = "<source>a b</source><seg-source>{0}</seg-source><target>{1}</target>"
    empty, full, new = (f'<mrk mtype="seg" mid="0">{text}</mrk>' for text in ("", "a b", "A B"))
    content = f'<xliff version="1.2"><file><trans-unit>{unit.format(full, empty)}</trans-unit></file></xliff>'
    assert f">{new}</target>" in converted(".xlf", content, stub(upper), "en")
    content = content.replace(empty, new.lower())
    assert f"<target>{new.lower()}</target>" in converted(".xlf", content, stub(upper), "en")


def test_xliff_2_gets_its_targets():
    seen: list[str] = []
    found = converted(".xliff", NEW, stub(upper, seen), "en")
    # A blank text would end a document
    assert all(seen)
    assert found == NEW.replace('state="initial">', 'state="translated">').replace(
        "</source></segment>",
        '</source><target>DAS <pc id="1">ROTE</pc> HAUS <ph id="2"/></target></segment>', 1,
    ).replace("<segment><source>Da</source><target></target>",
              '<segment state="translated"><source>Da</source><target>DA</target>')  # fmt: skip
    copied = converted(".xliff", NEW, same, "en")
    assert '<target>Das <pc id="1">rote</pc> Haus <ph id="2"/></target>' in copied


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (NEW.replace("en-GB", "fra"), "trgLang is fra"),
        (NEW.replace("</unit>", ""), "not XML"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><xliff>&a;</xliff>', "entity 'a'"),
    ],
)
def test_wrong_xliff_is_refused(content, message):
    with pytest.raises(ValueError, match=message):
        converted(".xlf", content, same, "en")


def test_sections_of_characters_become_text():
    found = converted(
        ".xlf", "<xliff><segment><source><![CDATA[a & <b>]]></source></segment></xliff>", stub(upper), "en"
    )
    assert "<target>A &amp; &lt;B&gt;</target>" in found


TEXT = """---
title: Nicht das
---
# Guten *Tag* #

Das ist **fett mit [ein Link](http://x.y/(z) "Titel") hier** und
  `code x` sowie snake_case, 2 * 3, AT&amp;T und \\*kein Mark\\*.  \nNeu: <b>HTML</b> und https://a.b/c?d=e.

> Zitat
> geht [Foo] weiter und [text][Foo].
> - [ ] Aufgabe *hier*
>   1. innen __tief__

| Kopf a | Kopf \\| b |
|--------|:---:|
| *Zelle* | **zwei [a](b)** |

```python
nicht = "das"
```

<div>
nicht
</div>

Setext
======
שלום **עולם** 😀 ok ![Bild](x.png) ende[^1]

[Foo]: http://x.y
"""


@pytest.mark.parametrize("content", [TEXT, TEXT.replace("\n", "\r\n"), f"\ufeff{TEXT}"])
def test_markdown_whose_texts_stay_is_the_same(content):
    assert converted(".md", content, same) == content


def test_markdown_has_these_texts():
    wanted = TEXT
    for before, after in [
        ("Guten *Tag*", "GUTEN *TAG*"),
        ("Das ist **fett mit [ein Link]", "DAS IST **FETT MIT [EIN LINK]"),
        ("hier** und\n  `code x` sowie snake_case, 2 * 3, AT&amp;T und \\*kein Mark",
         "HIER** UND `code x` SOWIE SNAKE_CASE, 2 \\* 3, AT&T UND \\*KEIN MARK"),
        ("Neu: <b>HTML</b> und", "NEU: <b>HTML</b> UND"),
        ("Zitat\n> geht [Foo] weiter und [text]", "ZITAT GEHT [FOO][Foo] WEITER UND [TEXT]"),
        ("Aufgabe *hier*", "AUFGABE *HIER*"), ("innen __tief__", "INNEN __TIEF__"), ("Kopf a", "KOPF A"),
        ("Kopf \\| b", "KOPF \\| B"), ("*Zelle*", "*ZELLE*"), ("zwei [a]", "ZWEI [A]"), ("Setext", "SETEXT"),
        ("ok ", "OK "), ("ende", "ENDE"),
    ]:  # fmt: skip
        assert before in wanted
        wanted = wanted.replace(before, after, 1)
    assert converted(".md", TEXT, stub(upper)) == wanted


def test_links_of_markdown_follow_their_words():
    found = converted(".md", "# Das **rote _Haus_** ist [hier](x)", stub(reverse))
    assert found == "# [HIER](x) IST **_HAUS_ ROTE** DAS"
    assert converted(".md", "Eins", stub(lambda _: ["1.", "a_", "b"])) == "1\\. a\\_ b"


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("Siehe [`foo`](x.md).", "SIEHE [`foo`](x.md)."),
        ("Siehe **`foo`** und [![Hund](a.png)](b.md) da", "SIEHE **`foo`** UND [![Hund](a.png)](b.md) DA"),
        ("Siehe **`foo` hier** oder *[`a` b](c)* da", "SIEHE **`foo` HIER** ODER *[`a` B](c)* DA"),
        ("Bitte an <ich@x.org> hier.", "BITTE AN <ich@x.org> HIER."),
        ("Das <IMG src=a.png> Haus", "DAS <IMG src=a.png> HAUS"),
        ("[^1]: Es regnet.\n[^b]: Mehr *davon*.", "[^1]: ES REGNET.\n[^b]: MEHR *DAVON*."),
        ("Wir lesen. <br/>Es regnet.", "WIR LESEN. <br/>ES REGNET."),
        ("| a b<br>c |\n|---|\n| d |", "| A B<br>C |\n|---|\n| D |"),
        ("\\* Preise\\* da \\[x\\]", "\\* PREISE\\* DA \\[X\\]"),
        ("_[Link](x)_, _**fett**_ und _`a`_", "_[LINK](x)_, _**FETT**_ UND _`a`_"),
        ('Das ist _"ein Zitat"_ hier', 'DAS IST _"EIN ZITAT"_ HIER'),
        ("*Das **ist***, ***so***", "*DAS **IST***, ***SO***"),
        ("+++\na = 1\n+++\n\nb", "+++\na = 1\n+++\n\nB"),
        ("> [!NOTE]\n> a b\n\n> [!TIP]\n>\n> c", "> [!NOTE]\n> A B\n\n> [!TIP]\n>\n> C"),
        ('!!! note "Titel"\n    a\n\n??? tip\n    b', '!!! note "Titel"\n    A\n\n??? tip\n    B'),
        (
            "[^1]: Eins da\n\n    Zwei\n    *da*\n\n        c\n\n    Drei\nd\n\n    e",
            "[^1]: EINS DA\n\n    ZWEI *DA*\n\n        c\n\n    DREI D\n\n    e",
        ),
        (
            "!!! note\n\n    a\n\n\tb\n\n```\n[^1]: c\n```\n\n    d",
            "!!! note\n\n    A\n\n\tB\n\n```\n[^1]: c\n```\n\n    d",
        ),
        ("```\n!!! note\n    ```\nc\n```\n\nd\n", "```\n!!! note\n    ```\nc\n```\n\nD\n"),
        ("::: warning\na\n:::\n::: tip\nb\n:::\n", "::: warning\nA\n:::\n::: tip\nB\n:::\n"),
        ("::: warning\n\na\n\n:::\n", "::: warning\n\nA\n\n:::\n"),
        ("Begriff\n:   was es ist", "BEGRIFF\n:   WAS ES IST"),
        ("Schreibe &amp;copy; und &copy; 5", "SCHREIBE \\&COPY; UND © 5"),
    ],
)
def test_markdown_keeps_what_its_marks_hold(content, wanted):
    seen: list[str] = []
    assert converted(".md", content, stub(upper, seen)) == wanted
    assert not any(" ".join(text.split()) != text.strip() for text in seen)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("Es sind 2*3 und *b und c_ und ~~ hier", "Es sind 2*3 und *b und c_ und ~~ hier"),
        ("Alle Nutzer*innen hier", "Alle Nutzer*innen hier"),
        ("Ein *[Link*](x) da*", "Ein Link* da"),
        ("Das *ist **so*", "Das *ist *so"),
        ("Das *ist _so* hier_", "Das ist _so hier_"),
        ("Siehe https://x.org/a_b_ hier", "Siehe hier"),
        ("[a *b] c* d", "a b c d"),
        ('a**"b"**c', 'a**"b"**c'),
    ],
)
def test_delimiters_of_markdown_without_a_partner_are_text(content, text):
    seen: list[str] = []
    assert converted(".md", content, same) == content
    converted(".md", content, stub(upper, seen))
    assert seen == [text]


@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [
        *(each * 10**4 for each in ("a*", "*a _b c_ ", "*a* ", "[*a](x)", "a\n:::\n", "*[a", "**a *b* c** ")),
        "[" * 10**5,
        "[a" * 10**5,
        "a] " * 10**5,
        "*a " * 10**5,
        "`a" * 10**5,
        "a" + " " * 10**5 + "a",
        "> " * 10**5,
    ],
)
def test_hostile_markdown_takes_linear_time(content):
    assert converted(".md", content, same) == content


RAISED = '<w:rPr><w:vertAlign w:val="superscript"/></w:rPr>'
BOLD = "<w:rPr><w:b/></w:rPr>"


def word(body: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        # The time is not a part of it
        archive.writestr(
            zipfile.ZipInfo("word/document.xml"),
            f'<?xml version="1.0"?>\r\n<w:document xmlns:w="w">{body}</w:document>',
        )
        archive.writestr(zipfile.ZipInfo("word/media/image.png"), b"\x89")
    return file.getvalue()


def run(text: str, style: str = "", name: str = "w:t") -> str:
    return f"<w:r>{style}<{name}>{text}</{name}></w:r>"


def in_word(body: str, translate) -> str:
    """Return the translated body; what we write is reduced to what `run` writes."""
    with zipfile.ZipFile(io.BytesIO(FORMATS[".docx"](word(body), translate, ""))) as archive:
        assert archive.read("word/media/image.png") == b"\x89"
        written = archive.read("word/document.xml").decode().split('xmlns:w="w">')[1]
    return written.removesuffix("</w:document>").replace(' xml:space="preserve"', "").replace("<w:rPr/>", "")


def field(kind: str) -> str:
    return f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>'


LINK = field("begin") + run("HYPERLINK x", name="w:instrText") + field("separate")


def shown(body: str) -> str:
    """Return the texts of well-formed runs, and a bar for each break."""
    runs = ElementTree.fromstring(body.replace("<w:p>", '<w:p xmlns:w="w">', 1)).iterfind("{w}r")
    return "".join(
        (each.text or "") if each.tag == "{w}t" else "|"
        for run in runs
        for each in run
        if each.tag[3:] in ("t", "tab", "br", "cr")
    )


BOX = "<w:r><w:pict><w:txbxContent><w:p>{}</w:p></w:txbxContent></w:pict></w:r>"


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (run("Das ") + run("ro", BOLD) + run("te Haus", BOLD) + run(" war &amp; ist &#128512; schön.")
         , run("schön. 😀 ist &amp; war ") + run("Haus rote", BOLD) + run(" Das")),
        (f'<w:hyperlink w:id="1">{run("den Link", BOLD)}</w:hyperlink>{run(" hier ist es")}'
         , run("es ist hier ") + f'<w:hyperlink w:id="1">{run("Link den", BOLD)}</w:hyperlink>'),
        (run("Siehe ") + LINK + run("da") + field("end") + run(" nun")
         , run("nun ") + LINK + run("da") + field("end") + run(" Siehe")),
        (run("  eins zwei ") + BOX.format(run("drei vier")), run("  zwei eins") + run(" ")
         + BOX.format(run("vier drei"))),
        ("<w:pPr/>" + run("alt ") + f"<w:del>{run('weg', name='w:delText')}</w:del>" + run("neu")
         , "<w:pPr/>" + run("neu alt") + run(" ") + f"<w:del>{run('weg', name='w:delText')}</w:del>"),
        (f"{run('Name: ')}<w:sdt><w:sdtPr/><w:sdtContent>{run('ein Feld')}</w:sdtContent></w:sdt>"
         , f"<w:sdt><w:sdtPr/><w:sdtContent>{run('Feld ein')}</w:sdtContent></w:sdt>{run(' Name:')}"),
        (f"<w:sdt><w:sdtPr/></w:sdt><w:sdt><w:sdtContent/></w:sdt>{run('eins zwei')}"
         , f"<w:sdt><w:sdtPr/></w:sdt><w:sdt><w:sdtContent/></w:sdt>{run('zwei eins')}"),
        (f"{run('A')}<w:bookmarkStart/>{run('bc def')}", f"{run('def A')}<w:bookmarkStart/>{run('bc')}"),
        (f'<w:dir w:val="rtl"><w:customXml><w:customXmlPr/>{run("eins")}</w:customXml>{run(" zwei")}</w:dir>'
         , f'<w:dir w:val="rtl">{run("zwei ")}<w:customXml><w:customXmlPr/>{run("eins")}</w:customXml></w:dir>'),
        (run("zwei m") + run("2 ", RAISED) + run("da") + run("[1]", RAISED)
         , run("da m") + run("2", RAISED) + run(" zwei") + run("[1]", RAISED)),
        (run("eins H") + run("2", RAISED) + run("O"), run("H") + run("2", RAISED) + run("O eins")),
        ("<w:r><w:t>E-</w:t><w:noBreakHyphen/><w:t>Mail En</w:t></w:r><w:r><w:softHyphen/><w:t>de</w:t></w:r>"
         , run("Ende E--Mail")),
    ],
)  # fmt: skip
def test_runs_of_word_follow_their_words(body, wanted):
    document = f"<w:tbl><w:p>{body}</w:p></w:tbl><w:p/>"
    assert FORMATS[".docx"](word(document), same, "") == word(document)
    assert in_word(document, stub(lambda words: words[::-1])) == document.replace(body, wanted)


def test_a_code_within_a_word_adds_no_space():
    body = f"<w:p>{run('A')}<w:bookmarkStart/>{run('bc def')}</w:p>"
    assert in_word(body, stub(upper)) == f"<w:p><w:bookmarkStart/>{run('ABC DEF')}</w:p>"


def test_a_tab_stays_behind_its_word():
    found = in_word(f"<w:p><w:r>{BOLD}<w:t>Name:</w:t><w:tab/><w:t>Wert</w:t></w:r></w:p>", stub(upper))
    assert found == f"<w:p>{run('NAME:', BOLD)}<w:r>{BOLD}<w:tab/></w:r>{run('WERT', BOLD)}</w:p>"


@pytest.mark.parametrize(
    ("body", "texts"),
    [
        ("<w:r><w:t>a b</w:t><w:br/><w:t>c d</w:t><w:cr/><w:t>5</w:t><w:tab/></w:r>", ["a b", "c d"]),
        (f"{run('a b')}<w:r><w:br/></w:r>{run('c d')}", ["a b", "c d"]),
        (f"<w:r><w:tab/><w:t>a b</w:t></w:r>{run(' c', BOLD)}<w:r>{BOLD}<w:t> d</w:t><w:tab/><w:t>e</w:t></w:r>"
         , ["a b c d", "e"]),
    ],
)  # fmt: skip
def test_lines_and_columns_of_word_are_texts_of_their_own(body, texts):
    seen: list[str] = []
    document = f"<w:p>{body}</w:p>"
    assert FORMATS[".docx"](word(document), same, "") == word(document)
    found = in_word(document, stub(upper, seen))
    assert seen == texts
    assert shown(found) == shown(document).upper()
    # Texts before and after one that stays are written into the same run
    for kept in texts:
        found = in_word(document, lambda given, _, kept=kept: [(t if t == kept else t.upper(), None) for t in given])
        assert shown(found) == shown(document).upper().replace(kept.upper(), kept)


def test_a_tab_in_a_field_ends_no_text():
    body = f"{run('a ')}{LINK}{run('b')}<w:r><w:tab/></w:r>{field('end')}{run('c')}"
    seen: list[str] = []
    in_word(f"<w:p>{body}</w:p>", stub(upper, seen))
    assert seen == ["a b c"]


def test_spaces_in_elements_of_word_stay_there():
    blank = run(" ")
    for inner in (blank, run(" ", BOLD), "<w:r><w:tab/></w:r>", blank + BOX.format(run("da")) + blank):
        body = f'{run("eins zwei")}<w:hyperlink w:id="1">{inner}</w:hyperlink>'
        found = in_word(f"<w:p>{body}</w:p>", stub(upper))
        assert found == f"<w:p>{body}</w:p>".replace("eins zwei", "EINS ZWEI").replace("da", "DA")


def test_word_files_that_are_none_or_too_large_are_refused(monkeypatch):
    entity = '<!DOCTYPE x [<!ENTITY a "b">]><w:p>&a;</w:p>'
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("word/document.xml", entity)
    large = io.BytesIO()
    with zipfile.ZipFile(large, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", b"a" * 2000)
    damaged = bytearray(word("<w:p>"))
    damaged[47:50] = b"\xff" * 3
    monkeypatch.setattr("seq2seq.inference.documents.word._MOST", 1000)
    for data, message in [
        (b"PK", "not a DOCX"),
        (file.getvalue(), "entity 'a'"),
        (large.getvalue(), "2,000 bytes"),
        (word("<w:p>"), "not XML"),
        (bytes(damaged), "not a DOCX"),
    ]:
        with pytest.raises(ValueError, match=message):
            FORMATS[".docx"](data, same, "")


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
    assert converted(".html", content, same, "") == content


@pytest.mark.slow
@pytest.mark.parametrize("content", ["a\n" * 50_000, "{\\a" * 50_000, "<" * 50_000, "1 --> 2\n" * 10_000])
def test_hostile_cues_are_translated_in_linear_time(content):
    assert converted(".srt", f"1 --> 2\nA\n{content}", stub(upper)).startswith("1 --> 2\nA")


@pytest.mark.slow
@pytest.mark.parametrize("content", ["<b>a" * 50_000, "<i>a</i> " * 50_000, "&a;" * 50_000, "a@" * 50_000])
def test_hostile_pages_are_translated_in_linear_time(content):
    """Without it, each takes minutes or all memory."""
    assert "A" in converted(".html", content, stub(reverse), "")


def test_texts_of_a_document_are_counted(tmp_path: Path, capsys):
    """Attributes and texts are translated one after the other."""
    ckpt = tmp_path / "tiny.safetensors"
    stored = tiny.payload()
    stored.meta["tgt_lang"] = "eng_Latn"
    checkpoint.save(ckpt, stored)
    page = tmp_path / "in.html"
    page.write_text('<html lang="de"><p title="der Hund">das Haus</p>')
    options = ["--ckpt", str(ckpt), "--device", "cpu", "--document", str(page), "--output", str(tmp_path / "out.html")]
    assert translate.main([*options, "--max-len-ratio", "0", "--max-len-extra", "1"]) == 0
    said = capsys.readouterr().err
    assert '<html lang="en-Latn">' in (tmp_path / "out.html").read_text()
    assert "2 of 2 texts have" in said
    assert said.rstrip().endswith("texts 1 ('der Hund'), 2 ('das Haus')")
    with pytest.raises(SystemExit):
        translate.main([*options, "--glossary-by", "search"])


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
    said = capsys.readouterr().err
    assert "glossary: 1 of 1 terms" in said
    assert "no text" not in said
    Path("in.docx").write_bytes(word(f"<w:p>{run('der ')}{run('Hund', BOLD)}</w:p>"))
    assert translate.main([*options, "in.docx", "--output", "out.docx"]) == 0
    with zipfile.ZipFile("out.docx") as archive:
        assert "dog" in archive.read("word/document.xml").decode()
    # A line without a time is no cue
    Path("none.srt").write_text("der Hund\n")
    assert translate.main([*options, "none.srt", "--output", "out.srt"]) == 0
    assert "none.srt has no text to translate" in capsys.readouterr().err
    Path("bad.docx").write_bytes(b"")
    Path("in.pdf").write_bytes(b"")
    Path("latin.html").write_bytes(b"<p>\xe4")
    for name, out in (
        ("bad.docx", "x"),
        ("in.pdf", "x"),
        ("latin.html", "x"),
        ("in.html", "in.html"),
        ("in.html", str(ckpt)),
    ):
        assert translate.main([*options, name, "--output", out]) == 2
    for wrong in ([], ["--output", "x", "--n-best", "2"]):
        with pytest.raises(SystemExit):
            translate.main([*options, "in.html", *wrong])
