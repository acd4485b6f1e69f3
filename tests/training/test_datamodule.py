"""From settings to batches: caches that are never stale, epochs, ranks, and Lightning's own loop."""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import toycorpus
from composed import resolved
from conftest import PATIENCE
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning import LightningModule, Trainer

from seq2seq.data import preparation
from seq2seq.data.cleaning import HashSet
from seq2seq.data.dataset import DrawnLengths
from seq2seq.data.pace import Pace
from seq2seq.data.plan import DataPlan
from seq2seq.data.preparation import PreparedData, prepare_corpora
from seq2seq.data.token_cache import PairEncoder, write_ids
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.updates import TokenBatchSampler
from seq2seq.settings.declare import read_section
from seq2seq.system.ranks import SIGNALS
from seq2seq.system.resources import conf_dir
from seq2seq.training.lightning_parts.datamodule import TranslationDataModule

GERMAN = ["der", "die", "das", "Haus", "Katze", "Hund", "geht", "kommt", "schnell", "ein", "und", "ich", "nicht", "wir"]
ENGLISH = ["the", "house", "cat", "dog", "walks", "comes", "quickly", "a", "and", "I", "you", "not", "today", "we"]
# Names that the code made of the same text and settings before it moved.
EXPECTED = {
    "plain": ["text-8eaaf8eb23ef5d15", "tokenizer-5d904bb9bccbf8db"],
    "held out": ["text-8b5f4a0f04f1f114", "tokenizer-9bca675f7e3f976c"],
}
fast = settings(max_examples=60, deadline=None)
SIZES = {"train": 300, "valid": 31, "test": 17}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Three splits of random sentences, and a cache that the module's tests share."""
    root, rng = tmp_path_factory.mktemp("corpus"), random.Random(0)
    for split, size in SIZES.items():
        for language, words in (("de", GERMAN), ("en", ENGLISH)):
            lines = [" ".join(rng.choices(words, k=rng.randint(2, 14))) + f" {i}." for i in range(size)]
            (root / f"{split}.{language}").write_text("\n".join(lines) + "\n")
    return root


def read_settings(folder: Path, *, cache: str = "cache", seed: int = 1, **changes) -> DataPlan:
    data = {"name": "toy", "src": "de", "tgt": "en", "max_tokens": 300, "clean": {"length_ratio": None}}
    data |= {split: str(folder / split) for split in SIZES}
    tokenizer = {"vocab_size": 80, "byte_fallback": False} | changes.pop("tokenizer", {})
    return toycorpus.data_plan(data | changes, tokenizer=tokenizer, seed=seed, cache_dir=folder / cache)


def prepared(folder: Path, **changes) -> PreparedData:
    return prepare_corpora(read_settings(folder, **changes))


def module(folder: Path, **changes) -> TranslationDataModule:
    made = TranslationDataModule(prepared(folder, **changes))
    made.describe()
    return made


def texts(data: PreparedData, batches) -> Iterator[tuple[int, str, str]]:
    for batch in batches:
        for index, src, tgt in zip(batch.index.tolist(), batch.src.tolist(), batch.tgt_out.tolist(), strict=True):
            pieces = [i for i in src if i not in (0, 3)]
            yield index, data.tokenizer.src.decode(pieces), data.tokenizer.decode([tgt])[0]


def test_batches_hold_the_text_that_index_names(folder):
    made = module(folder)
    loaders = {"train": made.train_dataloader, "valid": made.val_dataloader, "test": made.test_dataloader}
    for split, loader in loaders.items():
        rows = sorted(texts(made.prepared, loader()))
        assert [index for index, _, _ in rows] == list(range(SIZES[split]))
        assert [src for _, src, _ in rows] == made.prepared.sources(split)
        assert [tgt for _, _, tgt in rows] == made.prepared.references(split)
        assert made.prepared.size(split) == SIZES[split]
    assert made.prepared.references("test") == (folder / "test.en").read_text().splitlines()
    batches = list(made.train_dataloader())
    masks = [mask for batch in batches for mask in (batch.src_mask, batch.tgt_mask)]
    real, cells = sum(int(mask.sum()) for mask in masks), sum(mask.numel() for mask in masks)
    assert made.padding_share == pytest.approx(1 - real / cells)
    assert made.batches_per_epoch == len(batches)
    with pytest.raises(ValueError, match="split 'dev'"):
        made.prepared.size("dev")


