"""Damaged corpora, in every format that is read, through prepare and train."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import random
from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import escape

from benchmarks.hostile.attempts import Attempt
from benchmarks.hostile.processes import Command
from benchmarks.hostile.world import RUN, SIZES, World, check_run

Pairs = list[dict[str, str]]
# Strange parts of a text.
STRANGE = (
    *("", " ", "\t", "\u00a0", "\r", "\x00", "\u2028", "\ufeff", "\U0001f600", "<s>", "</s>", "<unk>", "▁", "\x85"),
    *('"', '""', "'", ",", "\\", "\\n", "|", "<tu>", "&amp;", "&", "\u202e", "\u0301" * 50, "x" * 20_000, "a " * 5_000),
)


def draw(rng: random.Random, world: World, folder: Path) -> Attempt:
    """Draw a format, strange texts, a damage of the file, and the command that reads it."""
    work = folder / "work"
    lines = (world.root / "corpus" / "train.jsonl").read_text("utf-8").splitlines()
    pairs: Pairs = [json.loads(line)["translation"] for line in lines]
    what = []
    if rng.random() < 0.6:
        what.append(_texts(rng, pairs))
    suffix, write = rng.choice(list(FORMATS.items()))
    files = write(pairs, work)
    if rng.random() < 0.7:
        what.append(_bytes(rng, rng.choice(files)))
    packed = rng.choice(("", "", "", ".gz", ".xz"))
    if packed and suffix not in (".parquet",):
        files = [_pack(rng, path, packed) for path in files]
        suffix += packed
    module = rng.choice(("seq2seq.train", "seq2seq.prepare", "seq2seq.prepare"))
    split = rng.choice(("train", "train", "train", "valid"))
    words = [word for word in world.files if not word.startswith(f"data.{split}=")]
    place = "corpus" if len(files) == 2 else files[0].name
    words += [f"data.{split}={place}"]
    # A small corpus may hold out its validation text
    if split == "train" and rng.random() < 0.2:
        words = [word for word in words if not word.startswith("data.valid=")] + ["data.holdout=5"]
    return Attempt(
        what=f"{module.rpartition('.')[2]}: {split} {suffix}: {', '.join(what) or 'as it is'}",
        command=Command(module, (*SIZES, *words, *RUN, "cache=cache")),
        named=(
            *("corpus", "data.", place, "pairs", "vocab_size", "character", "tokenizer", "line", "piece", "sentence"),
            *("text", "train", "valid"),
        ),
        must="either" if what or packed else "work",
        check=(lambda _: check_run(work)) if module == "seq2seq.train" else lambda _: _check_cache(work),
    )


def _check_cache(work: Path) -> str:
    """Return the fault in the cache of a successful preparation, or ""."""
    found = list((work / "cache").glob("ids-*"))
    return "" if found and all(any(folder.iterdir()) for folder in found) else "nothing was prepared"


def _texts(rng: random.Random, pairs: Pairs) -> str:
    """Make some texts strange, or reduce, empty or equalize all of them."""
    kind = rng.choice(("strange", "strange", "strange", "few", "empty", "same", "copied", "one side empty", "long"))
    if kind == "strange":
        strange = rng.choice(STRANGE)
        for pair in rng.sample(pairs, rng.choice((1, 3, 100))):
            side = rng.choice(("de", "en"))
            pair[side] = rng.choice((strange, strange + pair[side], pair[side] + strange, pair[side][:5] + strange))
        return f"texts with {strange[:12]!r}"
    if kind == "few":
        del pairs[rng.choice((0, 1, 2, 5)) :]
    for pair in pairs:
        if kind == "empty":
            pair["de"] = pair["en"] = rng.choice(("", " "))
        elif kind == "same":
            pair.update(pairs[0])
        elif kind == "copied":
            pair["en"] = pair["de"]
        elif kind == "one side empty":
            pair["en"] = ""
        elif kind == "long":
            pair["de"] = " ".join([pair["de"]] * 100)
    return f"texts: {kind}"


def _bytes(rng: random.Random, path: Path) -> str:
    """Damage the bytes of a file, or replace it."""
    data = path.read_bytes()
    place = rng.randrange(len(data) + 1)
    makers: dict[str, Callable[[], bytes]] = {
        "cut off": lambda: data[:place],
        "empty": lambda: b"",
        "random bytes": lambda: rng.randbytes(2000),
        "random bytes inside": lambda: data[:place] + rng.randbytes(50) + data[place:],
        "invalid UTF-8 inside": lambda: data[:place] + b"\xff\xfe\xc3" + data[place:],
        "zeros inside": lambda: data[:place] + bytes(100) + data[place:],
        "a bit flipped": lambda: _flip(rng, data),
        "byte order mark": lambda: b"\xef\xbb\xbf" + data,
        "UTF-16": lambda: data.decode("utf-8", "replace").encode("utf-16"),
        "CRLF": lambda: data.replace(b"\n", b"\r\n"),
        "CR": lambda: data.replace(b"\n", b"\r"),
        "a line doubled": lambda: data + data[: data.find(b"\n") + 1],
        "a line lost": lambda: data[data.find(b"\n") + 1 :],
        "a line break lost": lambda: data.replace(b"\n", b"", 1),
        "a line break more": lambda: data[:place] + b"\n" + data[place:],
        "blank lines at the end": lambda: data + b"\n\n\n",
        "quotes inside": lambda: data[:place] + rng.choice((b'"', b'""', b"'", b"<", b"]]>", b"{")) + data[place:],
        "no last line break": lambda: data.rstrip(b"\n"),
        "false gzip": lambda: b"\x1f\x8b\x08" + data,
        "another suffix": lambda: gzip.compress(data),
    }
    kind = rng.choice([*makers, "a folder", "no file", "a dangling link"])
    path.unlink()
    if kind == "a folder":
        path.mkdir()
    elif kind == "a dangling link":
        path.symlink_to("nowhere")
    elif kind in makers:
        path.write_bytes(makers[kind]())
    return kind


def _flip(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data or b"x")
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _pack(rng: random.Random, path: Path, suffix: str) -> Path:
    """Compress a file, sometimes with damage."""
    if not path.is_file():
        return path.with_name(path.name + suffix)
    data = (gzip.compress if suffix == ".gz" else lzma.compress)(path.read_bytes())
    kind = rng.choice(("whole", "whole", "cut", "flipped", "twice"))
    if kind == "cut":
        data = data[: rng.randrange(len(data))]
    elif kind == "flipped":
        data = _flip(rng, data)
    elif kind == "twice":
        data += data
    path.unlink()
    packed = path.with_name(path.name + suffix)
    packed.write_bytes(data)
    return packed


def _text(pairs: Pairs, work: Path) -> list[Path]:
    paths = [work / f"corpus.{side}" for side in ("de", "en")]
    for path in paths:
        path.write_text("".join(f"{pair[path.suffix[1:]]}\n" for pair in pairs), "utf-8", newline="")
    return paths


def _json_lines(pairs: Pairs, work: Path) -> list[Path]:
    text = "".join(json.dumps({"translation": pair}, ensure_ascii=False) + "\n" for pair in pairs)
    return _one(work / "corpus.jsonl", text)


def _json(pairs: Pairs, work: Path) -> list[Path]:
    return _one(work / "corpus.json", json.dumps(pairs, ensure_ascii=False, indent=0))


def _tsv(pairs: Pairs, work: Path) -> list[Path]:
    rows = ["de\ten", *(f"{pair['de']}\t{pair['en']}" for pair in pairs)]
    return _one(work / "corpus.tsv", "".join(f"{row}\n" for row in rows))


def _csv(pairs: Pairs, work: Path) -> list[Path]:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(("de", "en"))
    writer.writerows((pair["de"], pair["en"]) for pair in pairs)
    return _one(work / "corpus.csv", text.getvalue())


def _tmx(pairs: Pairs, work: Path) -> list[Path]:
    def unit(pair: dict[str, str]) -> str:
        sides = (f'<tuv xml:lang="{side}"><seg>{escape(pair[side])}</seg></tuv>' for side in ("de", "en"))
        return f"<tu>{''.join(sides)}</tu>\n"

    head = '<?xml version="1.0" encoding="UTF-8"?>\n<tmx version="1.4"><header srclang="de"/><body>\n'
    return _one(work / "corpus.tmx", f"{head}{''.join(map(unit, pairs))}</body></tmx>\n")


def _parquet(pairs: Pairs, work: Path) -> list[Path]:
    import pyarrow
    from pyarrow import parquet

    rows = [{"translation": {side: pair[side] for side in ("de", "en")}} for pair in pairs]
    kind = pyarrow.struct([("translation", pyarrow.struct([("de", pyarrow.string()), ("en", pyarrow.string())]))])
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema=pyarrow.schema(kind)), work / "corpus.parquet")
    return [work / "corpus.parquet"]


def _one(path: Path, text: str) -> list[Path]:
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return [path]


FORMATS: dict[str, Callable[[Pairs, Path], list[Path]]] = {
    ".de/.en": _text, ".jsonl": _json_lines, ".json": _json, ".tsv": _tsv, ".csv": _csv, ".tmx": _tmx,
    ".parquet": _parquet,
}  # fmt: skip
