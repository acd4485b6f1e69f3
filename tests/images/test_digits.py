"""scikit-learn's digits as images and words, and models that classify them by translation."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="scikit-learn is not installed (the extra `digits`)")

from benchmarks import digits as benchmark
from seq2seq import draw
from seq2seq.data.tokenizer import train_tokenizer
from seq2seq.images.digits import NAMES, splits
from seq2seq.images.lines import read_image
from seq2seq.settings.compose import resolved_settings
from seq2seq.settings.declare import read_section
from seq2seq.settings.tokenizer import TokenizerSettings

EXHAUSTIVE = ("test_models_cost_the_same_and_learn",)


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
    config = resolved_settings(["experiment=digits"])["tokenizer"]
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


def test_models_cost_the_same_and_learn():
    """FLOPs within 5%; sixty updates are far better than guessing."""
    digits = splits(held_out=200, seed=1)
    found = [benchmark.measure(subject, digits, updates=60, seed=1) for subject in benchmark.SUBJECTS]
    costs = [score["flops"] for score in found]
    assert max(costs) < 1.05 * min(costs)
    assert all(score["accuracy"] > 0.4 for score in found)
    assert [score["parameters"] for score in found[:2]] == [found[0]["parameters"]] * 2


def test_a_convolution_of_the_resnet_costs_what_it_does():
    """4 blocks of two 3 x 3 convolutions of 44 channels at 4 x 4 positions, the stem and the classifier."""
    digits = splits(held_out=200, seed=1)
    score = benchmark.measure(benchmark.SUBJECTS[2], digits, updates=1, seed=1)
    products = 8 * 16 * 9 * 44 * 44 + 16 * 4 * 44 + 44 * 10
    assert score["flops"] == 2 * products
    assert score["parameters"] == 8 * (9 * 44 * 44 + 2 * 44) + 4 * 44 + 2 * 44 + 44 * 10 + 10


def test_attention_translates_into_one_word():
    """The logits of the classes are the logits of the ten words after the begin symbol."""
    model = benchmark.Attention(layers=1, taps=True).eval()
    patches = torch.randint(2**32, (3, 16))
    whole = model.model(patches, torch.ones(3, 16).bool(), torch.full((3, 1), benchmark.BOS))
    assert torch.equal(model(patches), whole[:, 0, :10])
