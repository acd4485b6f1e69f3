"""Files that do not fit each other, or that scoring would misread: counts, shifts, sides, codes, pieces."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import re
import unicodedata
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from benchmarks.hostile.processes import Command, Done
from benchmarks.hostile.world import RUN
from benchmarks.real_files import attempts
from benchmarks.real_files.attempts import FileAttempt
from benchmarks.real_files.lines import PACKERS
from benchmarks.real_files.places import CODES, LIMITS, SPLITS, corpus, prepare, score, score_data, spoil, translate
from benchmarks.real_files.sentences import UNSPACED, draw, phrasebook
from benchmarks.real_files.world import LINES, SIZES, FileWorld, write_sides

Kind = Callable[[random.Random, FileWorld, Path], FileAttempt]
KINDS: dict[str, Kind] = {}
SEGMENTED = r"@@|▁|pieces|segment|tokeni[sz]ed|detokeni[sz]e|entit|&\w+;|subword|BPE"


def kind(name: str) -> Callable[[Kind], Kind]:
    """Register a kind of attempt."""

    def register(function: Kind) -> Kind:
        KINDS[name] = function
        return function

    return register


def _write(path: Path, lines: list[str]) -> None:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())


@kind("unequal lengths")
def _unequal(rng: random.Random, world: FileWorld, work: Path) -> FileAttempt:
    split = rng.choice(SPLITS)
    pairs, languages = corpus(rng, work, rng.choice(CODES), split)
    side = rng.choice((0, 1))
    lines = [pair[side] for pair in pairs]
    place = rng.choice((0, 6, len(lines) - 1))
    what, changed = rng.choice((
        ("one line less", [*lines[:place], *lines[place + 1 :]]), ("half", lines[: len(lines) // 2]),
        ("one line more", [*lines[:place], "x", *lines[place:]]), ("none", []),
    ))  # fmt: skip
    name = f"{split}.{languages[side]}"
    _write(work / name, changed)
    return FileAttempt(
        f"{what}, {name}",
        prepare(world, languages),
        None,
        "refused",
        r"\d+ lines|empty|no (lines|pairs)",
        (name, "data."),
    )


def _shift(rng: random.Random, world: FileWorld, work: Path, first: float) -> FileAttempt:
    pairs, languages = corpus(rng, work, rng.choice(CODES), "train", 300)
    start, by = int(first * len(pairs)), rng.choice((1, 1, 1, 2))
    side = rng.choice((0, 1))
    lines = [pair[side] for pair in pairs]
    lines = [*lines[:start], *lines[start + by :], *lines[start : start + by]]
    _write(work / f"train.{languages[side]}", lines)
    what = f"train.{languages[side]} shifted by {by} from line {start + 1} of 300, {'-'.join(languages)}"
    says = r"shift|behind|off by|misalign|not aligned|lines? (up|down|apart|early|late)|fits? better"
    return FileAttempt(what, prepare(world, languages), None, "refused warned", says, ("train", "data.train"))


@kind("shift from the start")
def _shift_all(rng: random.Random, world: FileWorld, work: Path) -> FileAttempt:
    return _shift(rng, world, work, 0)


@kind("shift from the middle")
def _shift_half(rng: random.Random, world: FileWorld, work: Path) -> FileAttempt:
    return _shift(rng, world, work, rng.uniform(0.25, 0.6))


@kind("exchanged sides")
def _swapped(rng: random.Random, world: FileWorld, work: Path) -> FileAttempt:
    says = "swapped|exchange"
    if rng.random() < 0.25:
        write_sides(work, "test", draw(rng, "de", LINES), ("en", "de"))
        return FileAttempt("score --data", score_data(world, "test=test"), None, "refused warned", says, ("test",))
    split = rng.choice(("train", "train", "valid", "test"))
    pairs, languages = corpus(rng, work, rng.choice(CODES), split)
    write_sides(work, split, pairs, languages[::-1])
    what = f"{split}, {'-'.join(languages)}"
    return FileAttempt(what, prepare(world, languages), None, "refused warned", says, (split, "source", "data."))


@kind("language of a score")
def _language(rng: random.Random, world: FileWorld, work: Path) -> FileAttempt:
    code = rng.choice(("zh", "zh", "zh", "ja", "th", "ko"))
    wrong = {
        "zh": ("cn", "zht", "zhs", "chinese", "nan", "zh-TW"),
        "ja": ("jp", "jap"),
        "th": ("thai", "tha"),
        "ko": ("kr",),
    }
    references = [source for source, _ in draw(rng, code, LINES)]
    hypotheses = [spoil(rng, line, code) for line in references]
    given = rng.choice((None, None, *wrong[code]))
    suffix = rng.choice((code, "txt", *wrong[code])) if given is None else code
    names = (f"out.{suffix}", f"test.{suffix}")
    for name, lines in zip(names, (hypotheses, references), strict=True):
        _write(work / name, lines)
    tokenize = {"zh": "zh", "th": "char"}.get(code)
    right = attempts.scored(hypotheses, references, tokenize) if tokenize else None
    if code == "ko" and given is None:
        # Korean has spaces: without a language, 13a is the default
        right = attempts.scored(hypotheses, references, "13a")
    words = ("--lang", given) if given else ()
    return FileAttempt(
        f"{code}, --lang {given}, {names[1]}", score(*names, *words), right, "right refused warned",
        r"lang|tokeni[sz]e|mecab|13a", (given or "--lang", *names, "--tokenize"),
    )  # fmt: skip


@kind("language of a run")
def _trained(rng: random.Random, world: FileWorld, work: Path) -> FileAttempt:
    code, wrong = rng.choice((("zh", "cn"), ("zh", "zht"), ("ja", "jp"), ("zh", "chinese"), ("ko", "kr")))
    pairs = draw(rng, code, 64)
    parts = {"train": pairs[:40], "valid": pairs[40:52], "test": pairs[52:]}
    for split, part in parts.items():
        write_sides(work, split, [(target, source) for source, target in part], ("en", wrong))
    words = ("data=files", "data.src=en", f"data.tgt={wrong}", *(f"data.{split}={split}" for split in SPLITS))
    short = ("trainer.max_steps=2", "trainer.val_steps=2", f"tokenizer.model={world.tokenizer}", "run=x", "cache=cache")
    sizes = [word for word in SIZES if "vocab_size" not in word]

    def right(_: Done) -> str:
        text = (work / "runs" / "x" / "results.json").read_text("utf-8")
        return "" if code == "zh" and "tok:zh" in text else "scored by 13a"

    command = Command("seq2seq.train", (*sizes, *words, *RUN, *short, "trainer.test=true"), limits=LIMITS)
    return FileAttempt(
        f"data.tgt={wrong}",
        command,
        right,
        "right refused warned",
        r"lang|tokeni[sz]e|mecab|13a|code",
        (wrong, "data.tgt"),
    )


def _segment(rng: random.Random, lines: list[str]) -> tuple[str, list[str]]:
    """Segment lines as preprocessing programs do."""
    what = rng.choice(("@@", "▁", "Moses"))
    if what == "@@":
        return what, [re.sub(r"(\w{3})(?=\w\w)", r"\1@@ ", line) for line in lines]
    if what == "▁":
        return what, ["▁" + re.sub(r"(\w{3})(?=\w\w)", r"\1 ", line.replace(" ", " ▁")) for line in lines]
    cut = [re.sub(r"([.,?!])", r" \1", line).replace("-", " @-@ ") for line in lines]
    return what, [f"&quot; {line} &quot; &apos;s" if i % 3 == 0 else line for i, line in enumerate(cut)]


def _moses(what: str, lines: list[str]) -> list[str]:
    """Return the text that `_segment` cuts."""
    return [f'"{line}" \'s' if i % 3 == 0 and what == "Moses" else line for i, line in enumerate(lines)]


@kind("segmented text, scored")
def _segmented(rng: random.Random, world: FileWorld, work: Path) -> FileAttempt:
    code = rng.choice(("de", "ru", "el"))
    references = [source for source, _ in draw(rng, code, LINES)]
    texts = {"hypotheses": [spoil(rng, line, code) for line in references], "references": references}
    where = rng.choice(("hypotheses", "references", "both"))
    seed = rng.random()
    for each in texts:
        what, cut = _segment(random.Random(seed), texts[each])
        texts[each] = _moses(what, texts[each])
        _write(work / each, cut if where in (each, "both") else texts[each])
    right = attempts.scored(texts["hypotheses"], texts["references"])
    return FileAttempt(f"{what} in {where}", score(*texts), right, "right refused warned", SEGMENTED, tuple(texts))


@kind("segmented text, prepared")
def _segmented_corpus(rng: random.Random, world: FileWorld, work: Path) -> FileAttempt:
    split = rng.choice(SPLITS)
    code = rng.choice(("de", "ru", "el"))
    pairs, languages = corpus(rng, work, code, split)
    both = rng.random() < 0.7
    seed = rng.random()
    for side in languages if both else (code,):
        what, cut = _segment(random.Random(seed), [pair[languages.index(side)] for pair in pairs])
        _write(work / f"{split}.{side}", cut)
    files = (f"{split}.{code}", f"{split}.en", "data.")
    return FileAttempt(f"{what}, {split}", prepare(world, languages), None, "refused warned", SEGMENTED, files)


@kind("NFD against NFC")
def _decomposed(rng: random.Random, world: FileWorld, work: Path) -> FileAttempt:
    code = rng.choice(("de", "el", "ru", "hi", "ko"))
    references = [source for source, _ in draw(rng, code, LINES)]
    hypotheses = [spoil(rng, line, code) for line in references]
    texts = {"hypotheses": hypotheses, "references": references}
    form = rng.choice(list(texts))
    _write(work / "hypotheses", hypotheses)
    _write(work / "references", references)
    _write(work / form, [unicodedata.normalize("NFD", line) for line in texts[form]])
    right = attempts.scored(hypotheses, references)
    says = r"NFC|NFD|normali[sz]|compos"
    return FileAttempt(f"{form} in NFD, {code}", score(*texts), right, "right refused warned", says, tuple(texts))


@kind("paragraphs")
def _paragraphs(rng: random.Random, world: FileWorld, work: Path) -> FileAttempt:
    code = rng.choice([code for code in CODES if code != "th"])
    sources = [source for source, _ in draw(rng, code, 3 * 3)]
    glue = "" if code in UNSPACED else " "
    lines = [glue.join(sources[i : i + 3]) for i in range(0, len(sources), 3)]
    expected = [
        "".join("".join(map(world.known.__getitem__, sources[i : i + 3])).split()) for i in range(0, len(sources), 3)
    ]

    def right(done: Done) -> str:
        return attempts.differs(expected, ["".join(line.split()) for line in done.out.decode().split("\n")[:-1]])

    stdin = "".join(f"{line}\n" for line in lines).encode()
    return FileAttempt(
        f"three sentences a line, {code}", translate(world, stdin=stdin), right, "right warned", "sentences|split"
    )


def unpacked(data: bytes, suffix: str) -> bytes:
    """Decompress a file by its suffix, as another program would."""
    if suffix == ".zip":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return archive.read(archive.namelist()[0])
    if suffix == ".zst":
        return pa.CompressedInputStream(pa.BufferReader(data), "zstd").read()
    return {".gz": gzip, ".xz": lzma, ".bz2": bz2}[suffix.lower()].decompress(data)


@kind("compressed output")
def _output(rng: random.Random, world: FileWorld, work: Path) -> FileAttempt:
    suffix = rng.choice((*PACKERS, ".zip", ".GZ"))
    lines = [source for source, _ in phrasebook()[:LINES]]
    name = f"out.en{suffix}"
    expected = "".join(f"{world.known[line]}\n" for line in lines).encode()

    def right(_: Done) -> str:
        data = (work / name).read_bytes()
        return "plain text" if data == expected else "" if unpacked(data, suffix) == expected else "other bytes"

    stdin = "".join(f"{line}\n" for line in lines).encode()
    command = translate(world, "--output", name, stdin=stdin)
    return FileAttempt(
        f"--output {name}", command, right, "right refused warned", r"compress|gzip|plain|\.gz", (name, "--output")
    )


@kind("direction of a checkpoint")
def _direction(rng: random.Random, world: FileWorld, work: Path) -> FileAttempt:
    source, target = rng.choice((("en", "de"), ("ru", "en"), ("de", "fr"), ("en", "zh")))
    pairs = draw(rng, target if source == "en" else source, 64)
    pairs = [(other, text) for text, other in pairs] if source == "en" else pairs
    for split, part in (("train", pairs[:40]), ("valid", pairs[40:52]), ("test", pairs[52:])):
        write_sides(work, split, part, (source, target))
    words = ("data=files", f"data.src={source}", f"data.tgt={target}", *(f"data.{split}={split}" for split in SPLITS))
    short = ("trainer.max_steps=2", "trainer.val_steps=2", f"init_from={world.ckpt}", "run=x", "cache=cache")
    command = Command("seq2seq.train", (*words, *RUN, *short), limits=LIMITS)
    says = r"de.?(-|to|→|->).?en|direction|translates"
    return FileAttempt(
        f"init_from a de-en model, {source}-{target}", command, None, "refused warned", says, ("init_from",)
    )
