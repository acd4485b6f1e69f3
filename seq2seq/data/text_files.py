"""Read text files and streams as bytes and lines: the only reader of corpora, input and references, without torch."""

from __future__ import annotations

import codecs
import functools
import html
import io
import logging
import lzma
import os
import re
import unicodedata
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

from seq2seq.system.files import COMPRESSIONS, compressing, compression, uncompressed

log = logging.getLogger(__name__)

Stream = BinaryIO | IO[bytes]

# Bytes of a line, and of a file of markup, which is read as a whole; more is not text, and would fill the memory.
LONGEST_LINE = 1 << 24
_LARGEST_MARKUP = 1 << 27
_BLOCK = 1 << 22
# First bytes of files that are not text.
_OTHERS = {
    "a zip archive": rb"PK\x03\x04",
    "a 7z archive": rb"7z\xbc\xaf\x27\x1c",
    "a RAR archive": rb"Rar!\x1a\x07",
    "a tar archive": rb".{257}ustar",
    "compressed by lz4": rb"\x04\x22\x4d\x18",
    "compressed by compress": rb"\x1f\x9d",
    "a PDF": rb"%PDF-",
    "a parquet file": rb"PAR1",
    "a picture": rb"\x89PNG|\xff\xd8\xff|GIF8",
}
_CONTROLS = re.compile(rb"[\x00-\x1f]")
# First bytes of test sets and talks in markup.
_MARKUP = re.compile(
    rb"<!--|<(\?xml|!doctype|html|srcset|refset|tstset|mteval|xliff|tmx|dataset|doc|seg|"
    rb"url|keywords|speaker|talkid|title|description|reviewer|translator)\b",
    re.IGNORECASE,
)
_MARKUP_SUFFIXES = (".sgm", ".sgml", ".xml", ".xlf", ".xliff", ".html", ".htm")
_SET = re.compile(r"<(srcset|refset|tstset)\b", re.IGNORECASE)
_SEGMENT = re.compile(r"<seg(?:\s[^>]*?)?(?:/>|>(.*?)</seg\s*>)", re.IGNORECASE | re.DOTALL)
# Metadata lines of IWSLT's training text, each a whole element, and the fewest kinds that a file has.
_TALK = re.compile(
    r"</?doc\b[^>]*>|<(url|keywords|speaker|talkid|title|description|reviewer|translator)\b[^>]*>.*</\1>",
    re.IGNORECASE,
)
_TALK_TAGS = 3


class RawLine(NamedTuple):
    """Line without its end: its first bytes, and its size in bytes."""

    data: bytes
    size: int


