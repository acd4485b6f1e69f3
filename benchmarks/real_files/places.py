"""Places where the product reads a file of lines or a table with both sides."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.hostile.processes import Command, Limits
from benchmarks.real_files import attempts
from benchmarks.real_files.attempts import FileAttempt, Pair
from benchmarks.real_files.sentences import BY_CHARACTER, LANGUAGES, draw
from benchmarks.real_files.world import LINES, PHRASES, PREFIXES, FileWorld, write_sides

SPLITS = ("train", "valid", "test")
PLACES = (*SPLITS, "input", "stdin", "hypotheses", "references", "scored")
CODES = tuple(code for code in LANGUAGES if code != "en")
LIMITS = Limits(cpu=60, wall=150)


@dataclasses.dataclass(frozen=True)
class LineFile:
    """A file of lines.

    Args:
        data: Its bytes.
        lines: The lines that a careful user expects; None if the file cannot be read.
        suffix: Suffix of its name.
    """

    what: str
    data: bytes
    lines: Sequence[str] | None
    suffix: str = ""
    allowed: str = "right"
    says: str = ""


@dataclasses.dataclass(frozen=True)
class TableFile:
    """A file with both sides; for the arguments see `LineFile`."""

    what: str
    name: str
    data: bytes
    pairs: Sequence[Pair] | None
    words: tuple[str, ...] = ()
    allowed: str = "right"
    says: str = ""


LineKind = Callable[[random.Random, list[str], str], LineFile]
TableKind = Callable[[random.Random, list[Pair], tuple[str, str]], TableFile]


def read_lines(
    rng: random.Random,
    world: FileWorld,
    work: Path,
    kind: LineKind,
    *,
    places: Sequence[str],
    codes: Sequence[str],
    both: float,
) -> FileAttempt:
    """Draw a place and a language, and let the command read a file of this kind there."""
    place = rng.choice(places)
    if place in SPLITS:
        return _side(rng, world, work, kind, place, rng.choice(codes), both)
    if place in ("prefixes", "phrases"):
        return _constraints(rng, world, work, kind, place)
    if place in ("input", "stdin"):
        return _input(rng, world, work, kind, place, rng.choice(codes))
    if place == "scored":
        return _scored(rng, world, work, kind)
    return _score(rng, work, kind, place, rng.choice(codes))


def corpus(rng: random.Random, work: Path, code: str, split: str, count: int = 0) -> tuple[list[Pair], tuple[str, str]]:
    """Write plain files of all splits; return the pairs of `split`, which the caller overwrites, and the languages."""
    sizes = {"train": 40, "valid": LINES, "test": LINES, **({split: count} if count else {})}
    pairs = draw(rng, code, sum(sizes.values()))
    languages = (code, "en")
    if rng.random() < 0.5:
        pairs = [(target, source) for source, target in pairs]
        languages = ("en", code)
    found: list[Pair] = []
    for name in SPLITS:
        part = [pairs.pop() for _ in range(sizes[name])]
        write_sides(work, name, part, languages)
        found = part if name == split else found
    return found, languages


def prepare(world: FileWorld, languages: Sequence[str], *words: str) -> Command:
    """Return the command that prepares the files train, valid and test, or the files in `words`."""
    base = ("data=files", f"data.src={languages[0]}", f"data.tgt={languages[1]}")
    base += tuple(f"data.{split}={split}" for split in SPLITS if not any(w.startswith(f"data.{split}=") for w in words))
    lengths = ("data.clean.length_ratio=null", "data.clean.max_length=null")
    return Command(
        "seq2seq.prepare", (*base, *lengths, *words, f"tokenizer.model={world.tokenizer}", "cache=cache"), limits=LIMITS
    )


def _side(
    rng: random.Random, world: FileWorld, work: Path, kind: LineKind, split: str, code: str, both: float
) -> FileAttempt:
    pairs, languages = corpus(rng, work, code, split)
    side, seed = languages.index(code), rng.random()
    texts = {code: kind(random.Random(seed), [pair[side] for pair in pairs], code)}
    # Often the same program writes both sides
    if rng.random() < both:
        texts["en"] = kind(random.Random(seed), [pair[1 - side] for pair in pairs], "en")
    names = {language: f"{split}.{language}" for language in languages}
    for language, text in texts.items():
        (work / names[language]).unlink()
        names[language] += text.suffix
        (work / names[language]).write_bytes(text.data)
    text = texts[code]
    forms = [f"[{','.join(names[language] for language in languages)}]", str(names).replace("'", "")]
    if text.suffix in ("", ".gz", ".xz", ".zst"):
        forms.append(split)
    columns = [texts[code].lines if code in texts else None for code in languages]
    columns = [[pair[i] for pair in pairs] if languages[i] not in texts else columns[i] for i in (0, 1)]
    expected = None if None in columns else list(zip(*columns, strict=True))
    return FileAttempt(
        what=f"{text.what}, {split}.{'+'.join(texts)}",
        command=prepare(world, languages, f"data.{split}={rng.choice(forms)}"),
        right=None if expected is None else attempts.prepared(work, split, expected),
        allowed=text.allowed,
        says=text.says,
        files=(*names.values(), "data."),
    )


def _input(rng: random.Random, world: FileWorld, work: Path, kind: LineKind, place: str, code: str) -> FileAttempt:
    lines = [source for source, _ in draw(rng, code, LINES)]
    text = kind(rng, lines, code)
    name = f"input.{code}{text.suffix}"
    (work / name).write_bytes(text.data)
    words = ("--input", name) if place == "input" else ()
    known = [("" if attempts.is_blank(line) else world.known.get(line)) for line in text.lines or ()]
    return FileAttempt(
        what=f"{text.what}, translate {place} {code}",
        command=translate(world, *words, stdin=b"" if words else text.data),
        right=None if text.lines is None else attempts.translated(known),
        allowed=text.allowed,
        says=text.says,
        files=(name, "input", "line"),
    )


def translate(world: FileWorld, *words: str, stdin: bytes = b"") -> Command:
    """Return the command that translates with the world's checkpoint."""
    return Command("seq2seq.translate", ("--ckpt", str(world.ckpt), *words), stdin=stdin, limits=LIMITS)