def test_second_start_tokenises_and_trains_nothing(folder, monkeypatch):
    first = module(folder)

    def never(*args, **values):
        raise AssertionError("this was cached")

    for name in ("encode_src", "encode_tgt"):
        monkeypatch.setattr(Tokenizer, name, never)
    monkeypatch.setattr(preparation, "train_tokenizer", never)
    second = module(folder)
    assert second.prepared.tokenizer.fingerprint == first.prepared.tokenizer.fingerprint
    one, two = (list(made.train_dataloader()) for made in (first, second))
    for left, right in zip(one, two, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))
    # Another budget, seed or rule about length uses the same cache.
    assert prepared(folder, max_tokens=500, seed=9, clean={"max_length": 30}).size("train") < 300


def cached(folder: Path, cache: str) -> set[str]:
    return {path.name for path in (folder / cache).iterdir() if path.name != "hub"}


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({"tokenizer": {"vocab_size": 70}}, {"tokenizer", "ids"}),
        ({"tokenizer": {"type": "bpe"}}, {"tokenizer", "ids"}),
        ({"tokenizer": {"normalizer": "nfkc_cf"}}, {"tokenizer", "ids"}),
        ({"tokenizer": {"joint": False, "vocab_size": 50}}, {"tokenizer", "ids"}),
        ({"clean": {"length_ratio": None, "same": False}}, {"text", "tokenizer", "ids", "overlap"}),
        ({"src": "en", "tgt": "de"}, {"text", "tokenizer", "ids", "overlap"}),
        ({"tokenizer": {"sampling_alpha": 0.1}}, set()),
        ({"max_tokens": 400}, set()),
    ],
)
def test_changed_settings_never_meet_a_stale_cache(folder, changes, kinds):
    prepared(folder)
    before = cached(folder, "cache")
    data = prepared(folder, **changes)
    new = {name.split("-")[0] for name in cached(folder, "cache") - before}
    assert new == kinds
    assert [tgt for _, _, tgt in sorted(texts(data, TranslationDataModule(data).test_dataloader()))] == [
        data.tokenizer.decode(data.tokenizer.encode_tgt([line]))[0] for line in data.references("test")
    ]


