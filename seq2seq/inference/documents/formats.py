"""Formats of documents by suffix. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Callable

from seq2seq.inference.documents.markdown_text import translate_markdown
from seq2seq.inference.documents.markup import translate_html
from seq2seq.inference.documents.segments import Translate
from seq2seq.inference.documents.subtitles import translate_subtitles
from seq2seq.inference.documents.word import translate_docx
from seq2seq.inference.documents.xliff import translate_xliff

# Translates the bytes of a file; the last argument is the language of the translation.
Format = Callable[[bytes, Translate, str], bytes]


# Declares the encoding of a page or of XML
_DECLARED = re.compile(
    r"""(<\?xml\b[^<>]{0,500}?\sencoding\s*=\s*["']|<meta\b[^<>]{0,500}?\bcharset\s*=\s*["']?\s*)([\w.:-]+)""",
    re.IGNORECASE,
)
# Characters in which it is searched
_HEAD = 10_000


def _text(translate_content: Callable[[str, Translate, str], str], *, declares: bool = False) -> Format:
    """Make the format of a file in UTF-8; another encoding that it declares is corrected, unless all is ASCII."""

    def translated(data: bytes, translate: Translate, language: str) -> bytes:
        try:
            content = data.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"it is not valid UTF-8 at byte {error.start:,}: convert it") from None
        written = translate_content(content, translate, language)
        if declares and not written.isascii():
            written = _DECLARED.sub(_in_utf_8, written[:_HEAD]) + written[_HEAD:]
        return written.encode("utf-8", "replace")

    return translated


def _in_utf_8(match: re.Match[str]) -> str:
    return match[0] if re.fullmatch("utf-?8", match[2], re.IGNORECASE) else f"{match[1]}UTF-8"


FORMATS: dict[str, Format] = {
    ".html": _text(translate_html, declares=True),
    ".htm": _text(translate_html, declares=True),
    ".srt": _text(translate_subtitles),
    ".vtt": _text(translate_subtitles),
    ".md": _text(translate_markdown),
    ".docx": translate_docx,
    ".xlf": _text(translate_xliff, declares=True),
    ".xliff": _text(translate_xliff, declares=True),
}
