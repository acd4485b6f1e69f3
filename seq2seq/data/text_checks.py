"""Checks of raw text: encoding, shifted or swapped sides, tokenized text, scripts and Unicode forms."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from seq2seq.data.cleaning import Pairs, shorten
from seq2seq.data.languages import primary_subtag
from seq2seq.data.text_files import is_blank, warn_once

# Characters of a text. A tokenizer needs 200 bytes for each, and a sentence has some hundred.
LONGEST_TEXT = 1 << 22

# For each script: the languages that are written in it, the most common first, and its characters.
SCRIPTS = {
    "Han": ("zh ja yue wuu lzh nan hak gan hsn", "[\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]"),
    "kana": ("ja", "[\u3040-\u30ff\uff66-\uff9f]"),
    "Hangul": ("ko", "[\u1100-\u11ff\uac00-\ud7af]"),
    "Thai": ("th", "[\u0e01-\u0e5b]"),
    "Lao": ("lo", "[\u0e81-\u0edf]"),
    "Tibetan": ("bo dz", "[\u0f00-\u0fff]"),
    "Burmese": ("my", "[\u1000-\u109f]"),
    "Khmer": ("km", "[\u1780-\u17ff]"),
    "Cyrillic": ("ru uk bg sr mk be kk", "[\u0400-\u04ff]"),
    "Arabic": ("ar fa ur ps", "[\u0600-\u06ff]"),
    "Greek": ("el", "[\u0370-\u03ff]"),
    "Hebrew": ("he yi", "[\u0590-\u05ff]"),
    "Devanagari": ("hi ne mr", "[\u0900-\u097f]"),
}
# Scripts for which BLEU's tokenizer 13a is wrong: the first eight.
_OWN_TOKENIZER = tuple(SCRIPTS)[:8]
# Share of letters above which a text counts as written in one of these scripts. Names and quotations stay below it.
_SCRIPT_SHARE = 0.3

# Frequent words by language. Related languages share some, so both sides are compared.
_FUNCTION_WORDS = {
    "de": "der die das und ist nicht ich du er wir ein eine zu mit auf den dem",
    "en": "the and is not i you he we a an to with on of was that it",
    "fr": "le la les et est pas je tu il nous un une des du que dans",
    "es": "el los las y es no yo que un una de en se por con su",
    "it": "il lo gli e è non io che un una di in si per con sono",
    "nl": "de het en is niet ik jij hij wij een te met op van dat er",
    "pt": "o os as e é não eu que um uma de em se por com ele",
    "ro": "și este nu eu un o în la cu pe care de să din al a",
    "cs": "a je ne já ty on my na se že v s z to by jsem",
    "pl": "i jest nie ja ty on my na się że w z do to był jak",
}
# Fewest pairs by which swapped sides are recognized.
_FEWEST_FOR_SWAP = 8

# Signs of text that people do not write: a pattern, the share of lines from which it counts, its description and a
# remedy. Raw corpora have pieces in 0.01% of lines, entities in 0.5%, and a period after a space in 0.5%.
_PIECES = "the text is in pieces of a tokenizer: join them"
_TOKENS = "the text is tokenized: detokenize it, as sacremoses does"
_MARKS = (
    (re.compile("@@(?: |$)"), 0.01, "have '@@ '", f"{_PIECES}, as sed -r 's/@@( |$)//g' does"),
    (re.compile("▁"), 0.01, "have '▁'", f"{_PIECES}, as sed 's/ //g; s/▁/ /g' does"),
    (re.compile("<0x[0-9A-F]{2}>"), 0.01, "have bytes such as '<0x41>'", f"{_PIECES} by the tokenizer itself"),
    (re.compile(r"(?:^| )##\w|￭"), 0.01, "have '##' or '￭' within words", f"{_PIECES}, as their tokenizer does"),
    (re.compile(r"&(?:apos|quot|amp|lt|gt|#91|#93|#124);"), 0.1, "have entities such as '&apos;'", _TOKENS),
    (re.compile(r" @[-,.:/]@ "), 0.1, "have '@-@'", _TOKENS),
    (re.compile(r"\S \.$"), 0.1, "end in ' .'", _TOKENS),
)
# Number of lines from which a sign counts at any share: sacreBLEU's own limit.
_ANYWAY = 100

# Pairs in a window whose lengths are compared, the fewest that show a shift, and the shifts that are tried.
_WINDOW = 100
_FEWEST_FOR_SHIFT = 40
_SHIFTS = [shift for size in range(1, 11) for shift in (size, -size)]
# Least correlation of lengths after a shift, and its least gain over no shift. In 980,000 aligned pairs of captions,
# news, debates, manuals and short sentences, no shift of 100 pairs gained more than 0.2.
_FITS = 0.5
_BETTER = 0.3


def checked(
    blocks: Iterable[Pairs],
    sides: Sequence[str],
    *,
    unit: str,
    training: bool,
    warn: Callable[[str], None] = warn_once,
) -> Iterator[Pairs]:
    """Yield blocks of pairs unchanged; warn once of another encoding, of other line ends, and of a shift.

    Every text of a corpus passes here, whatever its format.

    Args:
        sides: Names of source and target in messages.
        unit: What holds one side of a pair: a line, or a row of a table.
        training: Ignore a few lines of another encoding, which cleaning counts.
        warn: Called with each warning.

    Raises:
        ValueError: Much of validation or test text is not UTF-8, or a text is longer than `LONGEST_TEXT`.
    """
    first = 1
    # Faults that have not been reported yet: one for each side, and a shift
    pending = {*sides, "shift"}
    for block in blocks:
        for name, lines in zip(sides, block, strict=True):
            longest = max(lines, key=len, default="")
            if len(longest) > LONGEST_TEXT:
                raise ValueError(
                    f"{name}: {unit} {first + lines.index(longest):,} has {len(longest):,} characters, more than "
                    f"{LONGEST_TEXT:,}: cut it into sentences, or leave it out"
                )
            fault, many = encoding_fault(lines, f"{name}: {unit}", first=first)
            if many and not training:
                raise ValueError(fault)
            if not fault or (training and not many):
                fault = lone_returns(lines, f"{name}: {unit}", first=first)
            if fault and name in pending:
                pending.discard(name)
                warn(fault)
        if "shift" in pending and (shift := find_shift(*block, first=first)):
            pending.discard("shift")
            warn(f"{sides[0]} and {sides[1]}: {shift}")
        first += len(block[0])
        yield block


def lone_returns(lines: Sequence[str], where: str, *, first: int = 1) -> str:
    """Describe carriage returns in more than half of the lines, where they may be line ends; "" for fewer."""
    found = [number for number, line in enumerate(lines, first) if "\r" in line]
    if len(found) <= 0.5 * len(lines):
        return ""
    return (
        f"{where} {found[0]:,} contains carriage returns, as do {len(found):,} of {len(lines):,}; lines end at \\n: if "
        "these are line ends, convert the file, as in tr '\\r' '\\n' < <file> > <new file>"
    )


def encoding_fault(lines: Sequence[str], where: str, *, first: int = 1) -> tuple[str, bool]:
    """Describe the lines that hold U+FFFD, which replaces bytes that are not UTF-8.

    Returns:
        The description, "" without such lines; and True if there are so many that the file is in another encoding.
    """
    invalid = [number for number, line in enumerate(lines, first) if "\ufffd" in line]
    if not invalid:
        return "", False
    many = len(invalid) > max(10, len(lines) / 10)
    remedy = "; convert the file, as in iconv -f LATIN1 -t UTF-8 <file> > <new file>" if many else ""
    return f"{where} {invalid[0]:,} is not UTF-8, or has U+FFFD, as {len(invalid):,} of {len(lines):,} do{remedy}", many


def find_shift(src: Sequence[str], tgt: Sequence[str], *, first: int = 1) -> str:
    """Describe a shift of one side by up to 10 lines after which lengths correlate clearly better; "" without one."""
    size = min(len(src), len(tgt))
    margin = max(_SHIFTS)
    width = min(_WINDOW, size - 2 * margin)
    if width < _FEWEST_FOR_SHIFT:
        return ""
    src_lengths, tgt_lengths = (np.log1p([len(line) for line in side[:size]]) for side in (src, tgt))
    starts = np.append(np.arange(margin, size - margin - width + 1, width), size - margin - width)  # (count,)

    def windows(side: np.ndarray, shift: int) -> np.ndarray:
        """Return windows of lengths, centered and of norm 1, (count, width)."""
        rows = side[shift + starts[:, None] + np.arange(width)]
        rows = rows - rows.mean(1, keepdims=True)
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)

    source = windows(src_lengths, 0)
    aligned = (source * windows(tgt_lengths, 0)).sum(1)  # (count,)
    shifted = np.stack([(source * windows(tgt_lengths, shift)).sum(1) for shift in _SHIFTS])  # (shifts, count)
    found = np.flatnonzero((shifted.max(0) > _FITS) & (shifted.max(0) - aligned > _BETTER))
    if not found.size:
        return ""
    window = int(found[0])
    best = int(shifted[:, window].argmax())
    shift = _SHIFTS[best]
    start = max(0, int(starts[window]) - margin - width)
    begin = first + _shift_start(src_lengths, tgt_lengths, shift, start, int(starts[window]) + width)
    side, other = ("second", "first") if shift > 0 else ("first", "second")
    lines = "1 line" if abs(shift) == 1 else f"{abs(shift)} lines"
    return (
        f"from about line {begin:,} on, the {side} seems to be {lines} behind the {other} (there, lengths correlate at "
        f"{aligned[window]:.2f}, and at {shifted[best, window]:.2f} if it is moved): is a line missing "
        "or one too many?"
    )


def _shift_start(src: np.ndarray, tgt: np.ndarray, shift: int, start: int, end: int) -> int:
    """Find the line from `start` to `end` at which a shift begins to fit the lengths better than no shift."""
    rows = np.arange(max(start, -shift), min(end, len(src) - max(shift, 0)))
    if not len(rows):
        return start
    offset = np.median(tgt - src)
    aligned, shifted = ((tgt[rows + by] - src[rows] - offset) ** 2 for by in (0, shift))
    # The cost of a shift that begins at each place: aligned lines before it, shifted ones after it
    costs = np.concatenate([[0.0], np.cumsum(aligned)]) + np.concatenate([np.cumsum(shifted[::-1])[::-1], [0.0]])
    return int(rows[0] + costs.argmin())


def script_language(lines: Sequence[str]) -> str | None:
    """Return the language of the main script of a text if BLEU's tokenizer 13a is wrong for it, else None.

    Chinese characters without kana mean zh; Hangul means ko, which has spaces.
    """
    text = "".join(lines)
    counts = {name: len(re.findall(SCRIPTS[name][1], text)) for name in _OWN_TOKENIZER}
    # Japanese is written in both
    if counts["kana"] > 0.05 * counts["Han"]:
        counts["kana"] += counts["Han"]
    name = max(counts, key=lambda each: counts[each])
    letters = sum(map(str.isalpha, text))
    return SCRIPTS[name][0].split()[0] if counts[name] > _SCRIPT_SHARE * letters else None


def tokenization_marks(lines: Sequence[str]) -> str | None:
    """Describe the first sign of tokens or pieces, the lines that have it, and a remedy; None for raw text."""
    written = [(number, line) for number, line in enumerate(lines, 1) if not is_blank(line)]
    for pattern, share, what, remedy in _MARKS:
        found = [number for number, line in written if pattern.search(line.rstrip())]
        if found and len(found) >= min(_ANYWAY, share * len(written)):
            return f"{len(found):,} of {len(lines):,} lines {what} (first: line {found[0]:,}): {remedy}"
    return None


def warn_of_tokens(sample: Pairs, name: str) -> None:
    """Warn, once, if a sample of a corpus's pairs is tokenized or in pieces."""
    for side, lines in zip(("source", "target"), sample, strict=True):
        if marks := tokenization_marks(lines):
            warn_once(
                f"{name}: in a sample of the {side} side, {marks}; the model would learn to write this text and be "
                "scored on it"
            )
            return


