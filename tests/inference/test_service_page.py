"""Test the service's page in a headless Chromium; `pytest --basetemp` keeps the screenshots."""

from __future__ import annotations

import dataclasses
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from conftest import PATIENCE
from service_client import Stub, served

from seq2seq.inference.forced_text import Alignment, _side_by_side
from seq2seq.inference.service.loaded_models import BatchTranslator
from seq2seq.inference.service.server import bound_socket, url_of
from seq2seq.inference.service.settings import ServiceSettings
from seq2seq.inference.translator import TranslatedText

playwright = pytest.importorskip("playwright.sync_api")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")]

SOURCE = "Deine Töchter haben am Freitag unseren Koffer neben das Sofa gestellt."
TARGETS = [
    "Your daughters put our suitcase next to the sofa on Friday.",
    "Your daughters put our suitcase beside the sofa on Friday.",
    "On Friday your daughters put our suitcase next to the sofa.",
    "Your daughters have put our suitcase next to the sofa on Friday.",
    "Your daughters placed our suitcase next to the sofa on Friday.",
]
PARTS = [
    ("Es regnet.", "It is raining."),
    ("Der Mann schläft auf dem Sofa.", "The man sleeps on the sofa."),
    ("Wir bleiben zu Hause.", "We are staying at home."),
]
PARAGRAPH = "  ".join(source for source, _ in PARTS)
SLEEPS = (
    "sleeps on the sofa",
    "is sleeping on the sofa",
    "sleeps on the couch",
    "is asleep on the sofa",
    "is on the sofa",
)
RIGHT_TO_LEFT = ("قرأ الطالب كتابا (جديدا) في المكتبة .", "הסטודנט קרא ספר ( חדש ) בספרייה .")
LONG = " ".join(f"Wort{i}" for i in range(60))
LINKS = [(0, 0), (1, 1), (10, 2), (5, 3), (6, 4), (7, 5), (7, 6), (8, 7), (9, 8), (3, 9), (4, 10), (11, 11)]


class Translating(Stub):
    """Knows one sentence, and aligns its best translation."""

    def candidate(self, line: str, i: int, settings: Any) -> Any:
        """Return candidate i of a text that it knows; for other texts the stub's."""
        score = -0.12 * (i + 1) ** 1.5
        if line == SOURCE:
            return TranslatedText(TARGETS[i % 5], score, mean=score)
        if line == PARAGRAPH:
            parts = [(source, target.replace(SLEEPS[0], SLEEPS[i % 5])) for source, target in PARTS]
            return TranslatedText("  ".join(target for _, target in parts), score, tuple(parts), mean=score)
        if line == RIGHT_TO_LEFT[0]:
            return TranslatedText(RIGHT_TO_LEFT[1], score, mean=score)
        return super().candidate(line, i, settings)

    def align(self, lines: Sequence[str], candidates: Sequence[Any]) -> list[list[Alignment | None]]:
        """Align the best translation of a text that it knows."""
        found = {
            SOURCE: alignment_of(SOURCE, TARGETS[0]),
            PARAGRAPH: _side_by_side([alignment_of(*pair) for pair in PARTS]),
            RIGHT_TO_LEFT[0]: alignment_of(*RIGHT_TO_LEFT),
            LONG: alignment_of(LONG, LONG),
        }
        return [
            [None if i else found.get(line) for i in range(len(row))]
            for line, row in zip(lines, candidates, strict=True)
        ]


