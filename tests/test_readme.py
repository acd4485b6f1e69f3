"""What the README says is so: its mixer passes the conformance tests, its presets exist, its links lead somewhere."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from composed import PRESETS
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from seq2seq.build import build_model
from seq2seq.resources import conf_dir

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_mixer_of_the_readme_is_complete(tmp_path):
    for part in ("seq2seq", "tests", "conf"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    (module,) = blocks("python")
    slot, preset = blocks("yaml")
    (tmp_path / "seq2seq/mixers/average.py").write_text(module, encoding="utf-8")
    (tmp_path / "conf/mixer/self/average.yaml").write_text(slot, encoding="utf-8")
    (tmp_path / "conf/mixer/average.yaml").write_text(preset, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not gpu", "-k", "average"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "tests/test_conformance.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) > 20
    assert "skipped" not in done.stdout


def test_settings_named_in_the_readme_exist():
    for group in ("mixer", "model", "experiment", "tokenizer"):
        for name in re.findall(rf"(?<![\w./@]){group}=([a-z]\w*)", README):
            if name != "average":
                assert (conf_dir() / group / f"{name}.yaml").is_file(), f"{group}={name}"
    table = re.findall(r"^\| `(\w+)` \| ", README, flags=re.MULTILINE)
    assert set(table) >= set(PRESETS)


def commands() -> list[list[str]]:
    """The overrides of every training command in the README, comments and continued lines joined."""
    text = re.sub(r"\\\n\s*", " ", README)
    lines = re.findall(r"python -m seq2seq\.train ([^\n`]*)", text)
    ours = [[part for part in shlex.split(line, comments=True) if not part.startswith("hydra/")] for line in lines]
    return [[part for part in overrides if part != "-m"] for overrides in ours]


@pytest.mark.parametrize("overrides", commands(), ids=" ".join)
def test_every_training_command_composes_and_builds(overrides):
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        sweep = [re.sub(r"=(\w+),.*", r"=\1", part) if not part.startswith("'") else part for part in overrides]
        plain = OmegaConf.to_container(compose("train", sweep), resolve=True)
    assert isinstance(plain, dict)
    joint = plain["tokenizer"]["joint"]
    sizes = {"src_vocab_size": 8, "tgt_vocab_size": 8, "pad_id": 0, "joint": joint}
    with torch.device("meta"):
        build_model({"model": plain["model"], "mixer": plain["mixer"], **sizes})


def test_links_of_the_readme_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists(), target
