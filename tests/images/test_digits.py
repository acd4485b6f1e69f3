"""scikit-learn's digits as images and words, and models that classify them by translation."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from composed import resolved

pytest.importorskip("sklearn", reason="scikit-learn is not installed (the extra `digits`)")

from seq2seq import draw, score, translate
from seq2seq.data.tokenizer import train_tokenizer
from seq2seq.images.digits import NAMES, splits
from seq2seq.images.lines import read_image
from seq2seq.settings.declare import read_section
from seq2seq.settings.tokenizer import TokenizerSettings
from seq2seq.training.plan import make_plan
from seq2seq.training.run import train


def test_the_corpus_is_every_digit_once(tmp_path, capsys):
    """Every image of scikit-learn is in one split, with its name."""
    from sklearn.datasets import load_digits

    assert draw.main(["--digits", str(tmp_path), "--held-out", "150", "--seed", "3"]) == 0
    assert capsys.readouterr().out.startswith("150 valid, 150 test, 1,497 train images")
    found = []
    for split in ("train", "valid", "test"):
        lines = (tmp_path / f"{split}.png64").read_text().split("\n")[:-1]
        names = (tmp_path / f"{split}.en").read_text().split("\n")[:-1]
        for line, name in zip(lines, names, strict=True):
            image = read_image(line, height=8, width=8)
            found.append((tuple(np.rint(image.flatten() * (16 / 255)).astype(int)), NAMES.index(name)))
    images, labels = load_digits(return_X_y=True)
    assert sorted(found) == sorted(
        (tuple(image.astype(int)), label) for image, label in zip(images, labels, strict=True)
    )


def test_the_experiment_has_as_many_pieces_as_ten_names_allow(tmp_path):
    """SentencePiece refuses one piece more."""
    assert draw.main(["--digits", str(tmp_path)]) == 0
    names = (tmp_path / "train.en").read_text().split("\n")[:-1]
    config = resolved(["experiment=digits"])["tokenizer"]
    settings = read_section(TokenizerSettings, config, "tokenizer")
    assert train_tokenizer(src_lines=[], tgt_lines=names, settings=settings).tgt_vocab_size == settings.vocab_size
    more = dataclasses.replace(settings, vocab_size=settings.vocab_size + 1)
    with pytest.raises(ValueError, match=f"the largest size that works is {settings.vocab_size}"):
        train_tokenizer(src_lines=[], tgt_lines=names, settings=more)


def test_splits_are_a_function_of_the_seed():
    first, again, other = (splits(held_out=100, seed=seed)["test"].pixels for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    with pytest.raises(ValueError, match="--held-out 900 twice leaves none of 1,797"):
        splits(held_out=900, seed=1)


@pytest.mark.slow
def test_a_run_classifies_and_prints_classes(tmp_path, capsys):
    """Train, score and translate: one class a line, the best classes with --n-best; two words are refused."""
    assert draw.main(["--digits", str(tmp_path / "digits")]) == 0
    small = ["model.encoder_layers=1", "trainer.max_steps=60", "trainer.val_steps=60", "trainer.precision=32"]
    files = [f"data.{split}={tmp_path / 'digits' / split}" for split in ("train", "valid", "test")]
    places = [f"runs={tmp_path}", "run=classes", f"cache={tmp_path / 'cache'}"]
    words = ["experiment=digits_classifier", *small, *files, *places]
    train(make_plan(resolved(words), mixer="quadratic"))
    test = tmp_path / "digits" / "test.png64"
    capsys.readouterr()
    assert translate.main(["--ckpt", str(tmp_path / "classes"), "--input", str(test)]) == 0
    found = capsys.readouterr().out.split("\n")[:-1]
    names = (tmp_path / "digits" / "test.en").read_text().split("\n")[:-1]
    assert {*found} <= {*NAMES}
    right = sum(name == each for name, each in zip(names, found, strict=True))
    assert right > 80  # of 200
    (tmp_path / "hyp").write_text("\n".join(found) + "\n")
    files = ["--hypotheses", str(tmp_path / "hyp"), "--references", str(tmp_path / "digits" / "test.en")]
    assert score.main([*files, "--metrics", "accuracy"]) == 0
    assert capsys.readouterr().out.split()[:2] == ["accuracy", f"{right / 2:.2f}"]
    assert translate.main(["--ckpt", str(tmp_path / "classes"), "--input", str(test), "--n-best", "3"]) == 0
    rows = [line.split("\t")[2] for line in capsys.readouterr().out.split("\n")[:-1]]
    assert len(rows) == 600
    # One piece, never two classes
    assert {*rows} <= {*NAMES, ""}
    text = (tmp_path / "digits" / "train.en").read_text()
    (tmp_path / "digits" / "train.en").write_text(text.replace("zero", "zero one"))
    with pytest.raises(ValueError, match=r"model.decoder_layers=0"):
        train(make_plan(resolved([*words, "run=words"]), mixer="quadratic"))