def alignment_of(source: str, target: str) -> Alignment:
    """An alignment with large weights for its links, LINKS or word by word, and small ones elsewhere."""
    words = [text.replace(".", " .").split() for text in (source, target)]
    few = range(min(map(len, words)))
    links = LINKS if source == SOURCE else [(i, i) for i in few]
    weights = [
        [0.82 if (s, t) in links else 0.18 / (1 + abs(s - t)) / 3 for s in range(len(words[0]))]
        for t in range(len(words[1]))
    ]
    return Alignment(words[0], words[1], links, weights)


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, BatchTranslator, Translating]]:
    """The address of a running service, its translator, and the stub behind it."""
    stub = Translating(beam_size=5)
    with served(stub, max_characters=2000) as running, bound_socket(ServiceSettings(port=0)) as bound:
        server = uvicorn.Server(uvicorn.Config(running.app, log_config=None, ws="none", lifespan="off"))
        thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
        thread.start()
        yield url_of(bound), running.service.models.by_name["model"], stub
        server.should_exit = True
        thread.join(PATIENCE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"], timeout=1000 * PATIENCE
        )
        yield found
        found.close()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    # A worker that comes back to this module a second time finds the folder
    folder = tmp_path_factory.getbasetemp() / "page"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def visit(browser, address) -> Iterator[Any]:
    """Open the page on a screen of given properties; complain about errors and requests to other hosts."""
    opened = []
    complaints: list[str] = []

    def open_page(*, live: bool = False, route: Any = None, **screen: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1180, "height": 820}, "locale": "en-US", **screen})
        # Most tests press Enter, and would otherwise compete with the translation while typing
        if not live:
            context.add_init_script("sessionStorage.setItem('live', 'false')")
        for pattern, answer in (route or {}).items():
            context.route(pattern, answer)
        context.set_default_timeout(1000 * PATIENCE)
        opened.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        page.on(
            "request",
            lambda asked: None if asked.url.startswith((address[0], "data:")) else complaints.append(asked.url),
        )
        page.goto(address[0])
        page.locator("#arrow, #swap, #unlock").filter(visible=True).wait_for()
        return page

    yield open_page
    for context in opened:
        context.close()
    assert not [
        text for text in complaints if not any(code in text for code in ("401", "403", "422", "429", "500", "503"))
    ]


def translate(page: Any, text: str) -> None:
    """Type a text and translate it, with the keyboard only."""
    page.keyboard.press("Control+A")
    for i, line in enumerate(text.split("\n")):
        if i:
            page.keyboard.press("Shift+Enter")
        page.keyboard.insert_text(line)
    # Not wait_for_function: the page's policy allows no eval
    answered(page, lambda: page.keyboard.press("Enter"))


def answered(page: Any, ask: Callable[[], None]) -> int:
    """Ask for a translation, wait until the page shows the answer, and return the answer's status."""
    with page.expect_response("**/translate") as response:
        ask()
    page.locator("#best:not(.waiting)").wait_for()
    return response.value.status


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_sentence(visit, pictures, scheme):
    page = visit(color_scheme=scheme)
    # The field has the focus
    translate(page, SOURCE)
    assert page.inner_text("#best") == TARGETS[0]
    assert page.inner_text("#from") == "German"
    assert [row.inner_text() for row in page.locator("#list .words").all()] == TARGETS
    assert page.locator("#list .score > span:first-child").all_inner_texts()[0] == "89%"
    assert page.locator("#list .score").first.get_attribute("title") == "log-probability by length: −0.120"
    # Linked words: a line for each link, and a heat map
    assert page.locator("#links path").count() == len(LINKS)
    assert page.locator("#above .word").count() == 12
    assert page.locator("#map tbody tr").count() == 12
    page.locator("#above .word").nth(6).hover()
    assert page.locator("#under .word.on").all_inner_texts()[0].startswith("suitcase")
    # As most visitors see it; only for the picture
    page.evaluate("document.querySelector('#live').checked = true")
    page.screenshot(path=pictures / f"{scheme}.png", full_page=True)


def test_a_phone(visit, pictures):
    page = visit(viewport={"width": 360, "height": 740}, device_scale_factor=2, is_mobile=True, has_touch=True)
    translate(page, SOURCE)
    # Nothing is wider than the screen
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    # Targets of taps are large enough for a finger
    for target in page.locator("button:visible.primary, #list button:visible").all():
        assert target.bounding_box()["height"] >= 44
    page.screenshot(path=pictures / "phone.png", full_page=True)