def form_difference(one: Sequence[str], other: Sequence[str]) -> str | None:
    """Describe the first Unicode form that only one of two texts is in, with both counts of lines, or return None."""
    for what, has in (
        ("decomposed characters (not NFC)", lambda line: not unicodedata.is_normalized("NFC", line)),
        ("full-width letters, digits or signs (NFKC has none)", re.compile("[\uff01-\uff5e]").search),
        ("half-width kana (NFKC has none)", re.compile("[\uff66-\uff9f]").search),
    ):
        counts = [sum(map(bool, map(has, lines))) for lines in (one, other)]
        # A bad translation may leave some of these characters out, which does not mean another form
        if max(counts) >= max(1, 0.02 * len(one)) and 5 * min(counts) < max(counts):
            return f"{counts[0]:,} against {counts[1]:,} lines with {what}"
    return None


def refuse_swapped(sample: Pairs, *, src: str, tgt: str, where: str = "data.train") -> None:
    """Raise ValueError if the sides of a sample are swapped; warn if a language is unknown here."""
    if len(sample[0]) < _FEWEST_FOR_SWAP or not looks_swapped(*sample, src=src, tgt=tgt):
        return
    message = (
        f"{where}: source and target look swapped: the source side ({src}) reads like {tgt} "
        f"({shorten(sample[0][0])!r}); exchange data.src and data.tgt, or the files"
    )
    known = {*_FUNCTION_WORDS, *(language for languages, _ in SCRIPTS.values() for language in languages.split())}
    if known.issuperset(map(primary_subtag, (src, tgt))):
        raise ValueError(message)
    # Labels, for example, are in no language; one warning is enough
    if where == "data.train":
        warn_once(f"{message}, unless this is intended")


def looks_swapped(src_lines: Sequence[str], tgt_lines: Sequence[str], *, src: str, tgt: str) -> bool:
    """Return True if the text of each side looks more like the other side's language."""
    src, tgt = primary_subtag(src), primary_subtag(tgt)
    # How much better the other side's text fits the language of this side
    src_gap = _language_share(tgt_lines, src) - _language_share(src_lines, src)
    tgt_gap = _language_share(src_lines, tgt) - _language_share(tgt_lines, tgt)
    # Neither side may disagree (an unknown language gives 0), and the sum must be clear
    return min(src_gap, tgt_gap) >= -0.01 and src_gap + tgt_gap > 0.08


def _language_share(lines: Sequence[str], language: str) -> float:
    """Compute the share of characters in the language's scripts, or else of words that are its function words."""
    text = "\n".join(lines).lower()
    # Japanese has several scripts
    patterns = [pattern for languages, pattern in SCRIPTS.values() if language in languages.split()]
    if patterns:
        return len(re.findall("|".join(patterns), text)) / max(1, len(text))
    words = re.findall(r"[^\W\d_]+", text)
    known = set(_FUNCTION_WORDS.get(language, "").split())
    return sum(word in known for word in words) / max(1, len(words))