class _Decompressed(io.RawIOBase):
    """Decompressed view of a stream; errors about damaged data name the stream."""

    def __init__(self, stream: Any, packed: Stream, name: str) -> None:
        self.stream = stream
        self.packed = packed
        self.name = name

    def readable(self) -> bool:
        """Return True, for BufferedReader."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of the compressed stream, on which a caller waits for input."""
        return self.packed.fileno()

    def readinto(self, buffer: Any) -> int:
        """Read a part of the text; 0 at the end."""
        try:
            data = self.stream.read1(len(buffer))
        except (EOFError, OSError, ValueError, lzma.LZMAError, zlib.error) as error:
            # An error of the disk, not of the content; only errors of open() have a file name
            if isinstance(error, OSError) and error.errno is not None:
                error.filename = error.filename or self.name
                raise
            raise _damaged(self.name, str(error)) from error
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close both streams."""
        self.packed.close()
        super().close()


def _damaged(name: str, reason: str) -> ValueError:
    return ValueError(f"{name} cannot be decompressed ({reason}): it is damaged or incomplete")


def name_of(place: str | Path | Stream) -> str:
    """Return the name of a file or stream for messages."""
    name = place if isinstance(place, str | Path) else getattr(place, "name", "the text")
    return "standard input" if name == 0 else str(name)


def open_bytes(place: str | Path | Stream) -> io.BufferedReader:
    """Open a file or an unread stream, and decompress it if its first bytes say so.

    Raises:
        ValueError: Its suffix names a compression that its first bytes lack.
    """
    name = name_of(place)
    file: Any = open(place, "rb") if isinstance(place, str | Path) else place  # noqa: SIM115
    if not hasattr(file, "peek"):
        file = io.BufferedReader(file)
    head = file.peek(512)
    kind = next((suffix for suffix, start in COMPRESSIONS.items() if re.match(start, head)), "")
    if kind:
        return io.BufferedReader(_Decompressed(compressing(file, kind, "rb"), file, name), 1 << 16)
    if said := compression(name):
        raise _damaged(name, f"it does not begin as {said} does")
    return file


def open_text(place: str | Path | Stream) -> io.BufferedReader:
    """Open text as `open_bytes` does; a test set in SGM or XML is read as its segments, one a line.

    Raises:
        ValueError: It is in UTF-16 or UTF-32, is not text, or is markup without segments.
    """
    file = open_bytes(place)
    name = name_of(place)
    head = file.peek(1 << 12)[: 1 << 12]
    if any(re.match(start, head) for start in COMPRESSIONS.values()):
        raise ValueError(f"{name} is compressed twice: decompress it once")
    if kind := next((kind for kind, start in _OTHERS.items() if re.match(start, head, re.DOTALL)), None):
        raise ValueError(f"{name} is {kind}, not text: unpack it ({', '.join(COMPRESSIONS)} are read as they are)")
    if _is_wide(head):
        raise ValueError(
            f"{name} is in UTF-16 or UTF-32, not UTF-8: convert it, as in iconv -f UTF-16 -t UTF-8 <file> > <new file>"
        )
    start = head.removeprefix(codecs.BOM_UTF8).lstrip()
    suffixed = uncompressed(Path(name.lower())).suffix in _MARKUP_SUFFIXES
    if _MARKUP.match(start) or (suffixed and start.startswith(b"<")):
        # Its buffer holds the largest file that is read as a whole
        whole: Any = io.BufferedReader(file, _LARGEST_MARKUP)
        segments = _segments(whole.peek(), name)
        if segments is None:
            return whole
        whole.close()
        return io.BufferedReader(io.BytesIO(segments))  # type: ignore[arg-type]
    return file


def _is_wide(head: bytes) -> bool:
    """Return True for UTF-16 or UTF-32, where every second byte is a small number, 0 for Latin text."""
    # Spaces and line ends have a zero byte in these encodings
    if 0 not in head:
        return False
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return True
    small = [len(_CONTROLS.findall(head[start::2])) / max(1, len(head) // 2) for start in (0, 1)]
    return len(head) >= 16 and (head.count(0) > 0.4 * len(head) or (max(small) > 0.8 and min(small) < 0.5))


def _segments(content: bytes, name: str) -> bytes | None:
    """Read the segments of one side of test sets, or the sentences of IWSLT's talks, as lines; None for other text."""
    whole = len(content) < _LARGEST_MARKUP
    text = content.decode("utf-8-sig", "replace")
    found = []
    if whole and len({kind.lower() for kind in _SET.findall(text)}) == 1:
        found = [match[1] or "" for match in _SEGMENT.finditer(text)]
    else:
        read = [line.strip() for line in text.removesuffix("\n").split("\n")]
        tags = [_TALK.fullmatch(line) for line in read]
        talks = len({match[1].lower() for match in tags if match and match[1]}) >= _TALK_TAGS
        plain = [line for line, tag in zip(read, tags, strict=True) if not (talks and tag)]
        # Other markup has tags in many lines; text about markup has few
        if sum(line.startswith("<") for line in plain) <= len(plain) / 10:
            if not talks:
                return None
            found = plain if whole else []
    if not found:
        raise ValueError(
            f"{name} begins with {text.split(None, 1)[0][:40]!r}: markup is not read, except a set of one side "
            "(<srcset>, <refset>, <tstset>) and IWSLT's talks; write its sentences to a file, one a line"
        )
    warn_once(f"{name} is markup: {len(found):,} lines of text are read from it, without tags")
    # Entities are resolved (a bare & stays), and may be line breaks; U+00A0 and other white space stay
    resolved = (re.sub(r"&#?\w+;", lambda match: html.unescape(match[0]), text) for text in found)
    lines = (re.sub(r"[ \t\r\n]+", " ", text).strip(" ") for text in resolved)
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


