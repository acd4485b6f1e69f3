"""Files of the cache that are cut or missing are found and built again; kills and full disks leave no harm."""

from __future__ import annotations

import errno
import itertools
import logging
import multiprocessing
import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import toycorpus

from seq2seq.data.cache_folder import SIZES, cached
from seq2seq.data.preparation import PreparedData, prepare_corpora
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.settings.tokenizer import TokenizerSettings
from seq2seq.system.files import build_once
from seq2seq.training import finetune

EXHAUSTIVE = {"test_killed_at_any_write_the_next_use_repairs", "test_every_file_of_the_cache_is_checked"}


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def make_empty(path: Path) -> None:
    os.truncate(path, 0)


DAMAGES = [truncate, make_empty, Path.unlink]


def build(folder: Path) -> None:
    (folder / "one.bin").write_bytes(bytes(range(100)))
    (folder / "two.txt").write_text("two")


def read(folder: Path) -> tuple[bytes, str]:
    return (folder / "one.bin").read_bytes(), (folder / "two.txt").read_text()


WHOLE = bytes(range(100)), "two"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["one.bin", SIZES])
def test_damage_is_named_and_repaired(tmp_path, caplog, name, damage):
    target = tmp_path / "toy-1"
    assert cached(target, "the toy", build=build, read=read) == WHOLE
    before = contents(tmp_path)
    damage(target / name)
    assert cached(target, "the toy", build=build, read=read) == WHOLE
    assert contents(tmp_path) == before
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert line == f"{target} is damaged: making the toy again"


def test_of_several_one_rebuilds(tmp_path):
    target = tmp_path / "toy-1"
    cached(target, "the toy", build=build, read=read)
    truncate(target / "one.bin")
    built: list[int] = []
    found: list[tuple[bytes, str]] = []

    def slow(folder: Path) -> None:
        built.append(1)
        build(folder)

    def use() -> None:
        found.append(cached(target, "the toy", build=slow, read=read))

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [WHOLE] * 4
    assert built == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["toy-1"]


def test_a_cache_that_cannot_be_written_serves_while_it_is_whole(tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path))

    target = tmp_path / "toy-1"
    cached(target, "the toy", build=build, read=read)
    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "mkdir", refuse)
    assert cached(target, "the toy", build=build, read=read) == WHOLE
    truncate(target / "one.bin")
    with pytest.raises(ValueError, match=r"Permission denied.* set cache=<another"):
        cached(target, "the toy", build=build, read=read)


# numpy names no error number
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), OSError("9 requested, 1 written")])
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, error):
    def fill(folder: Path) -> None:
        build(folder)
        raise error

    with pytest.raises(ValueError, match=f"cache={tmp_path}: the toy could not be made.*set cache=") as caught:
        cached(tmp_path / "toy-1", "the toy", build=fill, read=read)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert cached(tmp_path / "toy-1", "the toy", build=build, read=read) == WHOLE


@pytest.mark.parametrize("place", ["file/cache", "file"])
def test_a_cache_that_cannot_be_made_is_one_line(tmp_path, place):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=f"cache={tmp_path / place}: the toy could not be made"):
        cached(tmp_path / place / "toy-1", "the toy", build=build, read=read)


def dies_at(number: int, work: Callable[[], object]) -> bool:
    """Run `work` in a fork that dies at its `number`-th file change; False if there are fewer changes."""
    child = os.fork()
    if child == 0:
        counter = itertools.count(1)

        def look(event: str, arguments: tuple) -> None:
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if (writes or event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "os.utime")) and next(
                counter
            ) == number:
                os._exit(7)

        sys.addaudithook(look)
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.parametrize("damaged", [False, True])
def test_killed_at_any_write_the_next_use_repairs(tmp_path, damaged):
    for number in itertools.count(1):
        target = tmp_path / str(number) / "toy-1"
        target.parent.mkdir()
        if damaged:
            cached(target, "the toy", build=build, read=read)
            truncate(target / "one.bin")
        died = dies_at(number, lambda target=target: cached(target, "the toy", build=build, read=read))
        assert cached(target, "the toy", build=build, read=read) == WHOLE
        # The lock of a process that was killed at its very end, and the files that it replaced, may stay
        assert {path.name for path in target.parent.iterdir() if path.suffix not in (".lock", ".partial")} == {"toy-1"}
        assert set(contents(target)) == {"one.bin", "two.txt", SIZES}
        if not died:
            break
    assert number > (12 if damaged else 8)