def _constraints(rng: random.Random, world: FileWorld, work: Path, kind: LineKind, place: str) -> FileAttempt:
    values: list[str] = list(PREFIXES if place == "prefixes" else PHRASES)
    text = kind(rng, values, "de")
    name = f"{place}.en{text.suffix}"
    (work / name).write_bytes(text.data)
    known = world.prefixed if place == "prefixes" else world.phrased
    stdin = "".join(f"{line}\n" for line in world.lines).encode()
    return FileAttempt(
        what=f"{text.what}, --{place}",
        command=translate(world, f"--{place}", name, stdin=stdin),
        right=attempts.translated(known) if text.lines == values else None,
        allowed=text.allowed,
        says=text.says,
        files=(name, f"--{place}"),
    )


def spoil(rng: random.Random, line: str, code: str) -> str:
    """Sometimes leave out a word or a character, like a translation with a mistake."""
    parts = list(line) if code in BY_CHARACTER else line.split(" ")
    if len(parts) > 3 and rng.random() < 0.7:
        del parts[rng.randrange(1, len(parts) - 1)]
    return ("" if code in BY_CHARACTER else " ").join(parts)


def _score(rng: random.Random, work: Path, kind: LineKind, place: str, code: str) -> FileAttempt:
    references = [source for source, _ in draw(rng, code, LINES)]
    lines = {"hypotheses": [spoil(rng, line, code) for line in references], "references": references}
    role = "hypotheses" if place == "hypotheses" or place == "stdin" else place
    text = kind(rng, lines[role], code)
    names = {each: f"{each}.{code}" for each in lines}
    names[role] += text.suffix
    for each, name in names.items():
        data = text.data if each == role else "".join(f"{line}\n" for line in lines[each]).encode()
        (work / name).write_bytes(data)
    right = None
    tokenize = "char" if code in BY_CHARACTER else "13a"
    if text.lines is not None:
        lines[role] = list(text.lines)
        right = attempts.scored(lines["hypotheses"], lines["references"], tokenize)
    return FileAttempt(
        what=f"{text.what}, score {role} {code}",
        command=score(names["hypotheses"], names["references"], "--tokenize", tokenize),
        right=right,
        allowed=text.allowed,
        says=text.says,
        files=(names[role],),
    )


