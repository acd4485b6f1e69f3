"""A few hundred German-English pairs and the settings of training runs that take a second on them."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from composed import resolved

from seq2seq.data.plan import DataPlan
from seq2seq.settings.data import CorpusSettings, DataSettings
from seq2seq.settings.declare import keys, read_section
from seq2seq.settings.tokenizer import TokenizerSettings

if TYPE_CHECKING:
    import lightning as L

    from seq2seq.training.lightning_parts.datamodule import TranslationDataModule
    from seq2seq.training.run import TrainingRun

NOUNS = {"Hund": "dog", "Katze": "cat", "Kind": "child", "Mann": "man", "Frau": "woman", "Buch": "book"}
VERBS = {"sieht": "sees", "kauft": "buys", "findet": "finds", "liebt": "loves"}
PLACES = {"hier": "here", "heute": "today", "oft": "often", "": ""}


def pairs(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Distinct sentences of 3 to 9 words; `count` is at most some hundreds."""
    rng, found = random.Random(seed), {}
    while len(found) < count:
        a, b, v, p = (rng.choice(list(d)) for d in (NOUNS, NOUNS, VERBS, PLACES))
        tail, end = rng.choice([("", ""), (f" und {b} {v} {a}", f" and {NOUNS[b]} {VERBS[v]} {NOUNS[a]}")])
        german = f"{a} {v} {p} {b}{tail}."
        english = f"{NOUNS[a]} {VERBS[v]} {NOUNS[b]} {PLACES[p]}{end}."
        found[german.replace("  ", " ")] = english.replace("  ", " ").replace(" .", ".")
    return list(found.items())


def write(folder: Path, sizes: tuple[int, int, int] = (240, 20, 15)) -> Path:
    """train, valid and test files in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    found = pairs(sum(sizes))
    for name, size in zip(("train", "valid", "test"), sizes, strict=True):
        part, found = found[:size], found[size:]
        for side, lang in enumerate(("de", "en")):
            (folder / f"{name}.{lang}").write_text("".join(pair[side] + "\n" for pair in part), encoding="utf-8")
    return folder


# Two layers of width 16: a step takes milliseconds.
TINY = (
    "model.dim=16", "model.ffn_dim=32", "model.num_heads=2", "model.encoder_layers=1", "model.decoder_layers=1",
    "optim.lr=0.01", "data.vocab_size=300", "data.max_tokens=512",
    "trainer.max_time=null", "trainer.max_steps=4", "trainer.precision=32", "trainer.accelerator=cpu",
    "search.beam_size=2", "search.max_len_ratio=0", "search.max_len_extra=12", "logger=csv",
)  # fmt: skip


def words(corpus: Path, folder: Path, *overrides: str) -> list[str]:
    """The overrides of a run in `folder` on `corpus`."""
    files = [f"data.{split}={corpus / split}" for split in ("train", "valid", "test")]
    given = ["mixer=transformer", "data=files", "data.name=toy", *files, *TINY]
    return [*given, f"runs={folder / 'runs'}", f"cache={corpus / 'cache'}", *overrides]


def settings(corpus: Path, folder: Path, *overrides: str) -> dict[str, Any]:
    """The composed settings of such a run, as a plain dict."""
    return resolved(words(corpus, folder, *overrides))


def execute(config: dict[str, Any], *callbacks: L.Callback, mixer: str = "transformer") -> TrainingRun:
    """Run `config` with more callbacks, and return the run."""
    # Imports Lightning
    from seq2seq.training.plan import make_plan
    from seq2seq.training.run import TrainingRun

    run = TrainingRun(make_plan(config, mixer=mixer), callbacks=callbacks)
    run.execute()
    return run


def data_settings(data: dict[str, Any]) -> DataSettings:
    """Read a plain section `data`."""
    return read_section(DataSettings, {"name": "toy", **data}, "data")


def data_plan(
    data: dict[str, Any],
    *,
    tokenizer: TokenizerSettings | dict[str, Any] | None = None,
    seed: int = 1,
    cache_dir: Path,
) -> DataPlan:
    """Open the corpora of a plain section."""
    read = tokenizer
    if not isinstance(read, TokenizerSettings):
        read = read_section(TokenizerSettings, read or {}, "tokenizer")
    return DataPlan.of(data_settings(data), tokenizer=read, seed=seed, cache_dir=cache_dir)


def module(folder: Path, **changes: Any) -> TranslationDataModule:
    """A data module of the files in `folder`; `changes` are keys of `data`, and `tokenizer`."""
    # Imports Lightning
    from seq2seq.data.preparation import prepare_corpora
    from seq2seq.training.lightning_parts.datamodule import TranslationDataModule

    data = {"src": "de", "tgt": "en", "max_tokens": 300, **{s: str(folder / s) for s in ("train", "valid", "test")}}
    data |= {"vocab_size": 300, **changes}
    tokenizer = {"vocab_size": 300, **data.pop("tokenizer", {})}
    plan = data_plan(data, tokenizer=tokenizer, cache_dir=folder / "cache")
    made = TranslationDataModule(prepare_corpora(plan))
    made.describe()
    return made


def corpus_settings(data: dict[str, Any]) -> CorpusSettings:
    """The corpus of a plain section `data`, without its batches and scores."""
    known = keys(CorpusSettings)
    return read_section(CorpusSettings, {key: value for key, value in data.items() if key in known}, "data")


def trainer(rank: int = 0, world: int = 1, *, epoch: int = 0, device: str = "cpu") -> Any:
    """Imitate the parts of a trainer that a data module uses."""
    strategy = SimpleNamespace(root_device=torch.device(device))
    return SimpleNamespace(
        global_rank=rank, world_size=world, current_epoch=epoch, accumulate_grad_batches=1, strategy=strategy
    )