def test_the_keyboard(visit):
    page = visit()
    translate(page, SOURCE)
    # From the text to the alternatives
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('#list') !== null"):
            break
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.inner_text("#best") == TARGETS[1]
    assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
    assert page.locator("#alignment").is_hidden()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    # words: one stop, and arrows
    page.locator("#above .word").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.textContent") == "Töchter, linked to daughters"
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == "daughters, linked to Töchter"


def test_several_lines(visit, pictures):
    page = visit()
    translate(page, f"{SOURCE}\n\nabc\nboom\nlong")
    assert page.locator(".rows .part").count() == 4
    assert page.locator(".rows .part").nth(1).inner_text() == "cba/0/5/"
    page.locator(".rows .part").nth(2).click()
    assert page.inner_text("#warning") == "Not translated: out of memory."
    page.locator(".rows .part").nth(3).click()
    assert page.inner_text("#warning") == "The text is cut: 9 pieces, the first 4 are translated."
    assert page.locator("#list button").count() == 5
    page.screenshot(path=pictures / "lines.png", full_page=True)


def test_errors(visit, pictures):
    page = visit()
    translate(page, SOURCE)
    translate(page, "boom")
    # An earlier translation is not shown with another text
    assert page.inner_text("#best") == "No translation."
    assert page.locator("#others, #alignment, #copy").filter(visible=True).count() == 0
    assert page.inner_text("#error") == "The text could not be translated: out of memory."
    page.screenshot(path=pictures / "error.png", full_page=True)
    # More alternatives than the beam holds ask for a larger beam
    page.locator("summary").first.click()
    page.fill("#n_best", "8")
    page.locator("#text").focus()
    translate(page, "abc")
    assert page.locator("#list button").count() == 8
    assert page.inner_text("#best") == "cba/0/8/"


def test_the_services_own_length_penalty_may_be_negative(visit, address, monkeypatch):
    """The page does not send a negative penalty back, which would be refused, and the browser accepts the form."""
    monkeypatch.setattr(address[1], "settings", dataclasses.replace(address[1].settings, length_penalty=-1.25))
    page = visit()
    assert page.input_value("#length_penalty") == "-1.25"
    page.fill("#text", "abc")
    assert answered(page, lambda: page.click("#go")) == 200
    assert page.inner_text("#best") == "cba/0/5/"
    page.locator("summary").first.click()
    page.fill("#length_penalty", "-2")
    page.click("#go")
    page.locator("#error").wait_for()
    assert page.inner_text("#error") == "Length_penalty: input should be greater than or equal to 0, not -2."


def test_more_alternatives_than_the_beam_of_groups_holds(visit, address, monkeypatch):
    """The larger beam can be divided into the service's groups."""
    grouped = dataclasses.replace(address[1].settings, beam_size=4, n_best=4, beam_groups=2)
    monkeypatch.setattr(address[1], "settings", grouped)
    page = visit()
    page.locator("summary").first.click()
    page.fill("#n_best", "7")
    page.locator("#text").focus()
    translate(page, "abc")
    assert page.locator("#list button").count() == 7
    assert page.inner_text("#best") == "cba/0/8/"
    # Ten would need a beam of twelve
    grouped = dataclasses.replace(grouped, beam_size=6, n_best=6, beam_groups=3)
    monkeypatch.setattr(address[1], "settings", grouped)
    page.reload()
    page.locator("summary").first.click()
    page.fill("#n_best", "10")
    page.locator("#text").focus()
    translate(page, "abc")
    assert page.locator("#list button").count() == 9
    # An empty field leaves the beam to the service
    page.fill("#n_best", "2")
    page.fill("#beam_size", "")
    page.locator("#text").focus()
    translate(page, "abc")
    assert page.inner_text("#best") == "cba/0/6/"


def test_a_closed_group_of_options_opens_for_a_wrong_value(visit):
    page = visit()
    page.fill("#text", "abc")
    page.evaluate("document.querySelector('#n_best').value = 99")
    page.click("#go")
    page.locator("#n_best").wait_for()
    assert page.evaluate("document.activeElement.id") == "n_best"


