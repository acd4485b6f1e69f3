"""Files that would hang or exhaust a reader are refused before anything is walked or unpacked."""

from __future__ import annotations

import pickle
import pickletools
import struct
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from seq2seq import archive, checkpoint
from seq2seq.archive import CheckpointError, check_pickle, check_tree


@pytest.fixture(scope="module")
def good() -> dict[str, Any]:
    return tiny.payload()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.ckpt"


def laughs(levels: int = 40) -> dict[str, Any]:
    """Nested dictionaries, each twice in the next: a few kilobytes that unfold to 2**levels."""
    value: dict[str, Any] = {"x": 1}
    for _ in range(levels):
        value = {"a": value, "b": value}
    return value


def cyclic() -> dict[str, Any]:
    value: dict[str, Any] = {"a": 1}
    value["b"] = [value]
    return value


def deep(levels: int = 100) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    assert len(message) < 1500
    return message


def put(payload: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """Copy `payload` with `value` at `place`, as in seq2seq.model."""
    first, _, rest = place.partition(".")
    return {**payload, first: put(payload.get(first, {}), rest, value) if rest else value}


PLACES = (
    "seq2seq.model",
    "seq2seq.model.mixer.encoder",
    "seq2seq.model.mixer.encoder.kinds",
    "seq2seq.model.mixer.encoder.per_layer",
    "seq2seq.model.mixer.encoder._target_",
    "seq2seq.model.model.dim",
    "seq2seq.model.model.tie",
    "seq2seq.model.pad_id",
    "seq2seq.model.patches",
    "seq2seq.tokenizer",
    "seq2seq.tokenizer.patches",
    "seq2seq.search",
    "seq2seq.search.beam_size",
    "seq2seq.format",
    "seq2seq.tgt_langs",
    "run.settings",
    "callbacks",
    "optimizer_states",
)


@pytest.mark.parametrize("place", PLACES)
def test_a_small_file_that_unfolds_without_end_is_refused(good, path, place):
    torch.save(put(good, place, laughs()), path)
    assert path.stat().st_size < 150_000
    assert "counting shared ones each time" in refusal(path)


@pytest.mark.parametrize(("value", "message"), [(cyclic(), "contains itself"), (deep(), "nested more than 60 deep")])
def test_settings_that_contain_themselves_or_have_no_end_are_refused(good, path, value, message):
    torch.save(put(good, "seq2seq.model", value), path)
    assert message in refusal(path)


def test_parts_that_are_shared_add_their_depth():
    """A chain that ends in an earlier one is as deep as both."""
    parts: list[Any] = [1]
    value: Any = 1
    for _ in range(4):
        for _ in range(20):
            value = [value]
        parts.append(value)
    with pytest.raises(ValueError, match="deep"):
        check_tree(parts)


def test_every_reader_refuses_them(good, tmp_path):
    """The average and what training reads, too."""
    from seq2seq.experiments.averaging import average
    from seq2seq.experiments.folder import RunFolder
    from seq2seq.experiments.resume import Resumed

    path = tmp_path / "laughs.ckpt"
    torch.save(put(good, "seq2seq.model", laughs()), path)
    resume = partial(Resumed.open, path, {}, RunFolder(tmp_path))
    readers: list[Callable[[], Any]] = [lambda: average([path, path]), resume]
    for read in [*readers, lambda: checkpoint.read(path)]:
        with pytest.raises(CheckpointError, match="shared"):
            read()


def test_long_values_do_not_make_long_messages(good, path):
    torch.save(put(good, "seq2seq.format", list(range(200_000))), path)
    assert "not a format number" in refusal(path)
    torch.save(put(good, "seq2seq.search.beam_size", "9" * 1_000_000), path)
    assert "search" in refusal(path)


# ---- the pickle


def program(*operations: bytes) -> bytes:
    return b"\x80\x02" + b"".join(operations) + b"."


# t0 = (1,), t1 = (t0, t0), ...: 2**40 ones, each tuple memoized and used twice
TUPLES = b"K\x01\x85" + b"".join(b"q%ch%c\x86" % (n, n) for n in range(40))
LISTS = b"]K\x01a" + b"".join(b"q%c]h%cah%ca" % (n, n, n) for n in range(40))
HOSTILE = {
    "a key that takes for ever to hash": program(b"}", TUPLES, b"K\x01s"),
    "the same in the arguments of a call": program(b"ccollections\nOrderedDict\n", b"](", TUPLES, b"K\x01\x86e\x85R"),
    "a call of a value that takes for ever to print": program(LISTS, b")R"),
    "a storage by such a key": program(
        b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\n", TUPLES, b"X\x01\x00\x00\x000K\x01tQ"
    ),
    "bytes that double": program(
        b"c_codecs\nencode\nq\x64X\x01\x00\x00\x00xX\x06\x00\x00\x00latin1\x86R",
        *[b"q\x65h\x64h\x65X\x03\x00\x00\x00hex\x86R" for _ in range(40)],
    ),
    "a bytearray": program(b"cbuiltins\nbytearray\nJ\x00\x00\x00\x40\x85R"),
    "a set": program(b"cbuiltins\nset\n](K\x01e\x85R"),
    "a tensor of a size": program(b"ctorch\nFloatTensor\nJ\x00\x00\x00\x40\x85R"),
    "a storage that is called": program(b"ctorch\nFloatStorage\nJ\x00\x00\x00\x40\x85R"),
    "a parameter of no tensor": program(b"ctorch._utils\n_rebuild_parameter\nK\x01\x85R"),
    "another protocol": b"\x80\x04}.",
    "an unknown operation": program(b"\x93"),
    "an empty stack": program(b"0"),
    "no such memo": program(b"h\x05"),
    "nothing": b"",
    "no end": b"\x80\x02}",
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_pickle_is_refused_without_running_it(kind):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - any phrase
        check_pickle(HOSTILE[kind])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_pickle_of_too_many_operations_is_refused(monkeypatch):
    monkeypatch.setattr(archive, "MAX_OPERATIONS", 100)
    with pytest.raises(ValueError, match="more than 100 operations"):
        check_pickle(pickle.dumps(list(range(200)), protocol=2))


def test_what_plain_values_are_pickled_as_is_accepted():
    values = {
        "": [None, True, 1, -7, 1 << 40, 0.5, "é", (0.9, 0.98), (), (1, 2, 3, 4), {"a": {1: []}}],
        3: b"\x00\xff",
        "dtype": {"x": list(range(3000))},
    }
    values["again"] = values[""]
    check_pickle(pickle.dumps(values, protocol=2))


# ---- the zip


def entries(path: Path) -> tuple[bytes, list[bytes], bytes]:
    """Split a zip file into what is before its directory, the directory's records, and the rest."""
    data = path.read_bytes()
    end = data.rindex(b"PK\6\6")
    with zipfile.ZipFile(path) as file:
        start = file.start_dir
        names = [len(each.filename.encode()) for each in file.infolist()]
    records = []
    place = start
    for name in names:
        records.append(data[place : place + 46 + name])
        place += 46 + name
    assert place == end
    return data[:start], records, data[end:]


def rezip(path: Path, body: bytes, records: list[bytes], *, pointer: int = 0) -> None:
    """Write a zip file with these records in its directory."""
    directory = b"".join(records)
    count = len(records)
    end = len(body) + len(directory)
    long = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(directory), len(body))
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, end + pointer, 1)
    last = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, *[min(count, 0xFFFF)] * 2, len(directory), len(body), 0)
    path.write_bytes(body + directory + long + locator + last)


