"""data.max_tokens=auto: the search, the sizes that it tries, and runs that equal runs with the number it found."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
import toycorpus
from conftest import PATIENCE
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from toycorpus import execute

from seq2seq.data.batching import aligned, padded_width, token_batches
from seq2seq.data.plan import DataPlan
from seq2seq.data.preparation import prepare_corpora
from seq2seq.network.build import build_model
from seq2seq.prepare import prepare
from seq2seq.runs.resume import Resumed
from seq2seq.runs.training_state import read_state
from seq2seq.settings.data import CPU_MICRO_BATCH
from seq2seq.settings.optim import OptimSettings
from seq2seq.settings.run import read_settings
from seq2seq.settings.search import SearchSettings
from seq2seq.training import auto_batch_size
from seq2seq.training.auto_batch_size import GRAIN, Rehearsal, find_max_tokens, largest_that_fits, worst_shapes
from seq2seq.training.bounds.faults import TrainingFault
from seq2seq.training.lightning_parts.datamodule import TranslationDataModule
from seq2seq.training.lightning_parts.task import TranslationTask
from seq2seq.training.plan import make_plan
from seq2seq.training.run import TrainingRun

EXHAUSTIVE = {"test_an_update_fits_or_not"}

CPU = torch.device("cpu")


# ---- the search


@given(limit=st.integers(1, 3_000_000), most=st.sampled_from([1 << 12, 1 << 19]))
def test_the_search_finds_the_largest_within_its_tolerance(limit, most):
    tried = []

    def fits(number: int) -> bool:
        tried.append(number)
        return number <= limit

    found = largest_that_fits(fits, most=most)
    best = min(limit, most)
    assert len(tried) == len(set(tried)) <= 20
    assert all(number % 256 == 0 and number <= most for number in tried)
    if limit < GRAIN:
        assert (found, tried) == (0, [most, GRAIN])
    else:
        assert found in tried
        assert found <= best
        assert best < found + max(256, 0.05 * found) or best == found


def test_the_answer_has_been_tried():
    chance = np.random.default_rng(random.randrange(2**32))
    for _ in range(50):
        answers: dict[int, bool] = {}
        found = largest_that_fits(lambda n, a=answers: a.setdefault(n, n == 256 or bool(chance.random() < 0.6)))
        assert answers[found]


@settings(max_examples=60, deadline=None)
@given(st.integers(16, 5000), st.integers(1, 90), st.integers(1, 90), st.integers(1, 400), st.data())
def test_no_batch_is_worse_than_the_worst(max_tokens, longest_src, longest_tgt, pairs, data):
    multiple = data.draw(st.sampled_from([1, 8]))  # of the source's width: on a CPU and on a GPU
    longest_src, longest_tgt = (min(side, max_tokens // 2) for side in (longest_src, longest_tgt))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    src, tgt = (rng.integers(1, longest, pairs, endpoint=True) for longest in (longest_src, longest_tgt))
    shapes = worst_shapes(max_tokens, (longest_src, longest_tgt), src_multiple=multiple)
    assert all(rows >= 1 and s % multiple == 0 for rows, s, t in shapes)
    assert all(rows * max(s, t) <= max_tokens for rows, s, t in shapes if multiple == 1)

    def weights(rows: int, s: int, t: int) -> list[int]:
        return [rows * (s * s + s * t + t * t), rows * (s + t), rows]

    worst = [max(each) for each in zip(*(weights(*shape) for shape in shapes), strict=True)]
    for batch in token_batches(src, tgt, max_tokens=max_tokens):
        widths = [int(padded_width(side[batch].max())) for side in (src, tgt)]
        shape = len(batch), aligned(widths[0], multiple), widths[1]
        assert all(here <= most for here, most in zip(weights(*shape), worst, strict=True))


# ---- whether an update fits


class Memory(TorchDispatchMode):
    """Refuse tensors of more than `most` numbers."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.largest = most, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        size = max((each.numel() for each in tree_leaves(out) if isinstance(each, torch.Tensor)), default=0)
        self.largest = max(self.largest, size)
        if size > self.most:
            raise torch.OutOfMemoryError(f"CUDA out of memory: {size} numbers")
        return out


