"""Formats of documents by suffix. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable

from seq2seq.inference.documents.markup import translate_html
from seq2seq.inference.documents.segments import Translate

FORMATS: dict[str, Callable[[str, Translate, str], str]] = {".html": translate_html, ".htm": translate_html}
