"""Every recipe in conf/experiment composes, passes the checks of a run, and has a model of the published size."""

from __future__ import annotations

import functools
import re
from dataclasses import asdict
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from seq2seq.build import build_model, on_meta_device
from seq2seq.config.optim import OptimSettings
from seq2seq.config.sections import read_sections
from seq2seq.config.settings import read_section
from seq2seq.evaluation.moses_bleu import check_convention
from seq2seq.resources import conf_dir
from seq2seq.training.optim import learning_rate

RECIPES = {path.stem: path.read_text("utf-8") for path in sorted((conf_dir() / "experiment").glob("*.yaml"))}
JOINT, IWSLT, WORDS = (32768, 32768), (8848, 6632), (30000, 30000)
# Millions of parameters with the published vocabularies (computed from fairseq's architectures)
PUBLISHED = {
    "iwslt14_de_en_transformer": (39.5, IWSLT),
    "iwslt14_de_en_lightconv": (34.7, IWSLT),
    "iwslt14_de_en_dynamicconv": (35.3, IWSLT),
    "wmt14_en_de_transformer_base": (60.9, JOINT),
    "wmt14_en_de_transformer_big": (209.9, JOINT),
    "wmt14_en_fr_transformer_big": (209.9, JOINT),
    "wmt16_en_de_lightconv": (208.9, JOINT),
    "wmt16_en_de_dynamicconv": (213.2, JOINT),
}
# A recipe of each family; others differ from these in values that other tests here check
REPRESENTATIVE = {
    "test_a_recipe_composes_and_builds": {
        *("iwslt14_de_en_dynamicconv", "rnnsearch", "tatoeba", "wu", "wmt14_en_de_transformer_base"),
    },
    "test_a_published_recipe_says_what_to_expect": {"iwslt14_de_en_dynamicconv", "wmt14_en_de_transformer_base"},
}


@functools.cache
def settings(name: str) -> dict[str, Any]:
    """Compose a recipe, once; nobody changes what is returned."""
    overrides = [f"experiment={name}", "data.train=train", "data.valid=valid", "data.test=test"]
    needs_files = "override /data: files" in RECIPES[name] or name.startswith("iwslt14")
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        found = OmegaConf.to_container(compose("train", overrides[: 4 if needs_files else 1]), resolve=True)
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_composes_and_builds(name):
    config = settings(name)
    sections = read_sections(config)
    if sections.data.convention:
        check_convention(sections.data.convention, sections.data.tgt)
    tokenizer = sections.tokenizer
    joint = tokenizer.joint
    millions, (src, tgt) = PUBLISHED.get(name, (None, JOINT if joint else WORDS))
    sizes = {"src_vocab_size": src, "tgt_vocab_size": tgt, "pad_id": 0, "joint": src == tgt and joint}
    sizes |= {"patches": asdict(tokenizer.patches)} if tokenizer.patches else {}
    with on_meta_device():
        model = build_model({"model": config["model"], "mixer": config["mixer"], **sizes})
    if millions:
        count = sum(parameter.numel() for parameter in model.parameters())
        assert count == pytest.approx(millions * 1e6, rel=0.005), f"{count:,} parameters"


@pytest.mark.parametrize(
    "name", [name for name in RECIPES if re.match(r"(iwslt|wmt)\d\d_.*_\w*(conv|former|search)", name)]
)
def test_a_published_recipe_says_what_to_expect(name):
    """Score and convention are in the comment; the run is bounded by updates, not by the clock."""
    head = " ".join(line.lstrip("# ") for line in RECIPES[name].splitlines() if line.startswith("#"))
    assert re.search(r"Expected[^.]* \d\d\.\d", head), head
    assert re.search("tokenized|compound-split|sacreBLEU|detokenized", head)
    config = settings(name)
    assert config["trainer"]["max_steps"]
    assert config["trainer"]["max_time"] is None


@pytest.mark.parametrize(
    ("name", "count", "steps"),
    [
        ("iwslt14_de_en_transformer", 10, None),
        ("iwslt14_de_en_lightconv", 10, None),
        ("wmt16_en_de_dynamicconv", 10, None),
        ("wmt14_en_fr_lightconv", 10, None),
        ("wmt17_zh_en_dynamicconv", 10, None),
        ("wmt14_en_de_transformer_base", 5, 1250),
        ("wmt14_en_fr_transformer_base", 5, 1250),
        ("wmt14_en_de_transformer_big", 20, 600),
        ("wmt14_en_fr_transformer_big", 20, 600),
        ("wmt14_en_fr_rnnsearch", None, None),
    ],
)
def test_what_a_published_score_averages_is_kept(name, count, steps):
    """As many validations as papers average checkpoints, each an epoch (no steps) or an equal part of the run."""
    trainer = settings(name)["trainer"]
    assert (trainer["keep_last"], trainer["val_steps"], trainer["val_time"]) == (count, steps, None)
    assert trainer["max_steps"] % (steps or 1) == 0


def test_values_of_the_recipes():
    """Values that are easily lost on the way through three files."""
    wmt, french, chinese = (settings(f"{pair}_dynamicconv") for pair in ("wmt16_en_de", "wmt14_en_fr", "wmt17_zh_en"))
    assert (wmt["data"]["batch_tokens"], wmt["trainer"]["accumulate"]) == (458_752, 1)
    assert [c["model"]["dropout"] for c in (wmt, french, chinese)] == [0.3, 0.1, 0.2]
    assert [c["model"]["weight_dropout"] for c in (wmt, french, chinese)] == [0.1, 0.1, 0.2]
    assert [c["mixer"]["encoder"]["weight_dropout"] for c in (wmt, french, chinese)] == [0.1, 0.1, 0.2]
    assert [c["optim"]["period"] for c in (wmt, french)] == [20_000, 70_000]
    assert [c["search"]["length_penalty"] for c in (wmt, french)] == [0.5, 0.9]
    assert [c["trainer"]["max_steps"] for c in (wmt, french)] == [30_000, 80_000]
    iwslt = settings("iwslt14_de_en_dynamicconv")
    assert (iwslt["data"]["batch_tokens"], iwslt["optim"]["lr"], iwslt["optim"]["weight_decay"]) == (4000, 5e-4, 1e-4)
    assert not iwslt["mixer"]["encoder"]["glu"]
    assert not iwslt["mixer"]["decoder"]["glu"]


@pytest.mark.parametrize(
    ("name", "dim"), [("wmt14_en_de_transformer_base", 512), ("wmt14_en_fr_transformer_big", 1024)]
)
def test_the_transformer_has_the_published_rates(name, dim):
    """D^-0.5 min(n^-0.5, n W^-1.5) with W = 4,000."""
    config = settings(name)
    assert config["model"]["dim"] == dim
    found = read_section(OptimSettings, config["optim"], "optim")
    for step in (1, 1000, 4000, 10_000, 100_000):
        expected = dim**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert learning_rate(step, found) == pytest.approx(expected, rel=2e-3)
