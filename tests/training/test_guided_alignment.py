"""Guided alignment: the loss and its gradient by hand, links of files and of IBM Model 1, refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import composed
import numpy as np
import pytest
import torch
import toycorpus
from test_task import Data, batch, fit, make

from seq2seq.data.batching import Batch
from seq2seq.data.dataset import PairDataset
from seq2seq.data.preparation import prepare_corpora
from seq2seq.data.ragged import Ragged
from seq2seq.inference.encoding import source_pieces, target_pieces
from seq2seq.settings.optim import OptimSettings
from seq2seq.training.auto_batch_size import Rehearsal
from seq2seq.training.checks import make_data_plan
from seq2seq.training.objective import guided_alignment
from seq2seq.training.objective.batch_loss import sum_losses
from seq2seq.training.objective.guided_alignment import align_pieces, guided_losses, guided_mixer, shares
from seq2seq.training.plan import make_plan
from seq2seq.training.run import TrainingRun


def links(*rows: list[tuple[int, int]]) -> Ragged:
    """Rows of (source, target) pieces."""
    return Ragged.from_rows([[(t << 32) + s for s, t in row] for row in rows])


LINKS = links(*[[(0, 0), (1, 0), (1, 2)] if i % 2 else [] for i in range(12)])


def test_shares_of_linked_pieces():
    given = batch([1, 2])
    found = shares(LINKS, given)
    assert found.shape == (*given.tgt_out.shape, given.src.shape[1])
    expected = torch.zeros_like(found)
    expected[0, 0, :2] = 0.5
    expected[0, 2, 1] = 1.0
    assert torch.equal(found, expected)
    idle = Batch(*given[:-1], torch.tensor([-1, -1]))
    assert not shares(LINKS, idle).any()


def test_the_gradient_is_the_one_of_cross_entropy_by_hand():
    """With one linked source piece, d/dz_s -log mean_h softmax(z_h)_s = w_hs (w_hr - [r = s]) / sum_h w_hs."""
    model, given, one = make().model.train(), batch([1]), links([], [(1, 2)])
    mixer: Any = guided_mixer(model)
    scores: list[torch.Tensor] = []
    plain = mixer.read_weights

    def read(x: torch.Tensor, context: Any) -> torch.Tensor:
        scores.append(plain(x, context).log().detach().requires_grad_())  # scores up to a constant
        return scores[-1].softmax(-1)

    mixer.read_weights = read
    settings = OptimSettings(guided_alignment=2.0)
    loss = guided_losses(model, given, settings, one).loss - sum_losses(model, given, settings).loss
    (gradient,) = torch.autograd.grad(loss / 2, scores)
    weights = scores[0].softmax(-1)[0, :, 2]  # (H, S)
    assert loss.item() / 2 == pytest.approx(-weights.mean(0)[1].log().item(), rel=1e-4)
    onehot = torch.eye(weights.shape[1])[1]
    by_hand = weights[:, 1:2] * (weights - onehot) / weights[:, 1].sum()
    torch.testing.assert_close(gradient[0, :, 2], by_hand)
    gradient[0, :, 2] = 0
    assert not gradient.any()


@pytest.mark.parametrize("mixer", ["transformer", "bahdanau", "luong", "coverage", "cross_lightconv", "relu_attention"])
def test_every_mixer_with_weights_is_guided(mixer):
    """Weights of any sum are read as shares, so that no scale of the scores lowers the loss."""
    model, known = composed.tiny(f"mixer={mixer}").eval(), batch([1, 2])
    # The pieces of the small vocabulary
    given = Batch(*(part % composed.VOCAB if part.dtype == torch.long else part for part in known[:-1]), known.index)
    parameters = list(guided_mixer(model).parameters())
    plain = sum_losses(model, given, OptimSettings()).loss
    guided = guided_losses(model, given, OptimSettings(guided_alignment=1.0), LINKS).loss
    assert guided > plain
    with_links, without = (torch.autograd.grad(loss, parameters) for loss in (guided, plain))
    assert max(float((a - b).abs().max()) for a, b in zip(with_links, without, strict=True)) > 1e-3


def test_training_alone_has_the_loss_and_learns_the_links():
    task, plain = make(guided_alignment=0.5), make()
    given = batch([1, 3])
    before = plain.train().sum_losses(given)
    assert task.train().sum_losses(given).loss == before.loss  # no links
    task.links = LINKS
    found = task.sum_losses(given)
    assert found.loss > before.loss + 1
    assert found.nll == before.nll
    assert task.eval().sum_losses(given).loss == plain.eval().sum_losses(given).loss
    for each in (task, plain):
        each.optim = OptimSettings(guided_alignment=0.5, lr=0.01, schedule="constant", warmup_steps=0)
        fit(each.train(), Data([given] * 8))
    extra = [guided_losses(each.model, given, each.optim, LINKS).loss - sum_losses(each.model, given, each.optim).loss
             for each in (task, plain)]  # fmt: skip
    assert extra[0] < 0.8 * extra[1]


def test_a_rehearsal_has_no_links():
    """Its sentences are random, and shorter than the pair of the same number."""
    task = make(guided_alignment=0.5)
    task.links = links(*[[(90, 90)]] * 12)
    Rehearsal(task, longest=(8, 8), device=torch.device("cpu"), precision="32-true").update(2, 4, 4)


def prepared(corpus: Path, folder: Path, *words: str) -> Any:
    plan = make_plan(toycorpus.settings(corpus, folder, *words), mixer="transformer")
    return prepare_corpora(make_data_plan(plan, None))


def words_linked(data: Any, found: Ragged, row: int) -> set[tuple[str, str]]:
    src, tgt = data.split("train").ids(np.array([row]))
    pieces = source_pieces(data.tokenizer, src.row(0)), target_pieces(data.tokenizer, tgt.row(0))
    return {(pieces[0][link % (1 << 32)], pieces[1][link >> 32]) for link in found.row(row).tolist()}


def test_links_of_a_file_are_links_of_pieces(tmp_path):
    """Cleaning drops the pair without a target, and rules on lengths the long pair."""
    rows = toycorpus.pairs(80)
    text = [rows[0], ("Katze", ""), ("Hund " * 60, "dog"), *rows[1:]]
    lines = ["0-1", "", "3-0", *["1-0 0-0"] * 79]
    for side, name in enumerate(("train.de", "train.en")):
        (tmp_path / name).write_text("".join(pair[side] + "\n" for pair in text))
        for split in ("valid", "test"):
            (tmp_path / name.replace("train", split)).write_text("".join(pair[side] + "\n" for pair in rows[:5]))
    file = tmp_path / "train.align"
    file.write_text("".join(f"{line}\n" for line in lines))
    given = (f"data.alignment={file}", "optim.guided_alignment=0.1")
    data = prepared(tmp_path, tmp_path, *given)
    found = align_pieces(data)
    assert len(found.lengths) == data.size("train") == 80
    for row, (german, english) in enumerate(rows):
        sides = [german.split(), english.split()]
        pairs = [(0, 1)] if row == 0 else [(1, 0), (0, 0)]
        texts = {(sides[0][i], sides[1][j]) for i, j in pairs}
        linked = words_linked(data, found, row)
        # All pieces of a word are linked, and no others
        for source, target in linked:
            assert any(source.strip("▁") in one and target.strip("▁") in two for one, two in texts)
        assert {source.strip("▁") for source, _ in linked} >= {one[0] for one, _ in texts if len(one) == 1}
        assert linked
    for wrong, why in (
        ("0-9", "line 1: 0-9 does not link"),
        ("0:1", "line 1: 0:1 does"),
        (None, "lines than the training text has"),
    ):
        file.write_text("".join(f"{line}\n" for line in ([wrong, *lines[1:]] if wrong else lines[:-1])))
        with pytest.raises(ValueError, match=why):
            align_pieces(data)
    file.write_text("\n" * len(lines))
    with pytest.raises(ValueError, match="links no words"):
        align_pieces(data)


def test_ibm_model_1_links_translations(tmp_path):
    corpus = toycorpus.write(tmp_path / "corpus", (240, 5, 5))
    data = prepared(corpus, tmp_path)
    found = align_pieces(data)
    right, count = 0, 0
    for row in range(data.size("train")):
        for source, target in words_linked(data, found, row):
            if (source := source.strip("▁")) in toycorpus.NOUNS:
                count += 1
                right += toycorpus.NOUNS[source] == target.strip("▁")
    assert count > 200
    assert right / count > 0.9


def test_an_estimate_without_links_is_named(tmp_path, monkeypatch):
    data = prepared(toycorpus.write(tmp_path / "corpus", (20, 5, 5)), tmp_path)
    monkeypatch.setattr(guided_alignment, "_estimated", lambda prepared: [np.zeros(0, np.int64)] * 20)
    with pytest.raises(ValueError, match=r"^IBM Model 1 .*data\.alignment="):
        align_pieces(data)


def test_links_belong_to_the_pairs_that_rules_on_lengths_keep(tmp_path):
    """As many other pairs have links of their own in the cache."""
    data = prepared(toycorpus.write(tmp_path / "corpus", (60, 5, 5)), tmp_path)
    ((_, pairs),) = data.corpora("train")
    for rows in (np.arange(40), np.arange(20, 60)):
        chosen = replace(data, splits={"train": PairDataset([replace(pairs, rows=rows)])})
        found = align_pieces(chosen)
        assert all(words_linked(chosen, found, row) for row in range(40))
        lengths = chosen.split("train").ids(np.arange(40))[1].lengths
        assert all(found.row(row)[-1] >> 32 < lengths[row] for row in range(40))
    assert len([*data.plan.cache_dir.glob("alignment-*")]) == 2


def test_a_context_has_no_links(tmp_path):
    """Links of a file and of IBM Model 1 are those of the last sentence, and each pair has some."""
    corpus = toycorpus.write(tmp_path / "corpus", (60, 5, 5))
    file = tmp_path / "train.align"
    file.write_text("0-0 1-1\n" * 60)
    for words in ((f"data.alignment={file}",), ()):
        data = prepared(corpus, tmp_path, "optim.guided_alignment=0.1", "data.context=1", *words)
        found = align_pieces(data)
        for row in range(1, data.size("train")):
            src = data.split("train").ids(np.array([row]))[0].row(0).tolist()
            places = found.row(row) % (1 << 32)
            assert len(places)
            assert places.min() > src.index(data.tokenizer.separator)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("mixer=encoder_decoder",), "has no weights over the source"),
        (("tokenizer.sampling_alpha=0.5",), "tokenizer.sampling_alpha=0.5"),
        (("optim.r_drop=5",), "optim.r_drop=5"),
        (("trainer.checkpoint_activations=true",), "trainer.checkpoint_activations=true"),
        (("data.alignment=absent",), "data.alignment=absent: no such file"),
        (("optim.guided_alignment=0", "data.alignment=x"), "data.alignment=x: needs optim.guided_alignment"),
    ],
)
def test_what_cannot_be_guided_is_refused(tmp_path, words, named):
    corpus = toycorpus.write(tmp_path / "corpus", (20, 5, 5))
    config = toycorpus.settings(corpus, tmp_path, "optim.guided_alignment=0.1", *words)
    with pytest.raises(ValueError, match=named):
        TrainingRun(make_plan(config, mixer="x"))
