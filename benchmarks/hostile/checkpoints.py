"""Damaged and altered checkpoints, through every command that reads one."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from benchmarks.hostile.attempts import Attempt
from benchmarks.hostile.processes import Command, Done
from benchmarks.hostile.world import LINES, World, check_lines, check_run
from seq2seq.metadata import KEY

# Values that replace one in the description of the model.
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3, 7, 10**9, 10**18, 10**30, 10**400, 0.5, -0.5, 1e300, math.nan, math.inf, ""),
    *("banana", "os.system", "seq2seq.system.files.os.system", "é\U0001f600\x00", [], [1], [None], {}, {"a": 1}),
    *("x" * 100_000, [[[]]], {"_target_": "os.system"}, -(10**18), 2.0),
)
# Claims about a tensor that replace parts of its header entry.
CLAIMS: tuple[dict[str, Any], ...] = (
    {"shape": [1 << 40, 1 << 40]}, {"shape": [(1 << 64) - 1, 2]}, {"shape": [-1]}, {"shape": []}, {"shape": "x"},
    {"data_offsets": [0, 1 << 50]}, {"data_offsets": [8, 0]}, {"data_offsets": [0]}, {"data_offsets": [0, 8]},
    {"dtype": "F64"}, {"dtype": "U8"}, {"dtype": "C64"}, {"dtype": "F4"}, {"dtype": "os.system"}, {"dtype": None},
)  # fmt: skip
# Readers of a checkpoint and their weights.
READERS = {"translate": 8, "score": 3, "average": 3, "inspect": 2, "init_from": 3, "resume": 1}


def draw(rng: random.Random, world: World, folder: Path) -> Attempt:
    """Draw a damage, and a command that reads the checkpoint."""
    reader = rng.choices(list(READERS), list(READERS.values()))[0]
    work = folder / "work"
    path = work / "wrong.safetensors"
    maker = rng.choices((_flip, _cut, _description, _weights, _header, _container), (4, 2, 8, 6, 4, 2))[0]
    if reader == "resume":
        # A truncated state of a run
        shutil.copytree(world.run, work / "runs" / "base")
        path, maker = work / "runs" / "base" / "checkpoints" / "last.ckpt", _cut
    else:
        shutil.copyfile(world.best, path)
    what, must = maker(rng, path)
    return Attempt(
        what=f"{reader}: {what}",
        command=_command(reader, world, folder, path),
        named=(path.name, "checkpoint", "init_from", "resume"),
        must=must,
        check=lambda done: _check(reader, work, done),
        outputs=(work / "mean.safetensors",),
    )


def _command(reader: str, world: World, folder: Path, path: Path) -> Command:
    if reader == "init_from":
        return Command("seq2seq.train", world.train_words(folder, f"init_from={path.name}"))
    if reader == "resume":
        words = world.train_words(folder, "run=base", "resume=auto", "trainer.max_steps=4")
        return Command("seq2seq.train", words)
    data = ("files", "src=de", "tgt=en", f"test={world.root}/corpus/test.jsonl")
    words = {
        "translate": ("--ckpt", path.name),
        "score": ("--ckpt", path.name, "--data", *data, "--limit", "3", "--metrics", "bleu", "--cache", "cache"),
        "average": ("--out", "mean.safetensors", str(world.best), path.name),
        "inspect": ("--ckpt", path.name, "--text", "Guten Morgen.", "--out", "report"),
    }[reader]
    return Command(f"seq2seq.{reader}", words, stdin=world.lines)


def _check(reader: str, work: Path, done: Done) -> str:
    """Return the fault in the outputs of a command that accepted the checkpoint, or ""."""
    if reader == "translate":
        return check_lines(LINES, done)
    if reader == "average":
        state = safetensors.torch.load_file(work / "mean.safetensors")
        bad = [name for name, value in state.items() if not value.isfinite().all()]
        return f"the mean has {bad[0]} not finite" if bad else ""
    if reader in ("init_from", "resume"):
        return check_run(work)
    return "" if done.out else "no output"


Damage = tuple[str, str]


def _flip(rng: random.Random, path: Path) -> Damage:
    """Flip one or several bits; a flipped bit in the weights just gives another number."""
    data = bytearray(path.read_bytes())
    count = rng.choice((1, 1, 1, 8, 64))
    for _ in range(count):
        data[rng.randrange(rng.choice((len(data), 4000)))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return f"{count} bits flipped", "either"


def _cut(rng: random.Random, path: Path) -> Damage:
    """Truncate the file, or cut a piece out of it."""
    data = path.read_bytes()
    place = rng.choice((0, 1, len(data) - 1, rng.randrange(len(data)), rng.randrange(len(data))))
    more = rng.randrange(1, 4096)
    kind = rng.choice(("end", "middle", "more"))
    if kind == "end":
        path.write_bytes(data[:place])
        return f"cut off after {place} of {len(data)} bytes", "refuse"
    if kind == "middle":
        place = min(place, len(data) - 2 * more)
        path.write_bytes(data[:place] + data[place + more :])
        return f"{more} bytes cut out at {place}", "either" if path.suffix == ".ckpt" else "refuse"
    path.write_bytes(data + rng.randbytes(more))
    return f"{more} bytes more", "either" if path.suffix == ".ckpt" else "refuse"


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    """Return the header and the data."""
    whole = path.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    return json.loads(whole[8:end]), whole[end:]


def _write(path: Path, header: str, data: bytes) -> None:
    text = header.encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def _places(node: dict[Any, Any]) -> list[tuple[dict[Any, Any], Any]]:
    """List every entry of nested dictionaries as (dictionary, key)."""
    found: list[tuple[dict[Any, Any], Any]] = []
    for key, value in node.items():
        found.append((node, key))
        if isinstance(value, dict):
            found += _places(value)
    return found


def _description(rng: random.Random, path: Path) -> Damage:
    """Replace, delete, rename or add an entry of the description, or nest it very deeply."""
    header, data = _read(path)
    entry = json.loads(header["__metadata__"][KEY])
    node, key = rng.choice(_places(entry))
    kind = rng.choice(("replace", "replace", "replace", "replace", "delete", "rename", "add", "deep"))
    value = rng.choice(VALUES)
    if kind == "replace":
        node[key] = value
    elif kind == "add":
        node[rng.choice(("nonsense", "_target_", "dim", "", "per_layer", "é"))] = value
    elif kind == "deep":
        node[key] = "DEEP"
    else:
        old = node.pop(key)
        if kind == "rename":
            node[f"{key}zz"] = old
    depth = rng.choice((100, 100_000))
    header["__metadata__"][KEY] = json.dumps(entry).replace('"DEEP"', "[" * depth + "]" * depth)
    _write(path, json.dumps(header), data)
    shown = repr(value)[:40] if kind in ("replace", "add") else ""
    return f"{KEY}: {kind} {key} {shown}", "either"


def _weights(rng: random.Random, path: Path) -> Damage:
    """Alter one tensor, of the weights or of the tokenizer."""
    metadata = _read(path)[0]["__metadata__"]
    state = safetensors.torch.load_file(path)
    name = rng.choice(sorted(state))
    old = state[name]
    kind, new = rng.choice(_tensors(old))()
    if new is None:
        del state[name]
    else:
        state[name] = new
    if kind == "surplus":
        state[f"{name}.more"] = torch.ones(2)
    safetensors.torch.save_file(state, path, metadata)
    refused = kind in ("nan", "missing", "surplus", "shape") and not name.startswith("tokenizer.")
    return f"tensors: {kind} {name}", "refuse" if refused else "either"


def _tensors(old: Tensor) -> tuple[Callable[[], tuple[str, Tensor | None]], ...]:
    def with_one(value: float) -> Tensor:
        new = old.clone().float()
        new.view(-1)[new.numel() // 2] = value
        return new

    return (
        lambda: ("nan", with_one(math.nan)),
        lambda: ("nan", torch.full_like(old.float(), -math.inf)),
        lambda: ("scaled", old * 1e30),
        lambda: ("missing", None),
        lambda: ("surplus", old),
        lambda: ("shape", old.unsqueeze(0)),
        lambda: ("shape", torch.zeros(old.numel() + 1)),
        lambda: ("shape", torch.zeros(0)),
        *(lambda dtype=dtype: ("type", old.to(dtype)) for dtype in (torch.float64, torch.bfloat16, torch.int8)),
        *(lambda dtype=dtype: ("type", old.to(dtype)) for dtype in (torch.complex64, torch.bool, torch.float8_e4m3fn)),
        lambda: ("ones", torch.ones_like(old)),
        lambda: ("bytes", torch.randint(256, (1000,), dtype=torch.uint8)),
    )


def _header(rng: random.Random, path: Path) -> Damage:
    """Change a claim of the header about a tensor or itself."""
    header, data = _read(path)
    name = rng.choice([name for name in header if name != "__metadata__"])
    claim = rng.choice(CLAIMS)
    kind = rng.choice(("claim", "claim", "claim", "twice", "deep", "long", "length"))
    text = json.dumps(header)
    if kind == "claim":
        text = json.dumps(header | {name: header[name] | claim})
    elif kind == "twice":
        text = json.dumps(header | {"again": header[name]})
    elif kind == "deep":
        text = '{"a":' * 100_000 + text + "}" * 100_000
    elif kind == "long":
        text += " " * (20 << 20)
    _write(path, text, data)
    if kind == "length":
        whole = path.read_bytes()
        path.write_bytes(rng.choice((0, 7, 1 << 30, 1 << 62, (1 << 64) - 1)).to_bytes(8, "little") + whole[8:])
    same = header[name] | claim == header[name]
    return f"header: {kind} {name} {claim if kind == 'claim' else ''}", "either" if same else "refuse"


def _container(rng: random.Random, path: Path) -> Damage:
    """Replace the file."""
    data = path.read_bytes()
    makers: dict[str, Callable[[], object]] = {
        "empty file": lambda: path.write_bytes(b""),
        "random bytes": lambda: path.write_bytes(rng.randbytes(5000)),
        "text": lambda: path.write_bytes(b"hello\n" * 100),
        "bytes in front": lambda: path.write_bytes(data[:4] + data),
        "a pickle": lambda: path.write_bytes(b"\x80\x02cos\nsystem\n(S'touch owned'\ntR."),
        "torch's own": lambda: torch.save({"state_dict": {}}, path),
        "a folder": lambda: (path.unlink(), path.mkdir()),
        "a pipe": lambda: (path.unlink(), os.mkfifo(path)),
        "a link to itself": lambda: (path.unlink(), path.symlink_to(path.name)),
        "a link to /dev/zero": lambda: (path.unlink(), path.symlink_to("/dev/zero")),
        "a link to /dev/null": lambda: (path.unlink(), path.symlink_to("/dev/null")),
        "a sparse file of 1 TB": lambda: os.truncate(path, 1 << 40),
    }
    what = rng.choice(list(makers))
    makers[what]()
    return f"container: {what}", "refuse"
