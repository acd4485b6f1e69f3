"""Changes of training pairs on the fly: shares, determinism, and batches of prepared and streamed text."""

from __future__ import annotations

import functools
import random
from pathlib import Path

import numpy as np
import pytest
import torch
import toycorpus

from seq2seq.data.augmentation import KINDS, Augmentation, add_typos
from seq2seq.settings.data import AugmentSettings
from seq2seq.training.lightning_parts.datamodule import TranslationDataModule

SHARES = {"upper": 0.2, "typos": 0.3}
module = functools.partial(toycorpus.module, augment=SHARES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return toycorpus.write(tmp_path_factory.mktemp("toy"), (200, 10, 10))


def texts(made: TranslationDataModule, batches) -> dict[int, tuple[str, str]]:
    tokenizer = made.prepared.tokenizer
    return {
        i: (tokenizer.src.decode([n for n in src if n > 3]), tokenizer.decode([tgt])[0])
        for batch in batches
        for i, src, tgt in zip(batch.index.tolist(), batch.src.tolist(), batch.tgt_out.tolist(), strict=True)
    }


def epoch(made: TranslationDataModule, number: int) -> list:
    made.set_epoch(number)
    return list(made.train_dataloader())


def test_changes_by_hand():
    rng = random.Random(0)
    done = {name: change("Don't stop, kleine MAUS.", rng) for name, change in KINDS.items() if name != "typos"}
    assert done == {
        "upper": "DON'T STOP, KLEINE MAUS.",
        "title": "Don't Stop, Kleine MAUS.",
        "lower": "don't stop, kleine maus.",
    }
    # All errors that one word may have: letters 1-2 or 2-3
    found = {add_typos("9 abc.", random.Random(i)) for i in range(100)}
    assert found == {f"9 {word}." for word in ("bac", "bc", "aabc", "acb", "ac", "abbc")}
    assert add_typos("1 + 2 = 3", rng) == "1 + 2 = 3"
    line = " ".join(["word"] * 40)
    assert sum(word != "word" for word in add_typos(line, rng).split()) == 4


def test_shares_are_met_and_epochs_differ():
    augment = Augmentation(AugmentSettings(upper=0.1, lower=0.2, typos=0.3), 5, {})
    rows = np.arange(20_000)
    assert augment
    kinds = augment.kinds(rows, 0)
    share = np.bincount(kinds, minlength=5) / len(rows)
    # No change, upper, title, lower, typos
    assert share == pytest.approx([0.4, 0.1, 0, 0.2, 0.3], abs=0.012)
    assert (kinds[::-7] == augment.kinds(rows[::-7], 0)).all()
    # Independent draws agree with probability sum p^2
    assert np.mean(kinds == augment.kinds(rows, 1)) == pytest.approx(0.3, abs=0.012)
    with pytest.raises(ValueError, match=r"data\.augment: the shares are 1\.2"):
        AugmentSettings(upper=0.6, typos=0.6)


@pytest.mark.parametrize("alpha", [0.0, 0.2])
def test_batches_hold_the_changed_pairs_within_the_budget(folder, alpha):
    made = module(folder, tokenizer={"sampling_alpha": alpha})
    train = made.prepared.split("train")
    plain = list(zip(train.lines("src"), train.lines("tgt"), strict=True))
    seen = []
    for number in (0, 1, 0):
        batches = epoch(made, number)
        assert len(batches) == made.batches_per_epoch
        assert all(max(b.src.numel(), b.tgt_in.numel()) <= 300 for b in batches)
        seen.append(texts(made, batches))
        changed = {i: pair for i, pair in seen[-1].items() if pair != plain[i]}
        upper = [i for i, pair in changed.items() if pair == tuple(side.upper() for side in plain[i])]
        typos = [i for i, (src, tgt) in changed.items() if tgt == plain[i][1] and src.lower() != plain[i][0].lower()]
        # A pair whose change is too long keeps its text on both sides
        assert len(upper) + len(typos) == len(changed)
        assert len(seen[-1]) > 190
        assert len(upper) > 20
        assert len(typos) > 40
    assert seen[0] == seen[2]
    assert seen[0] != seen[1]
    assert texts(made, made.val_dataloader()) == dict(
        enumerate(zip(made.prepared.sources("valid"), made.prepared.references("valid"), strict=True))
    )
    # Lengths of any epoch stay below the longest that the run plans for
    assert max(max(b.src.shape[1], b.tgt_in.shape[1]) for b in batches) <= max(made.prepared.longest) + 8


@pytest.mark.slow
def test_a_resumed_epoch_and_workers_see_the_same_changes(folder):
    whole = epoch(module(folder), 3)
    made = module(folder, num_workers=2)
    made.set_epoch(3)
    made.seek(epoch=3, step=4)
    for left, right in zip(whole[4:], made.train_dataloader(), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_a_stream_changes_other_pairs_every_round(folder):
    made = module(folder, streaming=True, shuffle_buffer=70)
    plain = dict(enumerate(toycorpus.pairs(220)[:200]))
    rounds: list[dict] = [{}, {}]
    for batch in made.train_dataloader():
        for i, pair in texts(made, [batch]).items():
            rounds[i in rounds[0]].setdefault(i, pair)
        if len(rounds[1]) == len(rounds[0]) == 200:
            break
    changed = [{i for i, pair in found.items() if pair != plain[i]} for found in rounds]
    # Half of the pairs, but for typing errors that change nothing
    assert all(70 < len(each) < 130 for each in changed)
    assert changed[0] != changed[1]
    # Every rank draws by the position in the text
    second = module(folder, streaming=True, shuffle_buffer=70)
    second.trainer = toycorpus.trainer(1, 2)
    own: dict = {}
    for batch in second.train_dataloader():
        if len(own) == 100:
            break
        own = texts(second, [batch]) | own
    assert own == {i: pair for i, pair in rounds[0].items() if i % 2}


def test_images_are_refused(folder):
    grid = {"height": 4, "width": 4, "size": 2, "bits": 1}
    with pytest.raises(ValueError, match=r"data\.augment"):
        module(folder, tokenizer={"patches": grid, "joint": False})
