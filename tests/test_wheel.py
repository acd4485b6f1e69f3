"""Test that the wheel is enough, with the settings and the embedded corpus, and that its oldest packages are tested."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from conftest import PATIENCE
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the unpacked wheel and nothing of the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, text=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_wheel_carries_settings_and_corpus(site: Path) -> None:
    names = {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}
    assert {"seq2seq/_conf/train.yaml", "seq2seq/_conf/mixer/dynamicconv.yaml"} <= names
    assert {"seq2seq/_conf/hydra/launcher/slurm.yaml", "hydra_plugins/seq2seq_sweeps/launchers.py"} <= names
    assert "seq2seq/py.typed" in names  # type checkers read the annotations
    splits = {f"seq2seq/_data/phrasebook/{split}.jsonl" for split in ("train", "valid", "test")}
    readmes = {"seq2seq/_data/README.md", "seq2seq/_data/phrasebook/README.md"}
    assert {name for name in names if name.startswith("seq2seq/_data/")} == splits | readmes  # no generator
    for name in splits | readmes:
        committed = ROOT / name.replace("seq2seq/_data", "data")
        assert (site / name).read_bytes() == committed.read_bytes()  # so the corpus has the checkout's fingerprint
    assert any(name.endswith(".dist-info/entry_points.txt") for name in names)  # the program `seq2seq`
    assert any(name.endswith("licenses/LICENSE") for name in names)  # the data's license is the repository's
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests")]


def test_the_oldest_versions_are_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = itertools.chain(project["dependencies"], *(extras[name] for name in extras if name not in ("dev", "docs")))
    oldest = {
        each.name: Version(bound.version)
        for each in map(Requirement, needed)
        for bound in each.specifier
        if bound.operator == ">="
    }
    # PyPI has torch 2.11 with CUDA alone, which is for tests on a GPU; wandb needs an account
    for name in ("torch", "wandb"):
        del oldest[name]
    tested = {}
    for file in ("constraints.txt", "constraints-oldest.txt"):
        for line in (ROOT / file).read_text().splitlines():
            name, _, version = line.partition("==")
            tested[name] = version
    assert {name: Version(tested[name]) for name in oldest} == oldest


@pytest.mark.exhaustive
def test_training_from_the_wheel_in_an_empty_folder(site: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    environment.pop("SEQ2SEQ_CACHE", None)
    small = ["model.dim=16", "model.ffn_dim=16", "model.num_heads=2", "trainer.max_steps=2", "run=small"]
    limits = ["trainer.val_sentences=4", "trainer.test=false"]
    command = [sys.executable, "-P", "-m", "seq2seq.train", *small, *limits]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "runs/small/checkpoints/best.safetensors").is_file()