def task(**model: Any) -> TranslationTask:
    """Make a task of width 16, whose widest tensor, of queries, keys and values, has 48 numbers a piece."""
    t = tiny.tokenizer()
    config = tiny.model_config(t, **model)
    return TranslationTask(
        model=build_model(config), tokenizer=t, description={"model": config}, optim=OptimSettings(), seed=1,
        search=SearchSettings(beam_size=1),
    )  # fmt: skip


def rehearse(precision: str = "32-true", copies: int = 0) -> Rehearsal:
    return Rehearsal(task(), longest=(20, 20), device=CPU, precision=precision, copies=copies)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Limit the memory of the search on a CPU."""

    def limit(most: int) -> Memory:
        found = Memory(most)

        @contextlib.contextmanager
        def limited(device: torch.device, parts: int = 1) -> Any:
            with found:
                yield

        monkeypatch.setattr(auto_batch_size, "limited", limited)
        return found

    return limit


def test_an_update_fits_or_not():
    pieces = 9_984
    rehearsal = rehearse(copies=2)
    assert {"exp_avg", "exp_avg_sq"} <= rehearsal._optimizer.state[next(rehearsal.task.parameters())].keys()
    assert all(weight.grad is not None for weight in rehearsal.task.parameters())
    assert len(rehearsal._copies) == 2 * len(list(rehearsal.task.parameters()))
    with Memory(48 * pieces):
        assert rehearsal.fits(pieces)
        assert not rehearsal.fits(pieces + 256)
        assert rehearsal.fits(pieces)  # a failure leaves nothing behind


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true"])
def test_the_search_leaves_no_trace(memory, precision):
    """A piece takes 48 numbers, and memory has room for 48 x 12,000."""
    limit, made = memory(48 * 12_000), []
    state, kind = torch.get_rng_state(), torch.get_default_dtype()

    def noted() -> Rehearsal:
        rehearsal = rehearse(precision, copies=1)
        made.append(rehearsal.task)
        return rehearsal

    found = find_max_tokens(noted, device=CPU)
    assert 0.95 * 12_000 - 256 < found <= 12_000
    assert limit.largest > 48 * 12_000
    assert torch.get_rng_state().equal(state)
    assert torch.get_default_dtype() == kind
    weights = {weight.dtype for weight in made[0].parameters()}
    assert weights == {torch.bfloat16 if precision == "bf16-true" else torch.float32}


def test_a_model_that_does_not_fit_is_refused(memory):
    memory(48 * 200)
    with pytest.raises(TrainingFault, match=r"not even 256 pieces.*smaller model.*checkpoint_activations"):
        find_max_tokens(rehearse, device=CPU)
    memory(100)  # not even the weights
    with pytest.raises(TrainingFault, match="not even 256 pieces"):
        find_max_tokens(rehearse, device=CPU)


def test_other_errors_are_not_taken_for_a_lack_of_memory(monkeypatch):
    rehearsal = rehearse()
    monkeypatch.setattr(rehearsal.task, "sum_losses", lambda batch: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        rehearsal.fits(256)


# ---- runs


def auto(corpus: Path, folder: Path, *overrides: str) -> dict[str, Any]:
    return toycorpus.settings(corpus, folder, "data.max_tokens=auto", "data.batch_tokens=600", *overrides)


def planned(config: dict[str, Any]) -> TrainingRun:
    return TrainingRun(make_plan(config, mixer="transformer"))


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search runs on a CPU, where `memory` limits it."""

    def search(run: TrainingRun) -> int:
        return find_max_tokens(lambda: run._rehearsal(CPU), device=CPU, most=run.data_plan.part_tokens)

    monkeypatch.setattr(TrainingRun, "_largest_batch", search)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("trainer.strategy=fsdp", "optim=anneal"), r"trainer\.strategy=fsdp has none: set data\.max_tokens"),
        (("trainer.strategy=fsdp", "optim=muon"), r"optim\.name=muon .*trainer\.strategy=fsdp"),
        (("data.batch_tokens=null",), r"data\.batch_tokens=25000"),
    ],
)
def test_settings_without_a_size_to_measure_are_refused(corpus, tmp_path, words, message):
    """A sharded model is on no GPU as a whole, so it cannot be measured; the size of an update must be known."""
    with pytest.raises(ValueError, match=message):
        planned(auto(corpus, tmp_path, "trainer.devices=2", *words))


