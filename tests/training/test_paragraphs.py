"""Lines of paragraphs and of sentences: the statistics in a checkpoint, and the lines that are translated whole."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import toycorpus

from seq2seq.inference.translator import Translator

SHORT = ("trainer.max_steps=1", "trainer.test=false")


def _paragraphs(folder: Path, count: int) -> Path:
    """Write training, validation and test text of lines of `count` sentences."""
    folder.mkdir()
    found = toycorpus.pairs(120)
    for name, size in (("train", 200), ("valid", 12), ("test", 12)):
        for side, lang in enumerate(("de", "en")):
            rng = random.Random(name)
            rows = [" ".join(pair[side] for pair in rng.sample(found, count)) for _ in range(size)]
            (folder / f"{name}.{lang}").write_text("".join(row + "\n" for row in rows), encoding="utf-8")
    return folder


def test_a_model_of_paragraphs_keeps_them_and_one_of_sentences_cuts_them(tmp_path, caplog) -> None:
    """From training to translation: the checkpoint has the statistics of the training lines."""
    paragraph = " ".join(german for german, _ in toycorpus.pairs(3))
    for count, parts in ((3, 0), (1, 3)):
        corpus = _paragraphs(tmp_path / str(count), count)
        run = toycorpus.execute(toycorpus.settings(corpus, tmp_path / f"run-{count}", *SHORT))
        translator = Translator.load(run.folder.path / "checkpoints" / "best.safetensors", device="cpu")
        assert translator.statistics[:2] == (count, count)
        (row,) = translator.translate([paragraph], note=lambda note: None)
        assert len(row[0].parts) == parts


def test_a_test_set_of_paragraphs_is_named_where_training_has_sentences(tmp_path, caplog) -> None:
    """Validation and test text is translated as it is, and the log says what that means."""
    sentences, paragraphs = _paragraphs(tmp_path / "1", 1), _paragraphs(tmp_path / "3", 3)
    other = f"data.test={paragraphs / 'test'}"
    with caplog.at_level(logging.WARNING, "seq2seq.data.line_statistics"):
        toycorpus.execute(toycorpus.settings(sentences, tmp_path, *SHORT, other))
    (told,) = [record.getMessage() for record in caplog.records if "than most training lines" in record.getMessage()]
    assert told.startswith("12 of the 12 lines of data.test have more sentences or pieces")
