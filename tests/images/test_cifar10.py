"""CIFAR-10 from small files in the layout of the hub."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from seq2seq import draw
from seq2seq.images.lines import read_image

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (the extra `train`)")
pq = pytest.importorskip("pyarrow.parquet")

NAMES = ["airplane", "maple tree", "cat"]


def examples() -> dict[str, list[tuple[int, np.ndarray]]]:
    image = np.random.default_rng(1).integers(0, 256, (7, 32, 32, 3), dtype=np.uint8)
    rows = list(zip([0, 2, 1, 2, 0, 1, 2], image, strict=True))
    return {"train": rows[:5], "test": rows[5:]}


def parquet(folder: Path, *, kind: str = "PNG") -> Path:
    """Write the hub's layout: plain_text/train-00000-of-00001.parquet with the columns img and label."""
    features = {"img": {"_type": "Image"}, "label": {"names": NAMES, "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    (folder / "plain_text").mkdir(parents=True)
    for split, rows in examples().items():
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


def test_images_and_names(tmp_path, capsys):
    assert draw.main(["--cifar10", str(parquet(tmp_path / "hub")), str(tmp_path / "out"), "--held-out", "2"]) == 0
    assert "3 train, 2 valid, 2 test images" in capsys.readouterr().out
    pairs = [
        (read_image(line, height=32, width=32, channels=3).tobytes(), name)
        for part in written(tmp_path / "out").values()
        for line, name in part
    ]
    words = [name.replace(" ", "_") for name in NAMES]
    wanted = {split: [(image.tobytes(), words[label]) for label, image in rows] for split, rows in examples().items()}
    assert sorted(pairs[:5]) == sorted(wanted["train"])
    assert pairs[5:] == wanted["test"]


def test_what_is_no_source_is_refused(tmp_path, capsys):
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"x" * 5000)
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
        "nowhere": "nowhere: give a folder with files train",
        "cifar-10-binary.tar.gz": "cifar-10-binary.tar.gz: give a folder with files train",
        "hub": "neither PNG nor JPEG",
        "deep": "convert the images to RGB of 8 bits",
        "clear": "train-00001.parquet: an image is of Pillow's mode RGBA: convert the images",
        "small": "train image 1 has 32 x 32 and train image 6 has 28 x 30 pixels",
        "text": "has the columns text",
        "unlabeled": "label -1",
    }.items():
        assert draw.main(["--cifar10", str(tmp_path / source), str(tmp_path / "out"), "--held-out", "1"]) == 2
        assert message in capsys.readouterr().err
    assert draw.main(["--cifar10", str(parquet(tmp_path / "whole")), str(tmp_path / "out"), "--held-out", "5"]) == 2
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