def test_a_cpu_has_a_fixed_size(corpus, tmp_path):
    run = execute(auto(corpus, tmp_path, "trainer.max_steps=1", "trainer.test=false"))
    assert (run.data.max_tokens, run.data.window) == (CPU_MICRO_BATCH, 1)


@pytest.mark.slow
def test_a_run_with_auto_equals_one_with_the_number(corpus, tmp_path, memory, as_on_a_gpu):
    more = ("data.batch_tokens=600", "trainer.ema=0.9", "trainer.test=false", "model.dropout=0.2")
    memory(300 * 400)  # logits, of 300 pieces
    found = execute(auto(corpus, tmp_path, "run=auto", *more))
    size = found.data.max_tokens
    assert 256 <= size <= 400
    assert json.loads(found.folder.results.read_text())["max_tokens"] == size
    given = execute(toycorpus.settings(corpus, tmp_path, f"data.max_tokens={size}", "run=given", *more))
    first, second = (read_state(run.folder.last) for run in (found, given))
    assert first["run"]["max_tokens"] == size
    torch.testing.assert_close(first["state_dict"], second["state_dict"], atol=0, rtol=0)


@pytest.mark.slow
def test_a_resumed_run_keeps_its_number_however_it_is_given(corpus, tmp_path, memory, as_on_a_gpu, monkeypatch):
    memory(300 * 400)  # logits, of 300 pieces
    first = execute(auto(corpus, tmp_path, "run=it", "trainer.test=false"))
    size = first.data.max_tokens
    memory(0)  # a search would fail
    again = execute(auto(corpus, tmp_path, "run=it", "resume=auto", "trainer.test=false", "trainer.max_steps=6"))
    assert again.data.max_tokens == size
    assert read_state(again.folder.last)["global_step"] == 6
    monkeypatch.undo()  # a CPU again, which may resume a run of a GPU
    assert planned(auto(corpus, tmp_path, "run=it", "resume=auto")).data_plan.max_tokens == size
    # The number depends on the machine: a run may be resumed with any other
    other = read_settings(auto(corpus, tmp_path, f"data.max_tokens={size + 8}")).plain()
    assert Resumed.open(first.folder.last, other, first.folder).max_tokens == size
    update = read_settings(auto(corpus, tmp_path, "data.batch_tokens=601")).plain()
    with pytest.raises(ValueError, match=r"data\.batch_tokens was 600 and is now 601"):
        Resumed.open(first.folder.last, update, first.folder)


def test_learned_positions_must_know_the_longest_sentence(corpus, tmp_path):
    given = ("model.positions=learned", "model.max_len=64")
    for rule, longest in (("null", "600 pieces.* data\\.clean\\.max_length=64"), ("65", "65 pieces")):
        with pytest.raises(ValueError, match=longest):
            planned(auto(corpus, tmp_path, f"data.clean.max_length={rule}", *given))


# ---- the data


def data_plan(corpus: Path, max_tokens: int | str, *overrides: str) -> DataPlan:
    config = toycorpus.settings(corpus, corpus, f"data.max_tokens={max_tokens}", *overrides)
    cache = corpus / "cache"
    return toycorpus.data_plan(config["data"], tokenizer=config["tokenizer"], seed=1, cache_dir=cache)


@pytest.mark.parametrize("size", [48, 512])
def test_pairs_do_not_depend_on_the_micro_batch(corpus, size):
    undecided = prepare_corpora(data_plan(corpus, "auto", "data.batch_tokens=512"))
    plain = prepare_corpora(data_plan(corpus, 512))
    assert undecided.longest == plain.longest
    with pytest.raises(ValueError, match=r"set data\.max_tokens to a number"):
        TranslationDataModule(undecided).train_dataloader()
    made = TranslationDataModule(undecided.with_max_tokens(size))
    rows = [row for batch in made.train_dataloader() for row in batch.index.tolist()]
    assert sorted(row for row in rows if row >= 0) == list(range(plain.size("train")))
    assert (made.window > 1) == (size == 48)