def test_changed_data_never_meets_a_stale_cache(folder, tmp_path):
    for path in folder.glob("*.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    prepared(tmp_path)
    path = tmp_path / "test.en"
    path.write_text(path.read_text().replace("cat", "dog"))
    made = prepared(tmp_path)
    assert made.references("test") == path.read_text().splitlines()


def test_code_version_is_part_of_the_cache(folder, monkeypatch):
    prepared(folder)
    before = cached(folder, "cache")
    monkeypatch.setattr(preparation, "IDS_VERSION", -1)
    prepared(folder)
    assert {name.split("-")[0] for name in cached(folder, "cache") - before} == {"ids"}


def test_names_of_cache_folders_stay(tmp_path):
    """The names are those from before settings and preparation moved, so an earlier cache is still found."""
    for split in SIZES:
        (tmp_path / f"{split}.de").write_text("".join(f"der Hund geht {i}\n" for i in range(40)))
        (tmp_path / f"{split}.en").write_text("".join(f"the dog walks {i}\n" for i in range(40)))
    separate = {"vocab_size": 30, "joint": False, "type": "bpe"}
    plain = prepared(tmp_path, tokenizer={"vocab_size": 30})
    held_out = prepared(tmp_path, valid=None, holdout=5, tokenizer=separate)
    made = {"plain": plain, "held out": held_out}
    names = {name: [data.folders[key].name for key in ("text", "tokenizer")] for name, data in made.items()}
    assert names == EXPECTED


def test_interrupted_preparation_leaves_nothing_that_looks_whole(folder, monkeypatch):
    monkeypatch.setattr(preparation.np, "save", lambda *args: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(ValueError, match=r"disk full.*make room"):
        prepared(folder, cache="broken")
    assert not [name for name in cached(folder, "broken") if name.startswith((".", "ids"))]
    monkeypatch.undo()
    assert prepared(folder, cache="broken").size("train") == 300


def test_ready_model_is_used_as_it_is(folder, tmp_path):
    first = prepared(folder)
    path = tmp_path / "ready.model"
    path.write_bytes(first.tokenizer.to_state()["src_model"])
    again = prepared(folder, tokenizer={"model": str(path)})
    assert again.tokenizer.fingerprint == first.tokenizer.fingerprint


def test_ready_separate_models_given_for_the_other_direction(folder, tmp_path):
    state = prepared(folder, tokenizer={"joint": False, "vocab_size": 50}).tokenizer.to_state()
    for side in ("src", "tgt"):
        (tmp_path / side).write_bytes(state[f"{side}_model"])
    models = {"src_model": str(tmp_path / "src"), "tgt_model": str(tmp_path / "tgt")}
    read_settings(folder, tokenizer=models)
    turned = {"src_model": models["tgt_model"], "tgt_model": models["src_model"]}
    with pytest.raises(ValueError, match="look swapped"):
        read_settings(folder, tokenizer=turned)


def test_sizes_are_logged(folder, caplog):
    with caplog.at_level(logging.INFO):
        prepared(folder)
        prepared(folder, tokenizer={"joint": False, "vocab_size": 50})
    found = [line for line in caplog.messages if "pairs (train" in line]
    splits = "300 / 31 / 17 pairs (train / valid / test)"
    assert found[0] == f"de-en: {splits}, joint vocabulary of 80 pieces"
    assert found[1] == f"de-en: {splits}, vocabularies of 50 and 50 pieces (source, target)"


def test_cleaning_table_is_logged_and_oversized_pairs_never_reach_a_batch(folder, caplog):
    with caplog.at_level(logging.INFO):
        made = module(folder, max_tokens=30)
    assert "max_length" in caplog.text
    assert "padding" in caplog.text
    kept = made.prepared.size("train")
    assert 0 < kept < 300
    assert all(max(b.src.numel(), b.tgt_in.numel()) <= 30 for b in made.train_dataloader())
    assert made.prepared.size("test") == 17  # evaluation keeps them all, each alone if need be
    assert sorted(i for b in made.test_dataloader() for i in b.index.tolist()) == list(range(17))
    with pytest.raises(ValueError, match=r"no training pair is left: data\.max_tokens=8"):
        prepared(folder, max_tokens=8, clean={"max_length": 1})


def test_subword_sampling_varies_by_epoch_follows_the_seed_and_holds_the_budget(folder):
    made = module(folder, tokenizer={"sampling_alpha": 0.2})
    loader = made.train_dataloader()

    def epoch(number):
        made.set_epoch(number)
        batches = list(loader)
        assert all(max(b.src.numel(), b.tgt_in.numel()) <= 300 for b in batches)
        assert sorted(texts(made.prepared, batches)) == [
            (i, *pair)
            for i, pair in enumerate(
                zip(made.prepared.sources("train"), made.prepared.references("train"), strict=True)
            )
        ]
        return {index: row for b in batches for index, row in zip(b.index.tolist(), b.src.tolist(), strict=True)}

    zero, one, again = epoch(0), epoch(1), epoch(0)
    assert zero == again
    assert zero != one
    best = module(folder)
    plain = {i: r for b in best.train_dataloader() for i, r in zip(b.index.tolist(), b.src.tolist(), strict=True)}
    assert plain != zero


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_most_sentences_have_a_drawn_segmentation(folder, model_type):
    """The share is the same as in draws without batches, also among the longer half of the sentences."""
    made = module(folder, tokenizer={"sampling_alpha": 0.2, "type": model_type})
    data, tokenizer = made.prepared.split("train"), made.prepared.tokenizer
    for side, encode in (("src", tokenizer.encode_src), ("tgt", tokenizer.encode_tgt)):
        lines = data.lines(side)
        whole = encode(lines)
        free = [drawn == one for drawn, one in zip(encode(lines, seed=5), whole, strict=True)]
        kept = {}
        for batch in made.train_dataloader():
            ids, mask = (batch.src, batch.src_mask) if side == "src" else (batch.tgt_out, batch.tgt_mask)
            for index, row, real in zip(batch.index.tolist(), ids, mask, strict=True):
                kept[index] = row[real].tolist() == whole[index]
        longer = sorted(kept, key=lambda index: len(whole[index]))[len(kept) // 2 :]
        for rows in (list(kept), longer):
            assert sum(kept[i] for i in rows) / len(rows) < sum(free) / len(free) + 0.1


def test_room_for_drawn_segmentations():
    """Draws are twice as long on average, and 19 of 20 have room; the room is bounded by the best and the limit."""
    best = np.full(2000, 16)
    drawn = np.random.default_rng(0).normal(32, 4, 2000)
    room = DrawnLengths.of(best, drawn, widest=60)
    assert room.growth == pytest.approx(1, abs=0.02)
    # The normal distribution's 95% quantile is at 1.645 deviations
    assert 4 * room.spread == pytest.approx(1.645 * 4, abs=0.4)
    assert np.mean(drawn <= room(best)) == pytest.approx(0.95, abs=0.02)
    assert room(np.array([16, 40, 70])).tolist() == [int(room(best)[0]), 60, 70]


def test_workers_deliver_the_same_batches(folder):
    changes = {"tokenizer": {"sampling_alpha": 0.2}}
    alone, helped = module(folder, **changes), module(folder, num_workers=2, **changes)
    for made in (alone, helped):
        made.set_epoch(3)
    for left, right in zip(alone.train_dataloader(), helped.train_dataloader(), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_to_all_processes_leaves_the_workers(folder, number):
    """The run saves and ends by itself; a worker that died first would end it with an error."""
    alone, helped = module(folder), module(folder, num_workers=1)
    # Another test's process may still be ending
    before = multiprocessing.active_children()
    batches = iter(helped.train_dataloader())
    found = [next(batches)]
    (worker,) = (each for each in multiprocessing.active_children() if each not in before)
    os.kill(worker.pid, number)
    found += batches
    for left, right in zip(alone.train_dataloader(), found, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_a_process_ends_although_its_worker_sleeps():
    """The process ends even if the iterator of batches is never closed, as after an error."""
    script = """if True:
        import time
        import numpy as np
        from torch.utils.data import IterableDataset
        from seq2seq.data.batching import collate
        from seq2seq.data.dataset import PackedLoader
        from seq2seq.data.ragged import Ragged

        class Skipping(IterableDataset):
            def __iter__(self):
                side = Ragged.from_rows([[4, 3]])
                yield collate(side, side, np.arange(1), pad_id=0, bos_id=2)
                time.sleep(1000)

        batches = iter(PackedLoader(Skipping(), batch_size=None, num_workers=1))
        print(next(batches).src.tolist())
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[[4, 3]]\n", "")


def test_ranks_see_every_sentence_once(folder):
    made = module(folder)
    seen: dict[str, list[int]] = {"train": [], "valid": []}
    steps = []
    for rank in (0, 1):
        made.trainer = toycorpus.trainer(rank, 2, epoch=1)
        for split, loader in (("train", made.train_dataloader()), ("valid", made.val_dataloader())):
            batches = list(loader)
            steps.append((split, len(batches)))
            seen[split] += [i for b in batches for i in b.index.tolist()]
    assert len(set(steps)) == 2
    assert {split: sorted(indices) for split, indices in seen.items()} == {
        "train": list(range(300)), "valid": list(range(31)),
    }  # fmt: skip


def test_a_test_set_that_ranks_cannot_share_is_refused_before_training(folder):
    made = module(folder)
    made.trainer = toycorpus.trainer(0, 17)
    made.setup("fit")
    made.trainer = toycorpus.trainer(0, 18)
    with pytest.raises(ValueError, match=r"data\.test has 17 sentences, and each of 18 processes needs one: use fewer"):
        made.setup("fit")


class Recorder(LightningModule):
    """Records the order in which Lightning's loop yields sentences."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.orders: dict[int, list[int]] = {}

    def training_step(self, batch, _):
        self.orders.setdefault(self.current_epoch, []).extend(batch.index.tolist())
        return self.weight.sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def expected(made: TranslationDataModule, epoch: int) -> list[int]:
    (data,) = made.prepared.split("train").parts
    sampler = TokenBatchSampler(src_lengths=data.src.lengths, tgt_lengths=data.tgt.lengths, max_tokens=300, seed=1)
    sampler.set_epoch(epoch)
    return np.concatenate(list(sampler)).tolist()


def test_lightning_sees_a_new_order_each_epoch_and_after_resuming(folder, tmp_path):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    made, task = module(folder), Recorder()
    trainer = Trainer(max_epochs=2, use_distributed_sampler=False, enable_checkpointing=False, **quiet)
    trainer.fit(task, datamodule=made)
    assert task.orders == {0: expected(made, 0), 1: expected(made, 1)}
    assert task.orders[0] != task.orders[1]
    trainer.save_checkpoint(tmp_path / "c.safetensors")
    again, resumed = module(folder), Recorder()
    trainer = Trainer(max_epochs=4, use_distributed_sampler=False, enable_checkpointing=False, **quiet)
    trainer.fit(resumed, datamodule=again, ckpt_path=tmp_path / "c.safetensors")
    assert resumed.orders == {2: expected(made, 2), 3: expected(made, 3)}


@pytest.mark.parametrize("name", sorted(path.stem for path in (conf_dir() / "tokenizer").glob("*.yaml")))
def test_shipped_tokenizer_settings_are_known(name):
    from seq2seq.settings.tokenizer import TokenizerSettings

    values = resolved([f"tokenizer={name}"])["tokenizer"]
    settings = read_section(TokenizerSettings, values | {"vocab_size": 100}, "tokenizer")
    assert settings.vocab_size == 100


EXHAUSTIVE = {
    "test_several_processes_write_the_same_cache",
    "test_a_killed_process_of_several_is_told",
    "test_a_process_ends_although_its_worker_sleeps",
}


@pytest.mark.parametrize("num_proc", [2, 3])
def test_several_processes_write_the_same_cache(folder, tmp_path, num_proc, monkeypatch):
    monkeypatch.setattr("seq2seq.data.readers.ROWS", 40)  # so that there are blocks enough to share
    files = {}
    for number in (1, num_proc):
        made = prepared(folder, cache=f"{tmp_path}/{number}", num_proc=number, clean={"length_ratio": None})
        root = tmp_path / str(number)
        files[number] = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        assert [path.parent for path in made.folders.values()] == [root] * 5
    assert files[1] == files[num_proc]
    # Of train, valid and test: ids, starts and lengths of both sides, meta.json and the checksums
    assert sum("ids-" in name for name in files[1]) == 24
    with pytest.raises(ValueError, match=r"data\.num_proc=0"):
        read_settings(folder, num_proc=0)


def test_a_killed_process_of_several_is_told(folder, tmp_path):
    """A process is killed, as by the system if memory runs out."""
    encoder = PairEncoder(tokenizer=prepared(folder).tokenizer)

    def blocks() -> Iterator[tuple[list[str], list[str]]]:
        for number in range(20):
            if number == 2:
                for worker in multiprocessing.active_children():
                    worker.kill()
            yield ["die Katze"], ["the cat"]

    with pytest.raises(ValueError, match=r"data\.num_proc=2: one of the processes that encode was killed"):
        write_ids(tmp_path, blocks(), encoder=encoder, num_proc=2, pace=Pace("encoding"))


def test_arrays_of_the_cache_are_mapped_and_a_part_of_the_rows_is_an_index(folder):
    (data,) = prepared(folder, clean={"max_length": 30, "length_ratio": None}).split("train").parts
    assert data.rows is not None
    whole = (folder / "train.de").read_text().splitlines()
    assert data.lines("src") == [whole[i] for i in data.rows]
    assert 0 < len(data.rows) == len(data) < 300
    for side in (data.src, data.tgt):
        for array in side:
            assert isinstance(array.base, np.memmap)
            assert not array.flags.owndata


@fast
@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 9), max_size=300), st.integers(1, 50))
def test_hash_set_agrees_with_a_set(values, size):
    seen, known = HashSet(), set()
    for start in range(0, len(values), size):
        block, earlier = values[start : start + size], set(known)
        expected = []
        for value in block:
            expected.append(value not in known)
            known.add(value)
        assert seen.contains(np.array(block, dtype=np.uint64)).tolist() == [value in earlier for value in block]
        assert seen.add(np.array(block, dtype=np.uint64)).tolist() == expected
    assert sum(level.size for level in seen.levels) == len(known)
    assert all((np.diff(level) > 0).all() for level in seen.levels)
    assert all(a.size > b.size for a, b in pairwise(seen.levels))


def test_loaders_of_a_gpu_copy_ahead(folder, monkeypatch):
    """On a GPU loaders yield what the copier returns; on a CPU they have no copier."""
    made, copiers = module(folder), []

    class Copier:
        def __init__(self, device):
            copiers.append(device)

        def __call__(self, batch):
            return lambda: batch._replace(index=-batch.index)

    monkeypatch.setattr("seq2seq.training.lightning_parts.datamodule.StreamCopier", Copier)
    for device, sign in (("cpu", 1), ("cuda", -1)):
        made.trainer = toycorpus.trainer(device=device)
        for split, loader in (("train", made.train_dataloader()), ("test", made.test_dataloader())):
            found = sorted(sign * i for batch in loader for i in batch.index.tolist())
            assert found == list(range(made.prepared.size(split)))
    assert copiers == [torch.device("cuda")] * 2