def test_a_model_that_aligns_no_words(visit, address, monkeypatch):
    """For a model without alignments, the page does not request them, since the service would refuse."""
    monkeypatch.setattr(address[1], "can_align", False)
    page = visit()
    translate(page, SOURCE)
    assert page.inner_text("#best") == TARGETS[0]
    assert page.locator("#alignment").is_hidden()


def test_a_text_is_no_markup(visit):
    page = visit()
    translate(page, "<img src=x onerror=alert(1)>")
    assert page.inner_text("#best").startswith(">)1(trela")
    assert page.locator("#best img, #list img").count() == 0


def test_contrast_and_names(visit):
    """Text stands out by 4.5 to 1 in both schemes (WCAG 2.2, AA), and every control has a name."""
    for scheme in ("light", "dark"):
        page = visit(color_scheme=scheme)
        translate(page, SOURCE)
        names = page.evaluate(
            "[...document.querySelectorAll('button, input, select, textarea')].filter((e) => e.offsetParent)"
            ".map((e) => (e.labels && e.labels.length ? e.labels[0].textContent : e.textContent).trim())"
        )
        assert all(names)
        for selector in SELECTORS:
            assert page.evaluate(CONTRAST, selector) >= 4.5, (scheme, selector)


SELECTORS = ("#best", ".note", "h2", ".score", ".language", ".primary", ".rank", ".plain", ".switch", "summary", "a")
# Ratio of the luminances of an element's text and its background.
CONTRAST = """
(selector) => {
  const parts = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => {
    const [r, g, b] = parts(color).map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const element = document.querySelector(selector);
  let behind = element;
  while (behind && (parts(getComputedStyle(behind).backgroundColor)[3] ?? 1) === 0) behind = behind.parentElement;
  const [a, b] = [light(getComputedStyle(element).color), light(getComputedStyle(behind).backgroundColor)];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}
"""


def test_blank_lines_stay_and_doubtful_lines_are_marked(visit, pictures):
    page = visit()
    translate(page, "abc\n\nlong\n")
    # Three rows and the end of the text; two rows have buttons
    assert [row.strip() for row in page.locator("#best li").all_inner_texts()] == ["cba/0/5/", "", "gnol/0/5/ ⚠", ""]
    assert page.locator("#best .part").count() == 2
    assert page.get_by_role("img", name="may be incomplete").count() == 1
    assert "cut" in page.locator("#best .mark-warn").get_attribute("title")
    assert page.locator("#warning").is_hidden()
    page.locator("#best .part").nth(1).click()
    assert page.inner_text("#warning") == "The text is cut: 9 pieces, the first 4 are translated."
    page.screenshot(path=pictures / "lines.png", full_page=True)


def width(page: Any) -> int:
    """Return the width of all content; more than the screen's means that the page can be moved to the side."""
    return page.evaluate("document.documentElement.scrollWidth")


def fits(page: Any, selector: str) -> bool:
    """Return True if the content of an element is no wider than the element."""
    return page.evaluate(
        "(s) => { const e = document.querySelector(s); return e.scrollWidth <= e.clientWidth }", selector
    )


def test_the_field_grows(visit, pictures):
    page = visit()
    height = "document.querySelector('#text').offsetHeight"
    small = page.evaluate(height)
    page.fill("#text", "\n".join("A line of a text." for _ in range(12)))
    grown = page.evaluate(height)
    assert grown > 2 * small
    assert page.evaluate("(e => e.scrollHeight <= e.clientHeight)(document.querySelector('#text'))")
    page.fill("#text", "A long text has many sentences. " * 60)
    # At most most of the screen, and then the field scrolls, with what it marks
    assert grown < page.evaluate(height) <= 0.7 * 820
    page.evaluate("document.querySelector('#text').scrollTop = 1e6")
    page.screenshot(path=pictures / "long.png", full_page=True)
    page.fill("#text", "abc")
    assert page.evaluate(height) == small


