"""Damaged and altered checkpoints, through every command that reads one."""

from __future__ import annotations

import gzip
import io
import math
import os
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.hostile.attempts import Attempt
from benchmarks.hostile.processes import Command, Done
from benchmarks.hostile.world import LINES, World, check_lines, check_run

# Values that replace one in the description of the model.
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3, 7, 10**9, 10**18, 10**30, 10**400, 0.5, -0.5, 1e300, math.nan, math.inf, ""),
    *("banana", "os.system", "seq2seq.files.os.system", "é\U0001f600\x00", b"\xff", [], [1], [None], {}, {"a": 1}, ()),
    *(torch.zeros(2), torch.tensor(3), "x" * 100_000, [[[]]], {"_target_": "os.system"}, {1: 2}, -(10**18), 2.0),
)
# How a command is given a checkpoint, and how often it is drawn.
READERS = {"translate": 8, "score": 3, "average": 3, "inspect": 2, "init_from": 3, "resume": 3}


def draw(rng: random.Random, world: World, folder: Path) -> Attempt:
    """Draw a damage, and a command that reads the checkpoint."""
    reader = rng.choices(list(READERS), list(READERS.values()))[0]
    work = folder / "work"
    work.mkdir(exist_ok=True)
    # A resumed run finds its checkpoint in its folder
    if reader == "resume":
        shutil.copytree(world.run, work / "runs" / "base")
    path = work / "runs" / "base" / "checkpoints" / "last.ckpt" if reader == "resume" else work / "wrong.ckpt"
    source = world.last if reader == "resume" else world.best
    shutil.copyfile(source, path)
    maker = rng.choices((_flip, _cut, _meta, _weights, _container, _training, _nested), (4, 2, 8, 6, 4, 2, 2))[0]
    what, must = maker(rng, path)
    command = _command(reader, world, folder, path)
    return Attempt(
        what=f"{reader}: {what}",
        command=command,
        named=(path.name, "checkpoint", "init_from", "resume"),
        must=must,
        check=lambda done: _check(reader, world, work, done, same=maker is _flip),
        outputs=(work / "mean.ckpt",),
    )


def _command(reader: str, world: World, folder: Path, path: Path) -> Command:
    if reader == "init_from":
        return Command("seq2seq.train", world.train_words(folder, "init_from=wrong.ckpt"))
    if reader == "resume":
        words = world.train_words(folder, "run=base", "resume=auto", "trainer.max_steps=4")
        return Command("seq2seq.train", words)
    data = ("files", "src=de", "tgt=en", f"test={world.root}/corpus/test.jsonl")
    words = {
        "translate": ("--ckpt", path.name),
        "score": ("--ckpt", path.name, "--data", *data, "--limit", "3", "--metrics", "bleu", "--cache", "cache"),
        "average": ("--out", "mean.ckpt", str(world.best), path.name),
        "inspect": ("--ckpt", path.name, "--text", "Guten Morgen.", "--out", "report"),
    }[reader]
    return Command(f"seq2seq.{reader}", words, stdin=world.lines)


def _check(reader: str, world: World, work: Path, done: Done, *, same: bool) -> str:
    """Return what is wrong with the outputs of a command that accepted an altered checkpoint."""
    if reader == "translate":
        if same and done.out != world.translation:
            return "accepted a flipped bit, with another translation"
        return check_lines(LINES, done)
    if reader == "average":
        state = torch.load(work / "mean.ckpt", weights_only=True)["state_dict"]
        bad = [name for name, value in state.items() if not value.isfinite().all()]
        return f"the mean has {bad[0]} not finite" if bad else ""
    if reader in ("init_from", "resume"):
        return check_run(work)
    return "" if done.out else "no output"


Damage = tuple[str, str]


def _flip(rng: random.Random, path: Path) -> Damage:
    """Flip one bit, or several."""
    data = bytearray(path.read_bytes())
    count = rng.choice((1, 1, 1, 8, 64))
    for _ in range(count):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return f"{count} bits flipped", "either"


def _cut(rng: random.Random, path: Path) -> Damage:
    """Cut the file off, or cut a piece out."""
    data = path.read_bytes()
    place = rng.choice((0, 1, len(data) - 1, rng.randrange(len(data)), rng.randrange(len(data))))
    more = rng.randrange(1, 4096)
    kind = rng.choice(("end", "middle", "zeros", "more"))
    if kind == "end":
        path.write_bytes(data[:place])
        return f"cut off after {place} of {len(data)} bytes", "refuse"
    if kind == "middle":
        place = min(place, len(data) - 2 * more)
        path.write_bytes(data[:place] + data[place + more :])
        return f"{more} bytes cut out at {place}", "refuse"
    if kind == "zeros":
        path.write_bytes(data[:place] + bytes(len(data) - place))
        return f"zeros from {place} on", "refuse" if place < len(data) - 1 else "either"
    path.write_bytes(data + rng.randbytes(more))
    return f"{more} bytes more", "either"


