"""Report on the mixers of a trained or random model for one sentence pair."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seq2seq.analysis import html_report, image_maps
from seq2seq.analysis.html_report import Pair
from seq2seq.analysis.mixing_matrix import views
from seq2seq.data.cleaning import shorten
from seq2seq.inference.translator import Translator
from seq2seq.network.build import build_model
from seq2seq.network.model import Seq2Seq
from seq2seq.options.command_line import require_folder
from seq2seq.runs.folder import RunFolder
from seq2seq.settings.classes import packages_of
from seq2seq.settings.declare import read_section
from seq2seq.settings.tokenizer import PatchGrid, TokenizerSettings
from seq2seq.system.canvas import require_matplotlib
from seq2seq.system.model_path import checkpoint_file
from seq2seq.system.stdio import print_error

# Maximum number of characters of the source in the title; an image is a long line.
_LONGEST_TITLE = 200


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model and the sentence pair that a report shows.

    Attributes:
        folder: The report's folder.
        title: The page's heading.
        facts: Rows of the table below the heading.
        model: The model, on the CPU.
        src: Source ids (1, S).
        tgt: Input of the decoder (1, T).
        pair: Names of the positions of both sides.
        grid: The grid of the source if it is an image.
    """

    folder: Path
    title: str
    facts: list[tuple[str, str]]
    model: Seq2Seq
    src: Tensor
    tgt: Tensor
    pair: Pair
    grid: PatchGrid | None


def of_settings(overrides: Sequence[str], *, length: int, out: Path | None, seed: int) -> Subject:
    """Build a model with random weights from settings of seq2seq.train, and a random pair.

    Args:
        overrides: Settings as on the command line, including a preset (`mixer=<name>`).
        length: Number of positions of each side; an image as the source has the positions of its grid instead.
        out: The report's folder, `inspect/<preset>` if None.
        seed: Seed of the weights and of the pair.

    Raises:
        ValueError: The settings are wrong or name no preset, or the folder cannot be written.
    """
    # A checkpoint needs no Hydra
    from seq2seq.settings.compose import cut_lists, resolved_settings, typed_settings

    require_matplotlib("a report")
    # Checked before Hydra composes, for a message with a remedy
    values = {key: value for key, _, value in (word.lstrip("+").partition("=") for word in overrides)}
    if "mixer" not in values:
        raise ValueError("name a preset: mixer=<name>, e.g. mixer=dynamicconv")
    if "seed" in values:
        raise ValueError(f"seed={values['seed']} is a setting of seq2seq.train; give --seed {values['seed']} here")
    name = values["mixer"]
    config = cut_lists(resolved_settings(overrides), typed_settings(overrides))
    folder = html_report.require_earlier(require_folder(out or Path("inspect") / name))
    # A preset for images has its grid in the tokenizer's settings
    grid = read_section(TokenizerSettings, config["tokenizer"], "tokenizer").patches
    # Seeds the weights and the pair, which are drawn in this order
    torch.manual_seed(seed)
    # Padding needs one more id than randperm(length) draws; an image cannot share the target's vocabulary
    sizes = {"src_vocab_size": length + 1, "tgt_vocab_size": length + 1, "pad_id": length, "joint": grid is None}
    settings = {"model": config["model"], "mixer": config["mixer"], **sizes}
    if grid:
        settings["patches"] = dataclasses.asdict(grid)
    model = build_model(settings, trust=packages_of(config["mixer"]))
    # All tokens differ, so that equal rows of a matrix cannot be due to equal inputs
    src = torch.randperm(length)[None]  # (1, S)
    tgt = torch.randperm(length)[None]  # (1, T)
    if grid:
        src = torch.randint(grid.vocab_size, (1, grid.ids))
        source = _patches(grid)
        described = f"an image of random patches, and {length} random tokens"
    else:
        source = [f"s{i}" for i in range(1, length + 1)]
        described = f"{length} random tokens on each side"
    facts = [
        ("settings", " ".join(overrides)),
        ("weights", f"random (seed {seed})"),
        ("input", described),
    ]
    pair = Pair(source, [f"t{i}" for i in range(1, length + 1)])
    return Subject(folder, f"{name}, untrained", facts, model, src, tgt, pair, grid)