def test_translation_while_typing(visit, address):
    stub, page = address[2], visit(live=True)
    sent: list[str] = []
    ended: list[str] = []
    page.on("request", lambda asked: sent.append(asked.post_data_json["text"][0]) if asked.post_data else None)
    page.on("requestfailed", lambda asked: ended.append(asked.post_data_json["text"][0]))
    # Nobody presses Enter
    page.keyboard.type("abc")
    page.get_by_text("cba/0/5/").first.wait_for()
    assert sent == ["abc"]
    # The last text wins, and the service gives up the search for the one before
    stub.gate.clear()
    with page.expect_request("**/translate"):
        page.keyboard.type("d")
    with page.expect_request("**/translate"):
        page.keyboard.type("e")
    stub.gate.set()
    page.get_by_text("edcba/0/5/").first.wait_for()
    assert (sent, ended) == (["abc", "abcd", "abcde"], ["abcd"])
    # A long text costs too much for each letter
    page.fill("#text", "long text " * 101)
    page.get_by_text("The text has changed").wait_for()
    # Nor where the visitor does not want it
    page.uncheck("#live")
    page.fill("#text", "abc")
    page.get_by_text("The text has changed").wait_for()
    page.wait_for_timeout(700)
    assert len(sent) == 3
    page.reload()
    assert not page.is_checked("#live")
    page.check("#live")
    page.fill("#text", "xyz")
    page.get_by_text("zyx/0/5/").first.wait_for()
    page.fill("#text", "")
    page.get_by_text("The translation appears here.").wait_for()


def test_a_busy_service_is_asked_again_quietly(visit):
    answers = [429, 503]

    def busy(route: Any) -> None:
        if answers:
            return route.fulfill(status=answers.pop(), json={"error": "too many"}, headers={"Retry-After": "1"})
        return route.continue_()

    page = visit(live=True, route={"**/translate": busy})
    page.keyboard.type("abc")
    page.get_by_text("The service is busy").wait_for()
    assert page.locator("#error").is_hidden()
    page.get_by_text("cba/0/5/").first.wait_for()
    assert answers == []
    # After Enter it is an error
    answers.append(429)
    page.keyboard.press("Enter")
    page.locator("#error").wait_for()
    assert page.inner_text("#error") == "Too many."


def test_sentences_apart(visit, pictures):
    page = visit()
    translate(page, f"{PARAGRAPH}\n\n{SOURCE}")
    parts = page.locator("#best .part")
    assert parts.all_inner_texts() == [*[target for _, target in PARTS], TARGETS[0]]
    assert page.locator("#best li").first.inner_text().split() == " ".join(target for _, target in PARTS).split()
    parts.nth(1).hover()
    assert page.inner_text("#mirror mark") == PARTS[1][0]
    # The alignment is for the chosen sentence
    assert page.inner_text("#which") == "part 1 of 3"
    parts.nth(1).click()
    assert page.inner_text("#which") == "part 2 of 3"
    assert page.locator("#above .word").all_inner_texts()[0].startswith("Der")
    assert page.locator("#under .word").count() == page.locator("#map tbody tr").count() == 7
    page.evaluate("document.querySelector('#live').checked = true")
    page.screenshot(path=pictures / "sentences.png", full_page=True)
    # By keyboard
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.inner_text("#which") == "part 3 of 3"
    assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
    # The cursor in the text shows the translation, and a changed text has no sentences any more
    page.focus("#text")
    page.keyboard.press("Control+Home")
    assert page.locator("#best .part.on").all_inner_texts() == [PARTS[0][1]]
    page.keyboard.type("x")
    assert page.locator("#mirror mark").inner_text() == ""