def score(hypotheses: str, references: str, *words: str) -> Command:
    """Return the command that scores two files."""
    files = ("--hypotheses", hypotheses, "--references", references, "--metrics", "bleu", "--json")
    return Command("seq2seq.score", (*files, *words), limits=LIMITS)


def score_data(world: FileWorld, *words: str) -> Command:
    """Return the command that scores the world's checkpoint on files."""
    words = ("--ckpt", str(world.ckpt), "--metrics", "chrf", "--json", "--cache", "cache", "--data", "files", *words)
    return Command("seq2seq.score", words, limits=LIMITS)


def _scored(rng: random.Random, world: FileWorld, work: Path, kind: LineKind) -> FileAttempt:
    pairs = draw(rng, "de", LINES)
    code = rng.choice(("de", "de", "en"))
    side = ("de", "en").index(code)
    text = kind(rng, [pair[side] for pair in pairs], code)
    write_sides(work, "test", pairs, ("de", "en"))
    (work / f"test.{code}").unlink()
    names = {"de": "test.de", "en": "test.en"}
    names[code] += text.suffix
    (work / names[code]).write_bytes(text.data)
    columns = [list(column) for column in zip(*pairs, strict=True)]
    right = None
    if text.lines is not None:
        columns[side] = list(text.lines)
        right = known_score(world, list(zip(*columns, strict=True)))
    return FileAttempt(
        what=f"{text.what}, score --data test.{code}",
        command=score_data(world, f"test=[{names['de']},{names['en']}]"),
        right=right,
        allowed=text.allowed,
        says=text.says,
        files=(names[code], "data."),
    )


def known_score(world: FileWorld, pairs: Sequence[Pair]) -> Callable[..., str]:
    """Check the score of the known translations of these pairs."""
    known = ["" if attempts.is_blank(source) else world.known.get(source) for source, _ in pairs]
    return attempts.scored_data(known, [target for _, target in pairs])


def read_table(rng: random.Random, world: FileWorld, work: Path, kind: TableKind) -> FileAttempt:
    """Let a command read a table of this kind, as one of the splits or as the data to score."""
    split = rng.choice((*SPLITS, "scored"))
    if split == "scored":
        pairs, languages = draw(rng, "de", LINES), ("de", "en")
    else:
        pairs, languages = corpus(rng, work, rng.choice(CODES), split)
    table = kind(rng, pairs, languages)
    (work / table.name).write_bytes(table.data)
    right: Callable[..., str] | None = None
    if split == "scored":
        command = score_data(world, f"test={table.name}", *(word.removeprefix("data.") for word in table.words))
        right = known_score(world, table.pairs) if table.pairs is not None else None
    else:
        for side in languages:
            (work / f"{split}.{side}").unlink()
        command = prepare(world, languages, f"data.{split}={table.name}", *table.words)
        right = attempts.prepared(work, split, table.pairs) if table.pairs is not None else None
    what = f"{table.what}, {split} {'-'.join(languages)}"
    return FileAttempt(what, command, right, table.allowed, table.says, (table.name, "data."))


def plain(what: str, rows: Sequence[str], **changes: object) -> LineFile:
    """Return a text in UTF-8 with a line end after each line."""
    data = "".join(f"{row}\n" for row in rows).encode()
    return dataclasses.replace(LineFile(what, data, rows), **changes)  # type: ignore[arg-type]
