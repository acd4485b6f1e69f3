"""Malformed lines for `hostile` and the tests: empty, broken UTF-8, odd scripts, very long."""

from __future__ import annotations

import random
from collections.abc import Callable

WORDS = ["der", "Hund", "geht", "nach", "Hause", "und", "die", "Katze", "kommt", "heute", "nicht", "ich", "sehe", "12"]
SCRIPTS = [(0x4E00, 0x9FFF), (0x0600, 0x06FF), (0x0900, 0x097F), (0x0400, 0x04FF), (0x10A0, 0x10FF), (0xAC00, 0xD7A3)]
EMOJI = ["\U0001f600", "\U0001f468‍\U0001f469‍\U0001f467", "\U0001f1e9\U0001f1ea", "❤️", "\U0001f3f4\U000e0067"]
INNER_BREAKS = ["\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
INVISIBLE = ["\u200b", "\u200d", "\u202e", "\ufeff", "\u00ad", "\u2060", "\x00", "\x01", "\x1b[31m", "\x7f", "\ufffe"]
MARKUP = ["<s>", "</s>", "<pad>", "<unk>", "<0x0A>", "▁", "▁▁", "&amp;", "<b>", "@@", "\\n", "%s", "{}", "\t", '"']


def sentence(rng: random.Random) -> str:
    """Draw one to twenty words of the corpus."""
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 20)))


def _mixed(rng: random.Random, strange: list[str]) -> str:
    parts = rng.choices(WORDS, k=rng.randint(0, 6)) + rng.choices(strange, k=rng.randint(1, 4))
    rng.shuffle(parts)
    return rng.choice(["", " "]).join(parts)


def _script(rng: random.Random) -> str:
    low, high = rng.choice(SCRIPTS)
    return "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 60)))


def _invalid(rng: random.Random) -> bytes:
    bad = rng.choice(
        [b"\xff\xfe", b"\xc3", b"\xe2\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\xaf", rng.randbytes(9)]
    )
    return (sentence(rng).encode() + bad + sentence(rng).encode()).replace(b"\n", b"")


def _long(rng: random.Random, size: int) -> str:
    kind = rng.randrange(4)
    if kind == 0:
        return rng.choice("xä漢\u200b") * size
    if kind == 1:
        return (" ".join(rng.choices(WORDS, k=size // 3)))[:size]
    return "".join(rng.choices("ab c.,\u4e00\U0001f600", k=size)) if kind == 2 else "a" + " " * (size - 2) + "b"


# One function for each source of trouble: empty and blank lines, odd scripts, broken UTF-8.
MAKERS: list[Callable[[random.Random], str | bytes]] = [
    sentence,
    lambda rng: "",
    lambda rng: rng.choice([" ", "\t", "\u00a0", "\u3000", "\u2028", "\r", "\v\f"]) * rng.randint(1, 9),
    lambda rng: _mixed(rng, EMOJI),
    lambda rng: _mixed(rng, INNER_BREAKS),
    lambda rng: _mixed(rng, INVISIBLE),
    lambda rng: _mixed(rng, MARKUP),
    _script,
    lambda rng: sentence(rng) + "\r",
    _invalid,
    lambda rng: rng.randbytes(rng.randint(1, 80)).replace(b"\n", b"\r"),
    lambda rng: "a\u0301\u0302\u0323" * rng.randint(1, 40),
    lambda rng: "".join(chr(rng.choice([rng.randint(1, 0xD7FF), rng.randint(0xE000, 0x10FFFF)])) for _ in range(30)),
]


def nasty_lines(count: int, seed: int, *, long_lines: int = 4, long_size: int = 100_000) -> list[bytes]:
    """Draw `count` lines of all makers, without line ends; `long_lines` of them have `long_size` characters."""
    rng = random.Random(seed)
    lines = [rng.choice(MAKERS)(rng) for _ in range(count)]
    for place in rng.sample(range(count), min(long_lines, count)):
        lines[place] = _long(rng, long_size)
    # "surrogatepass" keeps halves of surrogate pairs, which are wanted here although they are not valid UTF-8
    raw = [line if isinstance(line, bytes) else line.encode("utf-8", "surrogatepass") for line in lines]
    return [line.replace(b"\n", b" ") for line in raw]


def text(lines: list[bytes], *, final_newline: bool) -> bytes:
    """Join the lines into a file; without a final newline an empty last line would be lost, so it gets a word."""
    if not final_newline and not lines[-1]:
        lines[-1] = b"end"
    return b"\n".join(lines) + (b"\n" if final_newline else b"")
