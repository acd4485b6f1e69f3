"""Sentences of a text in several languages."""

from __future__ import annotations

import random
import time

import pytest

from seq2seq.data.sentences import sentences

# Language, and sentences that together are a text.
TEXTS = [
    ("de", ["Wir lesen. ", "Es regnet. ", "Frau Schneider hat am 18. Juni Geburtstag. ", "Ich weiß."]),
    ("de", ["Prof. Dr. Müller kommt z.B. um 3.5 Uhr... ", "Ja! ", "„Was?“ fragte er. ", "Er kam am 3. Oktober."]),
    (
        "en",
        ["Mr. Smith paid $3.50. ", '"Really?" she asked.  ', "J. R. R. Tolkien wrote it... ", "Then he left."],
    ),
    ("en", ["(It was late.) ", "He said (quietly.) ", "See fig. 3. ", "It was 1990.\t", "No end"]),
    ("en", ["Wait... what? ", "U.S. troops left. ", "Good?! ", "- Yes. ... ", "OK!"]),
    ("fr", ["M. Dupont est là. ", "Il dit: «Oui.» ", "Qu'est-ce? ", "Non."]),
    ("es", ["¿Qué? ", "¡No! ", "El Sr. López viene. ", "Sí."]),
    ("ru", ["А. С. Пушкин писал. ", "Правда? ", "Да."]),
    ("zh-CN", ["他说：“你好。”", "然后走了。", "她问……好吧。", "3.5元！"]),
    ("ja", ["「行く。」", "と言った。", "そう！？", "はい。"]),
    ("ko", ["안녕. ", "잘 가! ", "네?"]),
    ("ar", ["هذا كتاب. ", "ماذا؟ ", "نعم۔ ", "شكرا"]),
    ("hi", ["यह किताब है। ", "क्या? ", "हाँ।"]),
    # The number of a list belongs to the next sentence
    ("en", ["1. One is here. ", "2. Two is. ", "III. Three. ", "IV. Four."]),
    ("de", ["Er wohnt in der Hauptstr. 115. ", "Dann kam er. ", "Nr. 6."]),
    ("en", ["It was oct. 13, 2018. ", "It costs $3. ", "Then we left."]),
    # Titles, ordinals and dates, and what ends a sentence all the same
    (
        "en",
        ["Gen. Lee met Rep. Smith at 6 p.m. ", "He left the U.S. ", "It is my aunt's. ", "She isn't. ", "E.g. Bob is."],
    ),
    (
        "de",
        ["Der XXII. Bezirk und Ing. Meier, d.h. Sie. ", "Das 19. Jahrhundert. ", "Er kam am 3. 10. 2018 an 3. ", "Die"],
    ),
    ("es", ["El Gral. Franco y la Srta. Pérez. ", "No. ", "Sí."]),
    ("el", ["Τι κάνεις; ", "Πού;\u037e ", "Καλά."]),
    ("bn", ["এটা বই।", "কী? ", "হ্যাঁ।"]),
    # Small letters only
    ("de", ["wir lesen. ", "es regnet. ", "frau schneider kommt."]),
    # Not a language code
    ("xx", ["One. ", "Two."]),
    ("", ["One. ", "Two."]),
]


@pytest.mark.parametrize(("language", "expected"), TEXTS)
def test_a_text_is_cut_into_its_sentences(language: str, expected: list[str]) -> None:
    assert sentences("".join(expected), language) == expected


@pytest.mark.parametrize("text", ["", " ", "Hallo", "Hallo.", "z.B. so", "3.5", "...", "Ja!  ", "Er sagte: „Ja.“"])
def test_one_sentence_stays_whole(text: str) -> None:
    assert sentences(text, "de") == ([text] if text else [])


@pytest.mark.parametrize("unit", [".", "!", " ", '"', "x.", "A. ", "1. ", "“A. ", "Ja. ", "...  ", "。", "a\n"])
def test_text_of_any_length_takes_linear_time(unit: str) -> None:
    """A text ten times as long takes at most three times ten times as long, and not a hundred times."""

    def text(count: int) -> str:
        return f"Ja. Inhalt{unit * count}x Nein. Doch."

    def seconds(count: int) -> float:
        began = time.process_time()
        sentences(text(count), "de")
        return time.process_time() - began

    small, large = (min(seconds(count) for _ in range(2)) for count in (2_000, 20_000))
    assert large < 30 * small


def test_nothing_is_lost() -> None:
    """The sentences of any text, joined, are the text."""
    alphabet = [*'aBßé漢。！.!? \u00a03"“»)\n👍۔', "  "]
    for _ in range(300):
        text = "".join(random.choices(alphabet, k=random.randrange(40)))
        assert "".join(sentences(text, random.choice(["de", "en", "zh", "ar"]))) == text
