"""The checkpoint that the campaign translates with, and the translations that are known for it."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path

from benchmarks.hostile.world import RUN, must_work
from benchmarks.real_files.sentences import LANGUAGES, draw, phrasebook, sentences

# Large enough to give different lines different translations, small enough to train in seconds.
SIZES = (
    "mixer=transformer", "model.dim=32", "model.ffn_dim=64", "model.num_heads=2", "model.encoder_layers=1",
    "model.decoder_layers=1", "data.vocab_size=900", "data.max_tokens=1024", "optim.lr=0.01",
)  # fmt: skip
LENGTH = (
    "trainer.max_steps=80", "trainer.val_steps=80", "search.beam_size=2", "search.max_len_extra=4",
    "search.max_len_ratio=0.4",
)  # fmt: skip
# Lines of an attempt; an attempt with shifted sides needs more, so that the shift can be detected.
LINES = 12
# PREFIXES: how the translation of each line must begin; PHRASES: what it must contain.
PREFIXES = ("Zoë", "", "Müller", "The naïve", "Ça", "", "À", "Noël", "", "Über", "Größe", "É")
PHRASES = ("Café", "", "Zoë\tMüller", "", "naïve", "Größe", "", "Noël", "", "Übung", "", "Señor")


@dataclasses.dataclass(frozen=True)
class FileWorld:
    """Files that attempts start from.

    Args:
        words: Settings of a short run on the files train, valid and test.
        lines: German lines that prefixes and phrases are given for.
        known: Translation of every sentence that an attempt may translate.
        prefixed: Translations of `lines` with PREFIXES.
        phrased: Translations of `lines` with PHRASES.
    """

    root: Path
    words: tuple[str, ...]
    lines: Sequence[str]
    known: dict[str, str]
    prefixed: Sequence[str] = ()
    phrased: Sequence[str] = ()

    @property
    def ckpt(self) -> Path:
        """The checkpoint, which translates from German, and from other languages in disguise."""
        return self.root / "runs" / "base" / "checkpoints" / "best.safetensors"

    @property
    def tokenizer(self) -> Path:
        """The SentencePiece model of the checkpoint."""
        return next((self.root / "cache").glob("tokenizer-*/*.model"))


def build(root: Path) -> FileWorld:
    """Train the checkpoint and write down its translations.

    Raises:
        RuntimeError: A command failed that must work.
    """
    root.mkdir(parents=True)
    rng = random.Random("world")
    pairs = {code: draw(rng, code, 40) for code in LANGUAGES if code != "en"}
    mixed = [*phrasebook(), *(pair for code in pairs for pair in pairs[code])]
    rng.shuffle(mixed)
    for name, part in (("train", mixed[24:]), ("valid", mixed[:12]), ("test", mixed[12:24])):
        write_sides(root, name, part, ("de", "en"))
    files = (
        "data=files", "data.src=de", "data.tgt=en", "data.clean.same=false",
        *(f"data.{split}={root / split}" for split in ("train", "valid", "test")),
    )  # fmt: skip
    words = (*SIZES, *files, *RUN)
    must_work(root, "seq2seq.train", (*words, *LENGTH, "cache=cache", "run=base"))
    lines = [source for source, _ in phrasebook()[:LINES]]
    world = FileWorld(root, words, lines, {})
    every = list(dict.fromkeys([*sum(phrasebook(), ()), *(s for c in LANGUAGES for s in sentences(c))]))
    known = dict(zip(every, translate(world, every), strict=True))
    return dataclasses.replace(
        world,
        known=known,
        prefixed=translate(world, lines, "prefixes", PREFIXES),
        phrased=translate(world, lines, "phrases", PHRASES),
    )


def translate(world: FileWorld, lines: Sequence[str], option: str = "", values: Sequence[str] = ()) -> list[str]:
    """Translate plain lines, with a file of prefixes or phrases where one is named."""
    words = ["--ckpt", str(world.ckpt)]
    if option:
        path = world.root / option
        path.write_text("".join(f"{value}\n" for value in values), "utf-8")
        words += [f"--{option}", str(path)]
    done = must_work(world.root, "seq2seq.translate", words, stdin="".join(f"{line}\n" for line in lines).encode())
    return done.out.decode().split("\n")[:-1]


def write_sides(folder: Path, name: str, pairs: Sequence[tuple[str, str]], languages: Sequence[str]) -> None:
    """Write two plain files of lines."""
    for side, language in enumerate(languages):
        (folder / f"{name}.{language}").write_bytes("".join(f"{pair[side]}\n" for pair in pairs).encode())
