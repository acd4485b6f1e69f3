"""Writes the phrasebook: German-English pairs from a seeded grammar, split so that the test needs new combinations."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from random import Random
from zlib import crc32

sys.path.insert(0, str(Path(__file__).resolve().parent))

import lexicon
import morphology as forms
from constructions import Constructions

SIZES = {"train": 20_000, "valid": 500, "test": 500}
SEED = 20_240_607
# A quarter of the held-out splits combines names and numbers, or numbers and nouns, as training never does.
NOVEL_SHARE = 0.25
NAMES = frozenset(lexicon.FEMALE_NAMES + lexicon.MALE_NAMES + lexicon.SURNAMES)
NUMBERS = {forms.german_number(n) for n in range(13, 1000)} | {str(n) for n in range(13, 100)}
NUMBERS |= {forms.german_ordinal(n) for n in range(13, 32)}

Pair = tuple[str, str]


def combinations(german: str) -> set[tuple[str, str]]:
    """Return the (name, number) and (number, noun) pairs of a German sentence, for numbers from 13 up."""
    words = [word.strip(".,!?") for word in german.split()]
    numbers = [word for word in words if word in NUMBERS]
    found = {(word, number) for word in words if word in NAMES for number in numbers}
    nouns = {number: next(filter(str.istitle, words[words.index(number) :]), "") for number in numbers}
    return found | set(nouns.items())


def held_out(combination: tuple[str, str]) -> bool:
    """Return whether training must not contain a combination: one in eight, by a checksum that no seed changes."""
    if combination[1] in ("Jahre", "Euro", "Minuten", ""):
        return False
    return crc32(" ".join(combination).encode()) % 8 == 0


def generate(seed: int = SEED) -> dict[str, list[Pair]]:
    """Return the splits: distinct on both sides, no held-out sentence or combination in training."""
    grammar = Constructions(Random(seed))
    seen: tuple[set[str], set[str]] = (set(), set())
    splits: dict[str, list[Pair]] = {name: [] for name in SIZES}
    novel: dict[str, int] = {"valid": 0, "test": 0}
    while any(len(splits[name]) < size for name, size in SIZES.items()):
        pair = grammar.draw()
        if pair[0] in seen[0] or pair[1] in seen[1]:
            continue
        name = _destination(grammar, any(map(held_out, combinations(pair[0]))), splits, novel)
        if name:
            splits[name].append(pair)
            seen[0].add(pair[0])
            seen[1].add(pair[1])
    return splits


def _destination(grammar: Constructions, is_novel: bool, splits: dict[str, list[Pair]], novel: dict[str, int]) -> str:
    """Return the split that takes the next pair, or nothing."""
    if not is_novel:
        name = grammar.rng.choices(list(SIZES), list(SIZES.values()))[0]
        quota = SIZES[name] - (0 if name == "train" else round(NOVEL_SHARE * SIZES[name]))
        return name if len(splits[name]) - novel.get(name, 0) < quota else ""
    name = grammar.rng.choice(("valid", "test"))
    if novel[name] >= round(NOVEL_SHARE * SIZES[name]):
        return ""
    novel[name] += 1
    return name


def write(splits: dict[str, list[Pair]], folder: Path) -> None:
    """Write each split as JSON lines in the WMT schema."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, pairs in splits.items():
        lines = [json.dumps({"translation": {"de": de, "en": en}}, ensure_ascii=False) + "\n" for de, en in pairs]
        (folder / f"{name}.jsonl").write_bytes("".join(lines).encode("utf-8"))


def main() -> None:
    """Parse the command line and write train.jsonl, valid.jsonl and test.jsonl."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent, help="folder to write to")
    parser.add_argument("--seed", type=int, default=SEED, help=f"seed of the grammar (default {SEED})")
    options = parser.parse_args()
    write(generate(options.seed), options.out)


if __name__ == "__main__":
    main()
