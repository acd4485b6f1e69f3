"""CIFAR-10 from small files in the layouts of its own archive and of the hub."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from seq2seq import draw
from seq2seq.images.lines import read_image

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (the extra `train`)")
pq = pytest.importorskip("pyarrow.parquet")

NAMES = ["airplane", "maple tree", "cat"]
COUNTS = {**{f"data_batch_{number}": 1 for number in range(1, 6)}, "test_batch": 2}


def examples() -> dict[str, list[tuple[int, np.ndarray]]]:
    rng = np.random.default_rng(1)
    image = rng.integers(0, 256, (7, 32, 32, 3), dtype=np.uint8)
    rows = iter(zip([0, 2, 1, 2, 0, 1, 2], image, strict=True))
    return {name: [next(rows) for _ in range(count)] for name, count in COUNTS.items()}


def binary(folder: Path) -> Path:
    """Write the layout of cifar-10-binary.tar.gz: a label, then red, green and blue planes."""
    files = {"batches.meta.txt": ("\n".join(NAMES) + "\n\n").encode(), "readme.html": b"<html>"}
    for name, rows in examples().items():
        planes = [bytes([label]) + b"".join(image[:, :, c].tobytes() for c in range(3)) for label, image in rows]
        files[f"{name}.bin"] = b"".join(planes)
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return folder / "cifar-10-binary.tar.gz"


def parquet(folder: Path, *, kind: str = "PNG") -> Path:
    """Write the hub's layout: plain_text/train-00000-of-00001.parquet with the columns img and label."""
    features = {"img": {"_type": "Image"}, "label": {"names": NAMES, "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    (folder / "plain_text").mkdir(parents=True)
    for split in ("train", "test"):
        rows = [
            row for name, part in examples().items() if name.startswith("test") == (split == "test") for row in part
        ]
        cells = []
        for _, image in rows:
            Image.fromarray(image).save(file := io.BytesIO(), format=kind)
            cells.append({"bytes": file.getvalue(), "path": None})
        table = pa.table({"img": cells, "label": pa.array([label for label, _ in rows], pa.int64())})
        place = folder / "plain_text" / f"{split}-00000-of-00001.parquet"
        pq.write_table(table.replace_schema_metadata(metadata), place)
    return folder


def written(folder: Path) -> dict[str, list[tuple[str, str]]]:
    found = {}
    for split in ("train", "valid", "test"):
        lines, names = ((folder / f"{split}.{end}").read_text().split("\n")[:-1] for end in ("png64", "en"))
        found[split] = list(zip(lines, names, strict=True))
    return found


def test_both_layouts_give_the_same_images_and_names(tmp_path, capsys):
    source = binary(tmp_path)
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    sources = [source, tmp_path / "unpacked", parquet(tmp_path / "hub")]
    found = []
    for number, each in enumerate(sources):
        target = tmp_path / str(number)
        assert draw.main(["--cifar10", str(each), str(target), "--held-out", "2"]) == 0
        found.append(written(target))
    assert "3 train, 2 valid, 2 test images" in capsys.readouterr().out
    assert found[0] == found[1] == found[2]
    rows = [row for part in examples().values() for row in part]
    pairs = [
        (read_image(line, height=32, width=32, channels=3).tobytes(), name)
        for split in ("train", "valid", "test")
        for line, name in found[0][split]
    ]
    words = [name.replace(" ", "_") for name in NAMES]
    assert sorted(pairs) == sorted((image.tobytes(), words[label]) for label, image in rows)
    assert pairs[-2:] == [(image.tobytes(), words[label]) for label, image in examples()["test_batch"]]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"data_batch_1.bin": b"x" * 100}, "100 bytes, not a multiple of 3073"),
        ({"data_batch_1.bin": b"\x09" * 3073}, "class 9, but batches.meta.txt has 3 names"),
        ({"batches.meta.txt": None}, "cifar-10-binary.tar.gz"),
        ({f"data_batch_{number}.bin": None for number in range(1, 6)}, "not the Python version"),
        ({"data_batch_3.bin": None}, "not all batches"),
    ],
)
def test_damaged_files_are_refused(damage, message, tmp_path, capsys):
    with tarfile.open(binary(tmp_path)) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    for name, data in damage.items():
        file = tmp_path / "unpacked" / "cifar-10-batches-bin" / name
        file.unlink() if data is None else file.write_bytes(data)
    assert draw.main(["--cifar10", str(tmp_path / "unpacked"), str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err


def test_what_is_no_source_is_refused(tmp_path, capsys):
    (tmp_path / "broken.tar.gz").write_bytes(binary(tmp_path).read_bytes()[:5000])
    hub = parquet(tmp_path / "hub")
    pq.write_table(pa.table({"img": [{"bytes": b"GIF"}], "label": [0]}), hub / "plain_text" / "train-00001.parquet")
    file = io.BytesIO()
    Image.fromarray(np.full((32, 32), 20_000, dtype=np.uint16)).save(file, format="PNG")
    deep = parquet(tmp_path / "deep") / "plain_text" / "train-00001.parquet"
    pq.write_table(pa.table({"img": [{"bytes": file.getvalue()}], "label": [0]}), deep)
    unlabeled = parquet(tmp_path / "unlabeled") / "plain_text" / "train-00000-of-00001.parquet"
    table = pq.read_table(unlabeled)
    pq.write_table(table.set_column(1, "label", pa.array([-1] * len(table), pa.int64())), unlabeled)
    for kind, made in {"clear": ("RGBA", (32, 32)), "small": ("RGB", (28, 30))}.items():
        Image.new(*made).save(file := io.BytesIO(), format="PNG")
        table = pa.table({"img": [{"bytes": file.getvalue()}], "label": [0]})
        pq.write_table(table, parquet(tmp_path / kind) / "plain_text" / "train-00001.parquet")
    (tmp_path / "text").mkdir()
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "text" / "train.parquet")
    for source, message in {
        "nowhere": "no such file",
        "broken.tar.gz": "broken.tar.gz",
        "hub": "neither PNG nor JPEG",
        "deep": "convert the images to RGB of 8 bits",
        "clear": "train-00001.parquet: an image is of Pillow's mode RGBA: convert the images",
        "small": "train image 1 has 32 x 32 and train image 6 has 28 x 30 pixels",
        "text": "has the columns text",
        "unlabeled": "label -1",
    }.items():
        assert draw.main(["--cifar10", str(tmp_path / source), str(tmp_path / "out"), "--held-out", "1"]) == 2
        assert message in capsys.readouterr().err
    assert draw.main(["--cifar10", str(binary(tmp_path)), str(tmp_path / "out"), "--held-out", "5"]) == 2
    assert "--held-out 5 leaves none of 5 images" in capsys.readouterr().err


def test_other_data_sets_keep_their_validation_images_their_grays_and_fine_labels(tmp_path, capsys):
    for split, count in {"train": 3, "validation": 2, "test": 1}.items():
        Image.new("L", (28, 28), 7).save(file := io.BytesIO(), format="PNG")
        columns = {
            "image": [{"bytes": file.getvalue()}] * count,
            "fine_label": [4] * count,
            "coarse_label": [0] * count,
        }
        pq.write_table(pa.table(columns), tmp_path / f"{split}-00000-of-00001.parquet")
    assert draw.main(["--cifar10", str(tmp_path), str(tmp_path / "out")]) == 0
    assert "3 train, 2 valid, 1 test images" in capsys.readouterr().out
    line, name = written(tmp_path / "out")["valid"][0]
    assert (read_image(line, height=28, width=28) == 7).all()
    assert name == "4"
