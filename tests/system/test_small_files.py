"""Small files of others: pipes, devices and endless files are refused, and not waited for."""

from __future__ import annotations

import io
import os

import numpy as np
import pytest

from seq2seq.runs.folder import RunFolder
from seq2seq.runs.results import read_curve
from seq2seq.runs.training_state import read_state
from seq2seq.system.files import read_arrays, read_file, regular_file
from seq2seq.system.json_file import read_json, read_json_or_none
from seq2seq.system.yaml_file import read_yaml

READERS = [
    read_file,
    read_json,
    read_yaml,
    lambda path: read_curve(path, "time"),
    lambda path: RunFolder(path.parent).test_lines("hyp"),
    read_state,
    read_arrays,
]


@pytest.mark.parametrize("kind", ["pipe", "device", "sparse"])
@pytest.mark.parametrize("read", READERS)
def test_what_is_no_small_file_is_refused_at_once(tmp_path, read, kind):
    path = tmp_path / "test.hyp"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)
    # A pipe in place of translations counts as missing
    if kind != "sparse" and read is READERS[4]:
        assert read(path) == []
        return
    with pytest.raises(ValueError, match=r"test\.hyp|damaged") as told:
        read(path)
    assert "\n" not in str(told.value)
    assert read_json_or_none(path) is None


def test_a_file_is_read_up_to_its_bound(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    assert read_file(path, 5) == b"12345"
    (tmp_path / "link").symlink_to(path)
    with regular_file(tmp_path / "link") as file:
        assert file.read() == b"12345"
    with pytest.raises(ValueError, match="x is not a regular file of at most 4 bytes"):
        read_file(path, 4)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "missing")


def test_arrays_are_no_larger_than_their_file(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, a=np.arange(5))
    assert read_arrays(path)["a"].tolist() == [0, 1, 2, 3, 4]
    np.savez_compressed(path, a=np.zeros(1_000_000))
    with pytest.raises(ValueError, match=r"x\.npz is damaged \(it is compressed\)"):
        read_arrays(path)
    for content in (b"", io.BytesIO().getvalue() + b"PK\x03\x04" + bytes(50)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"x\.npz is damaged"):
            read_arrays(path)