def _load(path: Path) -> dict[str, Any]:
    return torch.load(path, map_location="cpu", weights_only=True)


def _places(node: dict[Any, Any]) -> list[tuple[dict[Any, Any], Any]]:
    """List every entry of nested dictionaries as (dictionary, key)."""
    found: list[tuple[dict[Any, Any], Any]] = []
    for key, value in node.items():
        found.append((node, key))
        if isinstance(value, dict):
            found += _places(value)
    return found


def _meta(rng: random.Random, path: Path) -> Damage:
    """Replace, delete, rename or add an entry of the description."""
    payload = _load(path)
    node, key = rng.choice(_places(payload["seq2seq"]))
    kind = rng.choice(("replace", "replace", "replace", "replace", "delete", "rename", "add"))
    value = rng.choice(VALUES)
    if kind == "replace":
        node[key] = value
    elif kind == "add":
        node[rng.choice(("nonsense", "_target_", "dim", "", 3, "per_layer", "é"))] = value
    else:
        old = node.pop(key)
        if kind == "rename":
            node[f"{key}zz"] = old
    torch.save(payload, path)
    shown = repr(value)[:40] if kind in ("replace", "add") else ""
    return f"seq2seq: {kind} {key} {shown}", "either"


def _weights(rng: random.Random, path: Path) -> Damage:
    """Alter one tensor of the weights."""
    payload = _load(path)
    state = payload["state_dict"]
    name = rng.choice(sorted(state))
    old = state[name]
    kind, new = rng.choice(_tensors(old))()
    if new is None:
        del state[name]
    else:
        state[name] = new
    if kind == "surplus":
        state[name] = old
        state[f"{name}.more"] = old
    torch.save(payload, path)
    must = "either" if kind in ("type", "sparse", "scaled", "view", "surplus", "ones") else "refuse"
    return f"weights: {kind} {name}", must