def test_one_member_under_many_names_is_refused(good, path):
    checkpoint.save(path, good)
    body, records, _ = entries(path)
    largest = max(records, key=lambda record: struct.unpack_from("<L", record, 24)[0])
    rezip(path, body, records + [largest] * 20_000)
    assert "entries declare" in refusal(path)


def test_a_directory_without_end_is_refused_unread(good, path, monkeypatch):
    checkpoint.save(path, good)
    body, records, _ = entries(path)
    rezip(path, body, records)
    checkpoint.load(path)
    monkeypatch.setattr(archive, "MAX_DIRECTORY", 100)
    monkeypatch.setattr(zipfile, "ZipFile", None)
    assert "its directory has" in refusal(path)


def test_a_directory_that_readers_could_disagree_on_is_refused(good, path):
    checkpoint.save(path, good)
    whole = path.read_bytes()
    body, records, _ = entries(path)
    # The pointer to the numbers of 64 bits leads elsewhere
    rezip(path, body, records, pointer=-8)
    assert "damaged" in refusal(path)
    # A comment, in which another directory could be
    path.write_bytes(whole[:-2] + b"\x04\x00four")
    assert "damaged" in refusal(path)
    # Bytes between the directory and its end
    place = whole.rindex(b"PK\6\6")
    path.write_bytes(whole[:place] + b"\0" * 8 + whole[place:])
    assert "damaged" in refusal(path)


def test_the_checks_know_every_operation_that_torch_writes(good, path):
    """Of the pickles of this version; an older one is tests/fixtures/format1.ckpt."""
    checkpoint.save(path, {**good, "x": torch.nn.Parameter(torch.ones(2)), "y": torch.ones(3, dtype=torch.bool)})
    with zipfile.ZipFile(path) as file:
        data = file.read(next(name for name in file.namelist() if name.endswith("data.pkl")))
    assert {operation.name for operation, _, _ in pickletools.genops(data)} >= {"REDUCE", "BINPERSID", "SETITEMS"}
    check_pickle(data)
