"""Score a checkpoint on a split of a data set."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seq2seq.cli import require_no_corpus, require_output
from seq2seq.evaluation.eval_data import data_files, data_settings, load_pairs
from seq2seq.evaluation.evaluator import Evaluator
from seq2seq.evaluation.metrics import tokenize_for
from seq2seq.evaluation.moses_bleu import check_convention
from seq2seq.evaluation.scoring import ScoreSettings, Warn
from seq2seq.files import write_lines
from seq2seq.inference.translator import Note, Translator


def score_checkpoint(
    translator: Translator,
    settings: ScoreSettings,
    *,
    ckpt: str,
    data: Sequence[str],
    split: str,
    cache: Path,
    warn: Warn,
    limit: int | None = None,
    save: Path | None = None,
) -> dict[str, Any]:
    """Translate a split with a checkpoint, score the translations, and return the report.

    Args:
        data: A data set's name, then settings key=value; empty for the data of the checkpoint's run.
        cache: Folder of prepared data.
        warn: Called with one line of text for every source line that is cut or fails.
        limit: Number of sentences, from the first (default: all).
        save: File that the translations are written to.

    Returns:
        The report that `report_text` formats and `--json` prints: plain types only.

    Raises:
        ValueError: The data does not fit the checkpoint, cannot be found, or would be overwritten.
    """
    meta, lang = translator.meta, translator.tgt_lang
    # all checks come before the decoding, which may take long
    if settings.convention:
        check_convention(settings.convention, settings.lang or lang)
    section = data_settings(data, ckpt=ckpt, meta=meta, tgt_lang=lang, cache=cache)
    if save:
        _require_free(save, section)
    # --tokenize wins, then --lang, then the tokenizer that the checkpoint's run was scored with in its own language
    own = meta["tokenize"] if lang == meta["tgt_lang"] else tokenize_for(lang)
    settings = settings.resolved(tokenize=own, lang=lang)
    sources, references = load_pairs(section, split, cache=cache, limit=limit)
    # decode from text, as `translate` does, so that the score is that of the text a user gets
    evaluator = Evaluator(translator, sources, references)
    errors: list[str] = []
    began = time.perf_counter()
    evaluator.translate(lambda note: _report(note, errors, warn))
    # decoding alone: neither loading the model nor scoring counts
    seconds = time.perf_counter() - began
    hypotheses = evaluator.texts().hypotheses
    if save:
        write_lines(save, hypotheses)
    return {
        "checkpoint": ckpt,
        "data": section["name"],
        "split": split,
        "direction": f"{section['src']}-{section['tgt']}",
        "lines": len(sources),
        "failed": sum(map(bool, errors)),
        "seconds": round(seconds, 2),
        "beam_size": translator.settings.beam_size,
        "length_penalty": translator.settings.length_penalty,
        "scores": settings.scores(hypotheses, [references]),
    }


def _require_free(save: Path, section: dict[str, Any]) -> None:
    """Refuse a file that belongs to a corpus, the one that is scored or another."""
    corpus = [file for split in ("train", "valid", "test") for file in data_files(section, split)]
    require_output(save, "--save", inputs=corpus, what="corpus")
    require_no_corpus(save, "--save", [section["src"], section["tgt"]])


def _report(note: Note, errors: list[str], warn: Warn) -> None:
    """Warn of a line that is cut or fails, and keep its error, which is empty for one that is cut."""
    errors.append(note.error)
    warn(f"sentence {note.position + 1} {note}")
