"""Formats of documents by suffix. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable

from seq2seq.inference.documents.markdown_text import translate_markdown
from seq2seq.inference.documents.markup import translate_html
from seq2seq.inference.documents.segments import Translate
from seq2seq.inference.documents.subtitles import translate_subtitles
from seq2seq.inference.documents.word import translate_docx
from seq2seq.inference.documents.xliff import translate_xliff

# Translates the bytes of a file; the last argument is the language of the translation.
Format = Callable[[bytes, Translate, str], bytes]


def _text(translate_content: Callable[[str, Translate, str], str]) -> Format:
    """Make the format of a file in UTF-8."""

    def translated(data: bytes, translate: Translate, language: str) -> bytes:
        try:
            content = data.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"it is not valid UTF-8 at byte {error.start:,}: convert it") from None
        return translate_content(content, translate, language).encode("utf-8", "replace")

    return translated


FORMATS: dict[str, Format] = {
    ".html": _text(translate_html),
    ".htm": _text(translate_html),
    ".srt": _text(translate_subtitles),
    ".vtt": _text(translate_subtitles),
    ".md": _text(translate_markdown),
    ".docx": translate_docx,
    ".xlf": _text(translate_xliff),
    ".xliff": _text(translate_xliff),
}
