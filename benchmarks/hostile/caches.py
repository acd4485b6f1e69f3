"""Damaged caches: any file is truncated, deleted or replaced before a training run that uses it."""

from __future__ import annotations

import os
import random
from pathlib import Path

from benchmarks.hostile.attempts import Attempt
from benchmarks.hostile.processes import Command
from benchmarks.hostile.world import World, same_weights


def draw(rng: random.Random, world: World, folder: Path) -> Attempt:
    """Draw a file of the cache and a damage.

    A successful run must have the same weights as with the whole cache: the damage was repaired or made no difference.
    """
    work = folder / "work"
    words = world.train_words(folder)
    cache = work / "cache"
    kind = rng.choices(
        ("cut", "grow", "empty", "delete", "folder", "link", "dangling", "unreadable", "lock"),
        (3, 1, 1, 2, 1, 1, 1, 1, 1),
    )[0]
    files = sorted(path for path in cache.rglob("*") if path.is_file())
    path = rng.choice(files)
    what = f"{kind} {path.relative_to(cache)}"
    _damage(rng, kind, path)
    return Attempt(
        what=f"cache: {what}",
        command=Command("seq2seq.train", words),
        named=(path.name, path.parent.name, "cache"),
        # Faults of files may also end with status 1
        statuses=(1, 2),
        check=lambda _: same_weights(world.last, work),
    )


def _damage(rng: random.Random, kind: str, path: Path) -> None:
    data = path.read_bytes()
    if kind == "cut":
        os.truncate(path, rng.choice((0, 1, len(data) // 2, max(0, len(data) - 1), rng.randrange(len(data) + 1))))
    elif kind == "grow":
        path.write_bytes(data + rng.randbytes(rng.choice((1, 8, 4096))))
    elif kind == "empty":
        # All files of one folder of the cache are removed
        for other in path.parent.iterdir():
            if other.is_file():
                other.unlink()
    elif kind == "lock":
        # A killed process leaves this next to the folder that it builds
        (path.parent.parent / f".{path.parent.name}.lock").write_text("{}")
    else:
        path.unlink()
        if kind == "folder":
            path.mkdir()
        elif kind == "link":
            path.symlink_to(path.name)
        elif kind == "dangling":
            path.symlink_to("nowhere")
        elif kind == "unreadable":
            path.symlink_to("/proc/self/mem")