@pytest.mark.parametrize("screen", [1180, 360])
def test_right_to_left(visit, pictures, screen):
    languages = {"src_lang": "ar", "src_langs": ["ar"], "tgt_lang": "he", "tgt_langs": ["he"]}

    def health(route: Any) -> None:
        found = route.fetch().json()
        route.fulfill(json=found | languages | {"models": [found["models"][0] | languages]})

    page = visit(viewport={"width": screen, "height": 820}, route={"**/health": health})
    translate(page, RIGHT_TO_LEFT[0])
    assert width(page) <= screen
    left = [page.locator("#above .word").nth(i).bounding_box() for i in range(7)]
    if screen > 1000:
        # The first word is right of the second, and the period is left of all
        xs = [box["x"] for box in left]
        assert xs == sorted(xs, reverse=True)
        columns = [page.locator("#map thead th").nth(i).bounding_box()["x"] for i in range(7)]
        assert columns == sorted(columns, reverse=True)
        page.locator("#above .word").first.focus()
        page.keyboard.press("ArrowLeft")
        assert page.evaluate("document.activeElement.textContent").startswith(RIGHT_TO_LEFT[0].split()[1])
    page.evaluate("document.querySelector('#live').checked = true")
    page.screenshot(path=pictures / f"right-to-left-{screen}.png", full_page=True)


@pytest.mark.parametrize("screen", [1180, 360])
def test_a_long_alignment_stays_on_the_screen(visit, pictures, screen):
    page = visit(viewport={"width": screen, "height": 820})
    translate(page, LONG)
    assert page.locator("#links path").count() == 60
    assert width(page) <= screen
    assert fits(page, "#links")
    boxes = [page.locator("#above .word").nth(i).bounding_box() for i in range(60)]
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= screen for box in boxes)
    assert page.locator("#map").is_hidden() or fits(page, "#map")
    page.locator("#above .word").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.textContent") == "Wort1, linked to Wort1"
    page.screenshot(path=pictures / f"long-alignment-{screen}.png", full_page=True)


def test_phrases_and_a_glossary(visit, pictures):
    sent: list[Any] = []

    def answer(route: Any) -> None:
        sent.append(route.request.post_data_json)
        terms = [
            {"source": "Sofa", "target": "couch", "found": True},
            {"source": "Zug", "target": "train", "found": False},
        ]
        one = {
            "text": "a couch",
            "candidates": [{"text": "a couch", "score": -0.1, "probability": 0.9}],
            "glossary": terms,
        }
        route.fulfill(json={"translations": [one] * len(sent[-1]["text"])})

    page = visit(route={"**/translate": answer})
    assert page.locator("#glossary").is_hidden()
    page.locator("summary").nth(1).click()
    page.fill("#phrases", "a couch\n\n in the evening ")
    page.fill("#glossary", "Sofa\tcouch\nZug = train\n")
    page.focus("#text")
    translate(page, "Das Sofa im Zug")
    assert sent[-1]["phrases"] == [["a couch", "in the evening"]]
    assert sent[-1]["glossary"] == [["Sofa", "couch"], ["Zug", "train"]]
    assert page.inner_text("#warning") == "Not in the translation: Zug = train."
    page.screenshot(path=pictures / "glossary.png", full_page=True)
    # Phrases of several lines cannot be told apart; the glossary can
    translate(page, "Das Sofa\nDer Zug")
    assert "phrases" not in sent[-1]
    assert "glossary" in sent[-1]
    # Folded away, they are counted, and they last as long as the tab
    page.reload()
    assert page.locator("#glossary").is_hidden()
    page.get_by_text("Phrases and glossary (4)").click()
    assert page.input_value("#glossary") == "Sofa\tcouch\nZug = train\n"
    page.fill("#glossary", "Sofa = couch\nZug")
    page.fill("#text", "Das Sofa")
    page.click("#go")
    page.locator("#error").wait_for()
    assert page.inner_text("#error").startswith("Each line of the glossary")


def test_a_text_in_another_language(visit, address, monkeypatch, pictures):
    monkeypatch.setattr(
        "seq2seq.inference.service.loaded_models.other_language",
        lambda text, expected: "fr" if "jour" in text else None,
    )
    page = visit()
    translate(page, "Bonjour tout le monde")
    assert page.inner_text("#foreign") == "The text seems to be in French; the model translates from German."
    page.screenshot(path=pictures / "language.png", full_page=True)
    translate(page, "Bonjour\nGuten Tag")
    assert page.inner_text("#foreign").startswith("A line seems")
    translate(page, "Guten Tag")
    assert page.locator("#foreign").is_hidden()