@functools.cache
def warn_once(message: str) -> None:
    """Log a warning once; a run reads the same text several times."""
    log.warning("%s", message)


def read_blocks(file: Stream) -> Iterator[bytes]:
    """Read a stream to its end, some megabytes at a time, and close it."""
    with file:
        while block := file.read(_BLOCK):
            yield block


def split_lines(blocks: Iterable[bytes], longest: int, *, refused_as: str = "") -> Iterator[RawLine | None]:
    """Split blocks into lines at the byte \\n; an empty block gives None.

    Args:
        longest: Bytes of a line that are kept.
        refused_as: Raise ValueError for a longer line, with this name of the text.
    """
    data = bytearray()  # the kept part of the line that is being read
    size = 0
    number = 1  # of that line
    for block in blocks:
        if not block:
            yield None
            continue
        *ended, rest = block.split(b"\n")
        # No block is as long as the longest line that is refused, so that only its first piece can end one
        if refused_as and size + len(ended[0] if ended else rest) > longest:
            raise ValueError(
                f"{refused_as}: line {number:,} has more than {longest >> 20} MiB: is it text? Remove the line, or cut "
                "it into sentences"
            )
        number += len(ended)
        for piece in ended:
            if size:
                # An empty slice beyond `longest`: the rest of the line is only counted
                data += piece[: longest - len(data)]
                yield RawLine(bytes(data), size + len(piece))
                data = bytearray()
                size = 0
            else:
                yield RawLine(piece[:longest], len(piece))
        data += rest[: longest - len(data)]
        size += len(rest)
    # The last line may lack its \n
    if size:
        yield RawLine(bytes(data), size)


def decode_line(line: RawLine) -> tuple[str, bool]:
    """Decode a line, without the \\r of a CRLF and without the byte order mark of a file.

    Returns:
        The text, with U+FFFD for bytes that are not UTF-8, and True if all bytes were valid.
    """
    # The kept part of a longer line may end within a character, and its last byte does not end the line
    whole = line.size == len(line.data)
    data = line.data[:-1] if whole and line.data.endswith(b"\r") else line.data
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        # final=whole drops an unfinished character at a cut
        return codecs.utf_8_decode(data, "strict", whole)[0], True
    except UnicodeDecodeError:
        return codecs.utf_8_decode(data, "replace", whole)[0], False


def read_lines(place: str | Path | Stream) -> Iterator[str]:
    """Read the lines of a file or stream by `open_text`, with U+FFFD for bytes that are not UTF-8.

    Raises:
        ValueError: It is damaged, is not text, or has a line of more than `LONGEST_LINE` bytes.
    """
    for line in split_lines(read_blocks(open_text(place)), LONGEST_LINE, refused_as=name_of(place)):
        assert line
        yield decode_line(line)[0]


def count_lines(stream: Stream) -> int:
    """Count the lines of an open file from its position, which stays the same."""
    descriptor = stream.fileno()
    at = os.lseek(descriptor, 0, os.SEEK_CUR)
    try:
        # Opened under its name, for messages
        with open(name_of(stream), "rb", opener=lambda *_: os.dup(descriptor)) as file:
            return sum(1 for _ in split_lines(read_blocks(open_text(file)), 0))
    finally:
        os.lseek(descriptor, at, os.SEEK_SET)


def is_blank(text: str) -> bool:
    """Return True for text of only white space, format characters (Cf) such as U+200B, and control characters."""
    return all(character.isspace() or unicodedata.category(character) in ("Cf", "Cc") for character in text)
