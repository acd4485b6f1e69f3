"""Score a checkpoint on a split of a data set."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seq2seq.data.context import sentence_of
from seq2seq.data.marks import SEPARATOR
from seq2seq.evaluation.eval_data import data_files, data_settings, load_pairs, require_same_test
from seq2seq.evaluation.scoring import ScoreSettings, Warn
from seq2seq.inference.notes import Notes
from seq2seq.inference.translator import Translator
from seq2seq.metrics.moses_bleu import check_convention
from seq2seq.metrics.scorers import tokenize_of
from seq2seq.options.command_line import require_no_corpus, require_output
from seq2seq.system.files import write_lines


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
        data: Name of a data set, then settings key=value; [] for the data of the checkpoint's run.
        cache: Folder of prepared corpora.
        warn: Called with one line of text for every source line that is cut or fails, and for each kind of note.
        limit: Number of sentences, from the first (default: all).
        save: Output file for the translations.

    Returns:
        The report for `report_text` and `--json`, of plain types; `seconds` is the time of decoding.

    Raises:
        ValueError: The data does not fit the checkpoint, cannot be found, or would be overwritten.
    """
    meta, lang = translator.meta, translator.tgt_lang
    languages = translator.src_lang, lang
    if settings.convention:
        check_convention(settings.convention, settings.lang or lang)
    section = data_settings(data, ckpt=ckpt, meta=meta, languages=languages, cache=cache)
    if save:
        require_output(save, "--save", inputs=data_files(section), what="corpus")
        require_no_corpus(save, "--save", languages)
    # --tokenize takes precedence, then --lang, then the tokenizer of the checkpoint's run for its own language
    resolved = settings.resolved(tokenize=tokenize_of(meta, lang), lang=lang)
    # The translator adds the context by itself; a source without a sentence before it begins a document
    where: dict[str, Any] = {"languages": languages, "cache": cache, "limit": limit, "words": data}
    sources, references = load_pairs(section, split, context=min(1, translator.context), **where)
    begins = {number for number, source in enumerate(sources) if SEPARATOR not in source}
    sources = list(map(sentence_of, sources))
    if split == "test" and not data:
        require_same_test(ckpt, section, zip(sources, references, strict=True))
    notes = Notes(warn, what="sentence")
    began = time.perf_counter()
    # From text, like `translate`, to score the text that a user gets
    hypotheses = translator.texts(sources, note=notes.add, document=begins)
    seconds = time.perf_counter() - began
    notes.report(len(sources))
    settings.warn_of_text({"translations": hypotheses}, {"references": references}, resolved.tokenize, warn=warn)
    if save:
        write_lines(save, hypotheses)
    return {
        "checkpoint": ckpt,
        "data": section.name,
        "split": split,
        "direction": "-".join(languages),
        "lines": len(sources),
        "failed": len(notes.failed),
        "sentences": translator.sentences,
        "warnings": {kind: len(numbers) for kind, numbers in notes.counted.items()},
        "seconds": round(seconds, 2),
        **{name: getattr(translator.settings, name) for name in ("beam_size", "length_penalty")},
        "scores": resolved.scores(hypotheses, [references]),
    }