def test_both_directions(visit, pictures):
    sent: list[Any] = []
    one = {"src_lang": "de", "src_langs": ["de"], "tgt_lang": "en", "tgt_langs": ["en", "fr"], "alignment": False}
    other = {"src_lang": "en", "src_langs": ["en"], "tgt_lang": "de", "tgt_langs": ["de"], "alignment": True}

    def health(route: Any) -> None:
        route.fulfill(json=route.fetch().json() | one | {"models": [one, other]})

    def answer(route: Any) -> None:
        sent.append(route.request.post_data_json)
        route.fulfill(json={"translations": [{"text": "Good morning.", "candidates": [{"text": "Good morning."}]}]})

    page = visit(route={"**/health": health, "**/translate": answer})
    page.focus("#text")
    translate(page, "Guten Morgen.")
    languages = [page.locator(place).get_attribute("lang") for place in ("#text", "#best", "#list")]
    assert languages == ["de", "en", "en"]
    asked = {name: sent[-1][name] for name in ("source", "tgt_lang", "text", "alignment")}
    assert asked == {"source": "de", "tgt_lang": "en", "text": ["Guten Morgen."], "alignment": False}
    page.screenshot(path=pictures / "pairs.png", full_page=True)
    answered(page, lambda: page.click("#swap"))
    asked = {name: sent[-1][name] for name in ("source", "tgt_lang", "text", "alignment")}
    assert asked == {"source": "en", "tgt_lang": "de", "text": ["Good morning."], "alignment": True}
    assert page.input_value("#text") == "Good morning."
    # English has one target, and French does not lead back
    assert page.inner_text("#to") == "German"
    page.select_option("#source", "de")
    answered(page, lambda: page.select_option("#choose", "fr"))
    assert page.locator("#swap").is_hidden()
    assert sent[-1]["tgt_lang"] == "fr"


def test_what_changes_while_a_request_runs(visit, address):
    """A change of languages asks again; an answer for a text that has changed says so."""
    stub = address[2]
    health = {"src_lang": "de", "src_langs": ["de"], "tgt_lang": "en", "tgt_langs": ["en", "fr"]}

    def two(route: Any) -> None:
        found = route.fetch().json()
        route.fulfill(json=found | health | {"models": [found["models"][0] | health]})

    def english(route: Any) -> None:
        asked = route.request.post_data_json
        sent.append(asked["tgt_lang"])
        route.continue_(post_data=asked | {"tgt_lang": "en"})

    sent: list[str] = []
    ended: list[str] = []
    page = visit(route={"**/health": two, "**/translate": english})
    page.on("requestfailed", lambda asked: ended.append(asked.post_data_json["tgt_lang"]))
    stub.gate.clear()
    page.fill("#text", "abc")
    with page.expect_request("**/translate"):
        page.click("#go")
    with page.expect_request("**/translate"):
        page.select_option("#choose", "fr")
    page.fill("#text", "abcd")
    stub.gate.set()
    page.get_by_text("cba/0/5/").first.wait_for()
    assert (sent, ended) == (["en", "fr"], ["en"])
    assert page.inner_text("#state") == "The text has changed"


def test_a_key(visit, pictures):
    def guarded(route: Any) -> None:
        given = route.request.headers.get("authorization")
        if given == "Bearer open sesame":
            return route.continue_()
        return route.fulfill(status=403 if given else 401, json={"error": "a key is missing"})

    page = visit(route={"**/health": guarded, "**/translate": guarded})
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    page.get_by_text("does not accept this key").wait_for()
    page.screenshot(path=pictures / "key.png", full_page=True)
    # No header can have it
    page.fill("#key", "Öffne → dich")
    page.keyboard.press("Enter")
    assert page.locator("#unlock").is_visible()
    page.fill("#key", "open sesame")
    page.keyboard.press("Enter")
    page.locator("#from").wait_for()
    assert page.locator("#unlock").is_hidden()
    translate(page, SOURCE)
    assert page.inner_text("#best") == TARGETS[0]
    # In the page's memory alone
    assert "sesame" not in page.evaluate("JSON.stringify([sessionStorage, localStorage, document.cookie])")
