"""What the README says is so: its mixer is the repository's, its presets exist, its links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from composed import PRESETS, SELF
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from seq2seq.build import build_model
from seq2seq.resources import conf_dir

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_mixer_of_the_readme_is_the_repositorys():
    """Character for character, so that what the conformance tests find is what a reader sees."""
    (module,) = blocks("python")
    slot, preset = blocks("yaml")
    assert module == (ROOT / "seq2seq/mixers/average.py").read_text(encoding="utf-8")
    assert slot == (conf_dir() / "mixer/self/average.yaml").read_text(encoding="utf-8")
    assert preset == (conf_dir() / "mixer/average.yaml").read_text(encoding="utf-8")
    assert "average" in SELF
    assert "average" in PRESETS


def test_settings_named_in_the_readme_exist():
    for group in ("mixer", "model", "experiment", "tokenizer"):
        for name in re.findall(rf"(?<![\w./@]){group}=([a-z]\w*)(?![\w(])", README):
            assert (conf_dir() / group / f"{name}.yaml").is_file(), f"{group}={name}"


def commands() -> list[list[str]]:
    """The overrides of every training command in the README, comments and continued lines joined."""
    text = re.sub(r"\\\n\s*", " ", README)
    lines = re.findall(r"python -m seq2seq\.train ([^\n`]*)", text)
    ours = [[part for part in shlex.split(line, comments=True) if not part.startswith("hydra/")] for line in lines]
    return [[part for part in overrides if part != "-m"] for overrides in ours]


@pytest.mark.parametrize("overrides", commands(), ids=" ".join)
def test_every_training_command_composes_and_builds(overrides):
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        named = [part.replace("glob(*)", "transformer") for part in overrides]
        sweep = [re.sub(r"=(\w+),.*", r"=\1", part) if not part.startswith("'") else part for part in named]
        plain = OmegaConf.to_container(compose("train", sweep), resolve=True)
    assert isinstance(plain, dict)
    joint = plain["tokenizer"]["joint"]
    sizes = {"src_vocab_size": 8, "tgt_vocab_size": 8, "pad_id": 0, "joint": joint}
    with torch.device("meta"):
        build_model({"model": plain["model"], "mixer": plain["mixer"], **sizes})


def test_links_of_the_readme_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists(), target
