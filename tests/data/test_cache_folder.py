"""Damage to every file of the cache, in every way, is found, named and repaired; kills and full disks leave no harm."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import toycorpus

from seq2seq.data import cache_folder
from seq2seq.data.cache_folder import CHECKSUMS, cached
from seq2seq.data.preparation import PreparedData, prepare_corpora
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.training import finetune

EXHAUSTIVE = {"test_killed_at_any_write_the_next_use_repairs"}


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip(path: Path) -> None:
    """Change one byte, and set back what tells of it: size and time."""
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def make_empty(path: Path) -> None:
    os.truncate(path, 0)


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


DAMAGES = [truncate, flip, make_empty, Path.unlink, replace_by_folder, replace_by_pipe, replace_by_dangling_link]


def build(folder: Path) -> None:
    (folder / "one.bin").write_bytes(bytes(range(100)))
    (folder / "two.txt").write_text("two")


def read(folder: Path) -> tuple[bytes, str]:
    return (folder / "one.bin").read_bytes(), (folder / "two.txt").read_text()


WHOLE = bytes(range(100)), "two"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["one.bin", "two.txt", CHECKSUMS])
def test_damage_is_named_and_repaired(tmp_path, caplog, name, damage):
    target = tmp_path / "toy-1"
    assert cached(target, "the toy", build=build, read=read) == WHOLE
    before = contents(tmp_path)
    damage(target / name)
    assert cached(target, "the toy", build=build, read=read) == WHOLE
    assert contents(tmp_path) == before
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert str(target / name) in line
    assert line.endswith(": making the toy again")


def test_an_unreadable_file_and_a_file_in_the_folders_place(tmp_path, caplog, monkeypatch):
    target = tmp_path / "toy-1"
    target.write_text("a file")
    assert cached(target, "the toy", build=build, read=read) == WHOLE
    assert f"{target} is not a folder: making the toy again" in caplog.text
    intact = cache_folder._checksum

    def fail(path: Path) -> str:
        if path.name == "one.bin" and path.parent == target:
            monkeypatch.setattr(cache_folder, "_checksum", intact)
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return intact(path)

    (target / "one.bin").chmod(0o000)  # changes its time, so that it is looked at again
    monkeypatch.setattr(cache_folder, "_checksum", fail)
    assert cached(target, "the toy", build=build, read=read) == WHOLE
    assert f"{target / 'one.bin'} is damaged (Permission denied): making the toy again" in caplog.text


def test_a_check_serves_for_a_while_and_damage_ends_that(tmp_path, monkeypatch):
    target = tmp_path / "toy-1"
    cached(target, "the toy", build=build, read=read)
    # As if the files were written some time before the check
    os.utime(target / CHECKSUMS, (later := (target / CHECKSUMS).stat().st_mtime + 0.01, later))
    monkeypatch.setattr(cache_folder.time, "time", lambda: later + 1)
    looked: list[Path] = []
    monkeypatch.setattr(cache_folder, "_find_damage", looked.append)
    cached(target, "the toy", build=build, read=read)
    assert looked == []
    # An old check counts no more, nor one in the future, which is that of another clock
    for now in (later + cache_folder.CHECK_HOLDS + 1, later - 1):
        monkeypatch.setattr(cache_folder.time, "time", lambda now=now: now)
        cached(target, "the toy", build=build, read=read)
        os.utime(target / CHECKSUMS, (later, later))
    assert looked == [target, target]
    monkeypatch.setattr(cache_folder.time, "time", lambda: later + 1)
    assert cache_folder._is_recently_checked(target)
    (target / "two.txt").unlink()
    assert not cache_folder._is_recently_checked(target)


def test_of_several_one_checks_and_rebuilds(tmp_path):
    target = tmp_path / "toy-1"
    cached(target, "the toy", build=build, read=read)
    flip(target / "one.bin")
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
    target = tmp_path / "toy-1"
    cached(target, "the toy", build=build, read=read)
    flip(target / "one.bin")
    before = contents(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ValueError, match=r"one.bin is damaged \(its content has changed\), and .* set cache=<another"):
        cached(target, "the toy", build=build, read=read)
    assert contents(tmp_path) == before
    flip(target / "one.bin")
    assert cached(target, "the toy", build=build, read=read) == WHOLE


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
    """Do `work` in a fork that is gone at its number-th change of a file; False once there are not so many."""
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
def test_killed_at_any_write_the_next_use_repairs(tmp_path, monkeypatch, damaged):
    monkeypatch.setattr(cache_folder, "CHECK_HOLDS", -1)
    for number in itertools.count(1):
        target = tmp_path / str(number) / "toy-1"
        target.parent.mkdir()
        if damaged:
            cached(target, "the toy", build=build, read=read)
            flip(target / "one.bin")
        died = dies_at(number, lambda target=target: cached(target, "the toy", build=build, read=read))
        assert cached(target, "the toy", build=build, read=read) == WHOLE
        assert {path.name for path in target.parent.iterdir()} == {"toy-1"}
        assert set(contents(target)) == {"one.bin", "two.txt", CHECKSUMS}
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
    # Text, with the rows of what is held out, tokenizer, ids of three splits; each with its checksums
    assert len(names) == 6 + 3 + 3 * 8
    for name, damage in zip(names, itertools.cycle(DAMAGES[:5]), strict=False):
        copy = tmp_path / name.replace("/", "-")
        shutil.copytree(cache, copy)
        damage(copy / name)
        caplog.clear()
        prepared = prepare(corpus, copy)
        assert prepared.size("test") == 20
        assert contents(copy) == contents(cache)
        if not (name.endswith(CHECKSUMS) and damage is Path.unlink):
            assert str(copy / name) in caplog.text
            assert caplog.text.count(": making the ") == 1


def test_streams_have_their_sets_and_tokenizer_checked(corpus, tmp_path, caplog):
    streamed = {"streaming": True, "test": str(corpus / "test"), "clean": {"length_ratio": None}}
    prepare(corpus, tmp_path, **streamed)
    before = contents(tmp_path)
    for name in before:
        if name.endswith((".ids", ".model", ".arrow")):
            flip(tmp_path / name)
    prepare(corpus, tmp_path, **streamed)
    assert contents(tmp_path) == before
    assert caplog.text.count(": making the ") == 4


def test_models_of_a_checkpoint_are_checked(cache, tmp_path, caplog):
    folder = next(cache.glob("tokenizer-*"))
    models = {f"{side}_model": (folder / f"{side}_model.model").read_bytes() for side in ("src", "tgt")}
    tokenizer = Tokenizer(**models)
    paths = finetune.ready_models(tokenizer, tmp_path)
    truncate(Path(paths["tgt_model"]))
    assert finetune.ready_models(tokenizer, tmp_path) == paths
    assert Path(paths["tgt_model"]).read_bytes() == models["tgt_model"]
    assert f"{paths['tgt_model']} is damaged" in caplog.text


def test_a_cache_deleted_while_it_is_used_is_still_read(corpus, cache, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(cache, copy)
    prepared = prepare(corpus, copy)
    shutil.rmtree(copy)
    assert len(prepared.references("test")) == 20
    data = prepared.split("train")
    assert int(data.ids([0, 1])[0].ids[0]) >= 0


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
