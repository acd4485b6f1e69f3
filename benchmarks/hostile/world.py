"""The world that attempts start from: a tiny corpus, a tiny run with its cache, and its translations."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.hostile.processes import Command, Done, Limits, run
from seq2seq.system.resources import data_dir

# Settings of a model and a run that take a second or two.
SIZES = (
    "mixer=identity", "model.dim=16", "model.ffn_dim=32", "model.num_heads=2", "model.encoder_layers=1",
    "model.decoder_layers=1", "data.vocab_size=400", "data.max_tokens=256",
)  # fmt: skip
RUN = (
    "trainer.max_steps=2", "trainer.val_steps=2", "trainer.val_sentences=2", "trainer.keep_last=1",
    "trainer.samples=1", "trainer.test=false", "trainer.accelerator=cpu", "trainer.threads=1", "logger=csv",
    "search.max_len_extra=4", "search.max_len_ratio=0.5",
)  # fmt: skip
# Settings of a run to interrupt, with several validations and checkpoints.
LONGER = ("trainer.max_steps=24", "trainer.val_steps=6", "trainer.save_time=0.05s", "trainer.log_steps=3")
PAIRS = {"train": 300, "valid": 12, "test": 8}
LINES = 6


@dataclasses.dataclass(frozen=True)
class World:
    """Files that attempts copy and change.

    Attributes:
        files: Settings of the corpus.
        words: Settings of a short training.
        lines: Input for translate.
        translation: Output of translate for `lines`.
    """

    root: Path
    files: tuple[str, ...]
    words: tuple[str, ...]
    lines: bytes
    translation: bytes

    @property
    def prepared(self) -> Path:
        """The cache that prepare makes."""
        return self.root / "prepared"

    @property
    def run(self) -> Path:
        """The folder of the finished run."""
        return self.root / "runs" / "base"

    @property
    def best(self) -> Path:
        """A checkpoint to translate with."""
        return self.run / "checkpoints" / "best.safetensors"

    @property
    def step(self) -> Path:
        """Another checkpoint of the run."""
        return next((self.run / "checkpoints").glob("step-*.safetensors"))

    @property
    def cache(self) -> Path:
        """The prepared corpus."""
        return self.root / "cache"

    def train_words(self, folder: Path, *more: str, cache: bool = True) -> tuple[str, ...]:
        """Return the words of a training in `folder`/work, with a copy of the cache."""
        if cache:
            shutil.copytree(self.cache, folder / "work" / "cache")
        return (*self.words, "cache=cache", *more)


def build(root: Path) -> World:
    """Make corpus, run and translations.

    Raises:
        RuntimeError: A command failed.
    """
    corpus = root / "corpus"
    corpus.mkdir(parents=True)
    source = data_dir() / "phrasebook"
    for split, count in PAIRS.items():
        with (source / f"{split}.jsonl").open("rb") as file:
            (corpus / f"{split}.jsonl").write_bytes(b"".join(next(file) for _ in range(count)))
    pairs = [json.loads(line)["translation"] for line in (corpus / "test.jsonl").read_text("utf-8").splitlines()]
    for side in ("de", "en"):
        (corpus / f"test.{side}").write_text("".join(f"{pair[side]}\n" for pair in pairs), "utf-8")
    files = ("data=files", "data.src=de", "data.tgt=en")
    files += tuple(f"data.{split}={corpus / split}.jsonl" for split in PAIRS)
    words = (*SIZES, *files, *RUN)
    must_work(root, "seq2seq.train", (*words, "cache=cache", "run=base", "trainer.test=true"))
    # In a separate folder, since compare reads all of `runs`
    must_work(root, "seq2seq.train", (*words, *LONGER, "cache=cache", "runs=longer", "run=base"))
    must_work(root, "seq2seq.prepare", (*words, "cache=prepared"))
    lines = "".join(f"{pair['de']}\n" for pair in pairs[:LINES]).encode()
    ckpt = root / "runs" / "base" / "checkpoints" / "best.safetensors"
    done = must_work(root, "seq2seq.translate", ("--ckpt", str(ckpt)), stdin=lines)
    return World(root=root, files=files, words=words, lines=lines, translation=done.out)


def must_work(cwd: Path, module: str, words: Sequence[str], stdin: bytes = b"") -> Done:
    """Run a command that must succeed.

    Raises:
        RuntimeError: The command failed.
    """
    kept = cwd / "kept"
    kept.mkdir(exist_ok=True)
    done = run(Command(module, tuple(words), stdin=stdin, limits=Limits(cpu=120, wall=600)), cwd, kept)
    if done.status or done.exceeded:
        raise RuntimeError(f"{module} {' '.join(words)}: status {done.status} {done.exceeded}\n{done.err[-2000:]}")
    return done


def check_run(work: Path) -> str:
    """Return the fault of the one finished run in `work`/runs, or ""."""
    import torch

    found = _states(work)
    if len(found) != 1:
        return f"{len(found)} runs have a last.ckpt"
    state = torch.load(found[0], map_location="cpu", weights_only=True)["state_dict"]
    bad = [name for name, value in state.items() if value.is_floating_point() and not value.isfinite().all()]
    if bad:
        return f"last.ckpt: {bad[0]} is not finite"
    results = found[0].parent.parent / "results.json"
    if not results.is_file():
        return "no results.json"
    json.loads(results.read_text("utf-8"), parse_constant=_refuse_constant)
    return ""


def _states(work: Path) -> list[Path]:
    # The folder of runs may have another name
    return [*(work / "runs").glob("*/checkpoints/last.ckpt")] or [*work.glob("*/*/checkpoints/last.ckpt")]


def same_files(expected: Path, folder: Path) -> str:
    """Return the differences between two prepared caches, or ""."""
    one, other = (
        {str(path.relative_to(top)): path for path in top.rglob("*") if path.is_file()} for top in (expected, folder)
    )
    # Locks are temporary; reports contain times
    names = {name for name in one.keys() | other.keys() if not name.endswith((".lock", ".json"))}
    wrong = [name for name in sorted(names) if name not in one or name not in other]
    wrong = wrong or [name for name in sorted(names) if one[name].read_bytes() != other[name].read_bytes()]
    return f"the cache differs in {', '.join(wrong[:3])}" if wrong else ""


def _refuse_constant(word: str) -> float:
    # nan: not measured
    return math.nan if word == "NaN" else math.inf


def check_lines(expected: int, done: Done) -> str:
    """Return the fault of the lines that translate wrote, or ""."""
    found = done.out.count(b"\n")
    if found != expected or (done.out and not done.out.endswith(b"\n")):
        return f"{found} lines out for {expected} in"
    try:
        done.out.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"the output is not UTF-8: {error}"
    return ""