def _tensors(old: torch.Tensor) -> tuple[Callable[[], tuple[str, Any]], ...]:
    def with_one(value: float) -> torch.Tensor:
        new = old.clone()
        new.view(-1)[new.numel() // 2] = value
        return new

    return (
        lambda: ("nan", with_one(math.nan)),
        lambda: ("inf", with_one(math.inf)),
        lambda: ("-inf", torch.full_like(old, -math.inf)),
        lambda: ("scaled", old * 1e30),
        lambda: ("missing", None),
        lambda: ("surplus", old),
        lambda: ("shape", old.unsqueeze(0)),
        lambda: ("shape", torch.zeros(old.numel() + 1)),
        lambda: ("shape", torch.zeros(0)),
        lambda: ("type", old.double()),
        lambda: ("type", old.to(torch.bfloat16)),
        lambda: ("type", old.to(torch.int8)),
        lambda: ("type", old.to(torch.complex64)),
        lambda: ("type", old > 0),
        lambda: ("sparse", old.to_sparse()),
        lambda: ("view", torch.zeros(1).expand(old.shape)),
        lambda: ("shape", torch.zeros(1).expand(10**10)),
        lambda: ("meta", old.to("meta")),
        lambda: ("ones", torch.ones_like(old)),
        lambda: ("no tensor", 3.0),
        lambda: ("no tensor", "banana"),
        lambda: ("no tensor", [1, 2]),
        lambda: ("no tensor", {}),
    )


def _training(rng: random.Random, path: Path) -> Damage:
    """Alter an entry beside the description and the weights."""
    payload = _load(path)
    names = [name for name in payload if name not in ("seq2seq", "state_dict")]
    if rng.random() < 0.2 or not names:
        name, value = rng.choice(("seq2seq", "state_dict")), rng.choice(VALUES)
        payload[name] = value
        torch.save(payload, path)
        return f"{name} = {repr(value)[:40]}", "refuse"
    name = rng.choice(names)
    kind = rng.choice(("delete", "replace", "empty"))
    old = payload.pop(name)
    if kind == "replace":
        payload[name] = rng.choice(VALUES)
    elif kind == "empty":
        payload[name] = type(old)() if isinstance(old, dict | list | str | int | float) else None
    torch.save(payload, path)
    # Without the optimizer or its schedule no run goes on as it was
    lost = path.name == "last.ckpt" and name in ("optimizer_states", "lr_schedulers", "loops", "callbacks")
    return f"{name}: {kind}", "refuse" if lost else "either"


def _nested(rng: random.Random, path: Path) -> Damage:
    """Put a dictionary that unfolds without end, or is too deep, somewhere."""
    payload = _load(path)
    kind = rng.choice(("shared", "cyclic", "deep", "wide", "long"))
    value: Any = {"x": 1}
    if kind == "shared":
        for _ in range(40):
            value = {"a": value, "b": value}
    elif kind == "cyclic":
        value["x"] = value
    elif kind == "deep":
        for _ in range(rng.choice((300, 100_000))):
            value = [value]
        payload_bytes = _deep_pickle(value)
        if payload_bytes is None:
            kind, value = "deep list of 200", _deep(200)
    elif kind == "wide":
        value = dict.fromkeys(range(300_000))
    else:
        value = "x" * 3_000_000
    places = _places(payload["seq2seq"])
    node, key = rng.choice([*places, (payload, "seq2seq"), (payload, "hyper_parameters"), (payload, "state_dict")])
    node[key] = value
    torch.save(payload, path)
    return f"{kind} nesting in {key}", "either"


def _deep(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def _deep_pickle(value: Any) -> bytes | None:
    """Return the pickle of a deep list, or None where this interpreter cannot write it."""
    try:
        buffer = io.BytesIO()
        torch.save(value, buffer)
    except RecursionError:
        return None
    return buffer.getvalue()


def _container(rng: random.Random, path: Path) -> Damage:
    """Replace the zip file by another container, or trick its directory."""
    data = path.read_bytes()
    makers: tuple[Callable[[], str], ...] = (
        lambda: _write(path, b"", "empty file"),
        lambda: _write(path, rng.randbytes(5000), "random bytes"),
        lambda: _write(path, b"hello\n" * 100, "text"),
        lambda: _write(path, gzip.compress(data), "gzip"),
        lambda: _write(path, b"PK\x03\x04" + rng.randbytes(300), "zip header"),
        lambda: _write(path, data[:4] + data, "bytes in front"),
        lambda: _pickle(path, b"cos\nsystem\n(S'touch owned'\ntR."),
        lambda: _pickle(path, b"c__builtin__\nbytearray\n(I2000000000\ntR."),
        lambda: _pickle(path, b"c__builtin__\neval\n(S'1'\ntR."),
        lambda: _repack(path, zipfile.ZIP_DEFLATED, 0),
        lambda: _repack(path, zipfile.ZIP_DEFLATED, 300_000_000),
        lambda: _overlap(path, 20_000),
        lambda: _duplicate(path),
        lambda: _folder(path),
        lambda: _link(path, path.name),
        lambda: _link(path, "/dev/zero"),
        lambda: _link(path, "/dev/null"),
        lambda: _sparse(path),
        lambda: _plain_pickle(path),
    )
    what = rng.choice(makers)()
    return f"container: {what}", "either" if what in ("deflated", "deflated, 0 more") else "refuse"


def _write(path: Path, data: bytes, what: str) -> str:
    path.write_bytes(data)
    return what


def _members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def _pickle(path: Path, code: bytes) -> str:
    """Replace the pickle by one that calls something."""
    members = _members(path)
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members.items():
            file.writestr(name, b"\x80\x02" + code if name.endswith("data.pkl") else data)
    return f"pickle {code[:20]!r}"


def _repack(path: Path, method: int, zeros: int) -> str:
    members = _members(path)
    with zipfile.ZipFile(path, "w", method, compresslevel=1) as file:
        for name, data in members.items():
            file.writestr(name, data)
        if zeros:
            file.writestr(f"{next(iter(members)).partition('/')[0]}/data/99999", bytes(zeros))
    return f"deflated, {zeros} more" if zeros else "deflated"


def _overlap(path: Path, count: int) -> str:
    """Give the directory thousands of entries of one large member."""
    with zipfile.ZipFile(path, "a") as file:
        prefix = file.namelist()[0].partition("/")[0]
        file.writestr(f"{prefix}/data/777", bytes(1_000_000))
        info = file.infolist()[-1]
        for number in range(count):
            copy = zipfile.ZipInfo(f"{prefix}/data/{1000 + number}")
            for field in ("header_offset", "CRC", "compress_size", "file_size"):
                setattr(copy, field, getattr(info, field))
            file.filelist.append(copy)
            file.NameToInfo[copy.filename] = copy
    return f"{count} entries of one member"


def _duplicate(path: Path) -> str:
    members = _members(path)
    name = next(name for name in members if name.endswith("data.pkl"))
    with zipfile.ZipFile(path, "a") as file:
        # A second entry with another name that ends alike: which one counts?
        file.writestr(f"other/{name.rpartition('/')[2]}", members[name])
    return "two data.pkl"


def _folder(path: Path) -> str:
    path.unlink()
    path.mkdir()
    return "a folder"


def _link(path: Path, target: str) -> str:
    path.unlink()
    path.symlink_to(target)
    return f"a link to {target}"


def _sparse(path: Path) -> str:
    os.truncate(path, 1 << 40)
    return "a sparse file of 1 TB"


def _plain_pickle(path: Path) -> str:
    payload = _load(path)
    torch.save(payload, path, _use_new_zipfile_serialization=False)
    return "format before zip files"