# The cache of a corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    return toycorpus.write(tmp_path_factory.mktemp("toy"))


def prepare(corpus: Path, cache: Path, **changes) -> PreparedData:
    data = {"name": "toy", "src": "de", "tgt": "en", "max_tokens": 300, "train": str(corpus / "train"), "holdout": 20}
    data |= {"valid": str(corpus / "valid")} | changes
    tokenizer = {"vocab_size": 36, "byte_fallback": False, "joint": False}
    return prepare_corpora(toycorpus.data_plan(data, tokenizer=tokenizer, seed=1, cache_dir=cache))


@pytest.fixture(scope="module")
def cache(corpus, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    prepare(corpus, folder)
    return folder


def test_every_file_of_the_cache_is_checked(corpus, cache, tmp_path, caplog):
    names = sorted(contents(cache))
    # Text with the rows of held-out pairs, tokenizer, ids of three splits, and the trained pairs; each with its sizes
    assert len(names) == 6 + 3 + 3 * 8 + 2
    for name, damage in zip(names, itertools.cycle(DAMAGES), strict=False):
        copy = tmp_path / name.replace("/", "-")
        shutil.copytree(cache, copy)
        damage(copy / name)
        caplog.clear()
        prepared = prepare(corpus, copy)
        assert prepared.size("test") == 20
        assert contents(copy) == contents(cache)
        assert f"{(copy / name).parent} is damaged" in caplog.text
        assert caplog.text.count(": making the ") == 1


def test_models_of_a_checkpoint_are_checked(cache, tmp_path, caplog):
    folder = next(cache.glob("tokenizer-*"))
    models = {f"{side}_model": (folder / f"{side}_model.model").read_bytes() for side in ("src", "tgt")}
    tokenizer = Tokenizer(**models)
    settings = finetune.ready_models(tokenizer, TokenizerSettings(), tmp_path)
    path = str(settings.tgt_model)
    truncate(Path(path))
    assert finetune.ready_models(tokenizer, TokenizerSettings(), tmp_path) == settings
    assert Path(path).read_bytes() == models["tgt_model"]
    assert "is damaged" in caplog.text


def test_a_cache_deleted_while_it_is_used_is_still_read(corpus, cache, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(cache, copy)
    prepared = prepare(corpus, copy)
    shutil.rmtree(copy)
    assert len(prepared.references("test")) == 20
    data = prepared.split("train")
    assert int(data.ids(np.arange(2))[0].ids[0]) >= 0


@pytest.mark.slow
def test_preparation_killed_at_any_write_is_repaired(corpus, cache, tmp_path):
    for number in itertools.count(1):
        target = tmp_path / str(number)
        target.mkdir()
        died = dies_at(number, lambda target=target: prepare(corpus, target))
        prepare(corpus, target)
        # The file of a lock that the killed process had: the kernel has released it
        whole = {name: data for name, data in contents(target).items() if not name.endswith(".lock")}
        assert whole == contents(cache)
        if not died:
            break
    assert number > 40


def test_files_of_the_same_size_that_cannot_be_read_are_made_again(corpus, cache, tmp_path, caplog):
    for pattern in ("ids-*/*.starts.npy", "ids-*/meta.json", "text-*/*.arrow", "tokenizer-*/src_model.model"):
        copy = tmp_path / pattern.replace("/", "-").replace("*", "x")
        shutil.copytree(cache, copy)
        path = sorted(copy.glob(pattern))[0]
        path.write_bytes(bytes(path.stat().st_size))
        caplog.clear()
        prepare(corpus, copy)
        assert f"{path.parent} cannot be read" in caplog.text, pattern
        assert contents(copy) == contents(cache)


def test_a_script_that_a_spawned_process_runs_again_does_not_wait_for_its_parent(tmp_path, monkeypatch):
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(RuntimeError, match="__main__"):
        build_once(tmp_path / "made", "the corpus", lambda folder: None)