def test_either_side_may_be_cut_as_long_as_the_other(corpus):
    plain = prepare_corpora(data_plan(corpus, 512))
    sampled = ("data.batch_tokens=512", "tokenizer.sampling_alpha=0.1")
    measured = prepare_corpora(data_plan(corpus, "auto", *sampled))
    assert measured.longest == (max(plain.longest),) * 2
    # A given budget bounds a batch by itself, and leaves room for drawn segmentations of the longest sentence
    given = prepare_corpora(data_plan(corpus, 512, "tokenizer.sampling_alpha=0.1"))
    assert given.longest[0] == given.longest[1] > max(plain.longest)
    for made in (measured.with_max_tokens(512), given):
        batches = list(TranslationDataModule(made).train_dataloader())
        widest = max(int(max(batch.src_mask.sum(1).max(), batch.tgt_mask.sum(1).max())) for batch in batches)
        assert widest <= made.longest[0]


def test_the_budget_of_an_update_bounds_the_pairs_of_a_stream(corpus):
    stream = ("data.streaming=true", "data.batch_tokens=256")
    for rule, longest in (("250", 250), ("null", 256)):
        made = prepare_corpora(data_plan(corpus, "auto", *stream, f"data.clean.max_length={rule}"))
        assert made.longest == (longest, longest)


def test_the_budget_of_translation_is_bounded(corpus):
    made = TranslationDataModule(prepare_corpora(data_plan(corpus, 1 << 19)))
    assert made._sampler("train").max_tokens == 1 << 19
    assert made._sampler("valid").max_tokens == made._sampler("test").max_tokens == 8192


def test_preparing_needs_no_number(corpus, tmp_path, caplog):
    caplog.set_level("INFO")
    prepare(make_plan(auto(corpus, tmp_path), mixer="x").opened())
    assert "training decides how large batches are (data.max_tokens=auto)" in caplog.text


SCRIPT = """
import os
from seq2seq.training.run import TrainingRun
TrainingRun._largest_batch = lambda run: 256 if os.environ.get("LOCAL_RANK") == "1" else 512
from seq2seq.train import main
main()
"""


@pytest.mark.slow
def test_processes_take_the_least(corpus, tmp_path):
    """Of two processes, the second has the smaller device, which decides."""
    script = tmp_path / "of_two_sizes.py"
    script.write_text(SCRIPT)
    short = ("trainer.test=false", "trainer.max_steps=1")
    data = ("data.max_tokens=auto", "data.batch_tokens=2000")
    words = toycorpus.words(corpus, tmp_path, *data, "trainer.devices=2", "run=two", *short)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(auto_batch_size.__file__).parents[2])}
    command = [sys.executable, str(script), *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "runs" / "two"
    found = json.loads((folder / "results.json").read_text())
    # 2,000 tokens over two devices of 256 each
    assert (found["max_tokens"], found["accumulate"]) == (256, 5)
    assert read_state(folder / "checkpoints" / "last.ckpt")["run"]["max_tokens"] == 256


# ---- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_the_budget_of_a_gpu_can_be_trained_with_and_twice_of_it_cannot(precision):
    """The limit of 2 GiB keeps the answer far below the largest size that is tried."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    device = torch.device("cuda", 0)
    sizes: Any = {"dim": 512, "ffn_dim": 2048, "num_heads": 8, "encoder_layers": 4, "decoder_layers": 4}
    total = torch.cuda.mem_get_info(device)[1]
    before = torch.cuda.get_per_process_memory_fraction(device)
    torch.cuda.set_per_process_memory_fraction(min(before, 2 * 2**30 / total), device)
    try:

        def rehearse() -> Rehearsal:
            return Rehearsal(task(**sizes), longest=(100, 100), device=device, precision=precision)

        found = find_max_tokens(rehearse, device=device)
        assert torch.cuda.memory_allocated(device) < 2**28  # work space of cuBLAS
        assert torch.cuda.get_per_process_memory_fraction(device) == pytest.approx(min(before, 2 * 2**30 / total))
        rehearsal = rehearse()
        assert rehearsal.fits(found)
        assert not rehearsal.fits(2 * found)
    finally:
        torch.cuda.set_per_process_memory_fraction(before, device)