def of_checkpoint(
    path: Path,
    *,
    text: str,
    target: str | None,
    src_lang: str | None,
    tgt_lang: str | None,
    trust: Sequence[str],
    out: Path | None,
    seed: int,
) -> Subject:
    """Load a checkpoint for a source sentence and its translation.

    Args:
        path: The checkpoint.
        text: The source sentence, or an image as in a corpus.
        target: The target sentence; the model's own translation if None.
        src_lang: Source language of a checkpoint that has several.
        tgt_lang: Target language, likewise.
        trust: Packages, besides seq2seq, whose mixers the checkpoint may name.
        out: The report's folder, `inspect/<the run's name>` if None.
        seed: Seed of torch's random numbers.

    Raises:
        ValueError: There is no such file, the folder cannot be written, or a sentence is too long for the model.
    """
    require_matplotlib("a report")
    path = checkpoint_file(path)
    # A file outside of a run is named after itself
    run = RunFolder.of_checkpoint(path.resolve())
    name = run.path.name if run else path.stem
    folder = html_report.require_earlier(require_folder(out or Path("inspect") / name))
    torch.manual_seed(seed)
    translator = Translator.load(path, device="cpu", trust=trust, src_lang=src_lang, tgt_lang=tgt_lang)
    tokenizer = translator.tokenizer
    text = " ".join(text.split())
    # The same ids that translation uses: language tags, then pieces
    source_ids = [*translator.tags.source, *tokenizer.encode_src([text])[0]]
    # All images of a model have one size
    if not tokenizer.patches:
        _require_short("--text", source_ids, translator.max_len)
    target_text = translator.texts([text])[0] if target is None else " ".join(target.split())
    # The decoder's input: shifted to the right by the begin symbol, without the end symbol
    target_ids = [tokenizer.bos_id, *translator.tags.target, *tokenizer.encode_tgt([target_text])[0][:-1]]
    _require_short("the target", target_ids, translator.max_len)
    grid = tokenizer.patches
    pieces = [number % tokenizer.src_vocab_size for number in source_ids]
    pair = Pair(
        _patches(grid) if grid else _pieces(tokenizer, tokenizer.src, pieces),
        _pieces(tokenizer, tokenizer.tgt, target_ids),
    )
    meta = translator.meta
    shown = shorten(text, _LONGEST_TITLE)
    facts = [
        ("checkpoint", path.name),
        ("data", f"{meta['data']}, {translator.src_lang} to {translator.tgt_lang}"),
        ("source", shown),
        ("translation" if target is None else "target", target_text),
    ]
    src = torch.tensor([source_ids])  # (1, S)
    tgt = torch.tensor([target_ids])  # (1, T)
    # One checkpoint is not an ensemble
    assert isinstance(translator.model, Seq2Seq)
    return Subject(folder, f"{folder.name}: {shown}", facts, translator.model, src, tgt, pair, grid)


def _require_short(what: str, ids: Sequence[int], most: int) -> None:
    if len(ids) > most:
        raise ValueError(f"{what} has {len(ids):,} pieces, the most are {most:,}; shorten it")


def _patches(grid: PatchGrid) -> list[str]:
    """Name an image's patches by row and column, from 1."""
    return [f"{row + 1},{column + 1}" for row in range(grid.rows) for column in range(grid.columns)]


def _pieces(tokenizer: Any, model: Any, ids: Sequence[int]) -> list[str]:
    """Return the pieces of one side, with SentencePiece's mark of word beginnings."""
    special = {tokenizer.bos_id: "<s>", tokenizer.eos_id: "</s>", tokenizer.unk_id: "<unk>"}
    # Plain underscores, as not every font has U+2581
    return [special.get(i) or model.id_to_piece(i).replace("▁", "_") for i in ids]


def write(subject: Subject) -> Path:
    """Differentiate the mixers, write the page with its figures, and return its path."""

    # Report progress, since a long pair takes minutes, on standard error; standard output only names the files
    def report(part: str) -> None:
        print_error(f"looking at {part} ...")

    columns = subject.grid.columns if subject.grid else None
    seen = views(subject.model, subject.src, subject.tgt, columns=columns, report=report)
    sections = list(html_report.sections(seen, subject.pair))
    if subject.grid:
        sections += image_maps.sections(seen, subject.src, subject.pair, subject.grid)
    page = html_report.write(subject.folder, subject.title, subject.facts, sections)
    print(f"written: {page} and {len(sections)} figures", flush=True)
    return page
