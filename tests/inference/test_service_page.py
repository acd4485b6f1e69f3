"""Test the service's page in a headless Chromium; `pytest --basetemp` keeps the screenshots."""

from __future__ import annotations

import dataclasses
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from conftest import PATIENCE
from service_client import Stub, served

from seq2seq.inference.forced_text import Alignment
from seq2seq.inference.service.batch_translator import BatchTranslator
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
LINKS = [(0, 0), (1, 1), (10, 2), (5, 3), (6, 4), (7, 5), (7, 6), (8, 7), (9, 8), (3, 9), (4, 10), (11, 11)]


class Translating(Stub):
    """Knows one sentence, and aligns its best translation."""

    def candidate(self, line: str, i: int, settings: Any) -> Any:
        """Return candidate i of the sentence; for other sentences the stub's."""
        if line != SOURCE:
            return super().candidate(line, i, settings)
        return TranslatedText(TARGETS[i % 5], -0.12 * (i + 1) ** 1.5)

    def align(self, lines: Sequence[str], candidates: Sequence[Any]) -> list[list[Alignment | None]]:
        """Align the best translation of the sentence."""
        return [
            [alignment_of(SOURCE, TARGETS[0]) if line == SOURCE and i == 0 else None for i in range(len(row))]
            for line, row in zip(lines, candidates, strict=True)
        ]


def alignment_of(source: str, target: str) -> Alignment:
    """An alignment with large weights for LINKS and small ones elsewhere."""
    words = [text.replace(".", " .").split() for text in (source, target)]
    links = [(s, t) for s, t in LINKS if s < len(words[0]) and t < len(words[1])]
    weights = [
        [0.82 if (s, t) in links else 0.18 / (1 + abs(s - t)) / 3 for s in range(len(words[0]))]
        for t in range(len(words[1]))
    ]
    return Alignment(words[0], words[1], links, weights)


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, BatchTranslator]]:
    """The address of a running service, and its translator."""
    stub = Translating(beam_size=5)
    with served(stub, max_characters=2000) as running, bound_socket(ServiceSettings(port=0)) as bound:
        server = uvicorn.Server(uvicorn.Config(running.app, log_config=None, ws="none", lifespan="off"))
        thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
        thread.start()
        yield url_of(bound), running.service.translator
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

    def open_page(**screen: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1180, "height": 820}, "locale": "en-US", **screen})
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
        page.locator("#from").wait_for()
        return page

    yield open_page
    for context in opened:
        context.close()
    assert not [text for text in complaints if "422" not in text and "500" not in text]


def translate(page: Any, text: str) -> None:
    """Type a text and translate it, with the keyboard only."""
    page.keyboard.press("Control+A")
    for i, line in enumerate(text.split("\n")):
        if i:
            page.keyboard.press("Shift+Enter")
        page.keyboard.insert_text(line)
    # Not wait_for_function: the page's policy allows no eval
    with page.expect_response("**/translate"):
        page.keyboard.press("Enter")
    page.locator("#best:not(.waiting)").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_sentence(visit, pictures, scheme):
    page = visit(color_scheme=scheme)
    # The field has the focus
    translate(page, SOURCE)
    assert page.inner_text("#best") == TARGETS[0]
    assert page.inner_text("#from") == "German"
    assert [row.inner_text() for row in page.locator("#list .words").all()] == TARGETS
    assert page.locator("#list .score > span:first-child").all_inner_texts()[0] == "−0.120"
    # Linked words: a line for each link, and a heat map
    assert page.locator("#links path").count() == len(LINKS)
    assert page.locator("#above .word").count() == 12
    assert page.locator("#map tbody tr").count() == 12
    page.locator("#above .word").nth(6).hover()
    assert page.locator("#under .word.on").all_inner_texts()[0].startswith("suitcase")
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
    assert page.locator(".rows button").count() == 4
    assert page.locator(".rows button").nth(1).inner_text() == "cba/0/5/"
    page.locator(".rows button").nth(2).click()
    assert page.inner_text("#warning") == "Not translated: out of memory."
    page.locator(".rows button").nth(3).click()
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
    page.locator("summary").click()
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
    with page.expect_response("**/translate") as answered:
        page.click("#go")
    assert answered.value.status == 200
    assert page.inner_text("#best") == "cba/0/5/"
    page.locator("summary").click()
    page.fill("#length_penalty", "-2")
    with page.expect_response("**/translate"):
        page.click("#go")
    page.locator("#error").wait_for()
    assert page.inner_text("#error") == "Length_penalty: input should be greater than or equal to 0, not -2."


def test_more_alternatives_than_the_beam_of_groups_holds(visit, address, monkeypatch):
    """The larger beam can be divided into the service's groups."""
    grouped = dataclasses.replace(address[1].settings, beam_size=4, n_best=4, beam_groups=2)
    monkeypatch.setattr(address[1], "settings", grouped)
    page = visit()
    page.locator("summary").click()
    page.fill("#n_best", "7")
    page.locator("#text").focus()
    translate(page, "abc")
    assert page.locator("#list button").count() == 7
    assert page.inner_text("#best") == "cba/0/8/"


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


SELECTORS = ("#best", ".note", "h2", ".score", ".language", ".primary", ".rank", ".plain", "summary", "footer a")
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
    assert page.locator("#best button").count() == 2
    assert "cut" in page.locator("#best .mark-warn").get_attribute("title")
    assert page.locator("#warning").is_hidden()
    page.locator("#best button").nth(1).click()
    assert page.inner_text("#warning") == "The text is cut: 9 pieces, the first 4 are translated."
    page.screenshot(path=pictures / "lines.png", full_page=True)
