"""Every recipe in conf/experiment composes, passes the checks of a run, and has a model of the published size."""

from __future__ import annotations

import functools
import re
from dataclasses import asdict
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from seq2seq.metrics.moses_bleu import check_convention
from seq2seq.network.build import build_model, on_meta_device
from seq2seq.settings.declare import read_section
from seq2seq.settings.optim import OptimSettings
from seq2seq.settings.run import read_settings
from seq2seq.system.resources import conf_dir
from seq2seq.training.machine.flops import training_flops
from seq2seq.training.objective.optim import learning_rate

RECIPES = {path.stem: path.read_text("utf-8") for path in sorted((conf_dir() / "experiment").glob("*.yaml"))}
JOINT, IWSLT, WORDS = (32768, 32768), (8848, 6632), (30000, 30000)
# Millions of parameters with the published vocabularies (computed from fairseq's architectures)
PUBLISHED = {
    "iwslt14_de_en_transformer": (39.5, IWSLT),
    "iwslt14_de_en_lightconv": (38.1, IWSLT),
    "iwslt14_de_en_dynamicconv": (38.7, IWSLT),
    "wmt14_en_de_transformer_base": (60.9, JOINT),
    "wmt14_en_de_transformer_big": (209.9, JOINT),
    "wmt14_en_fr_transformer_big": (209.9, JOINT),
    "wmt16_en_de_lightconv": (208.9, JOINT),
    "wmt16_en_de_dynamicconv": (213.2, JOINT),
}
# A recipe of each family; other tests check the values in which further recipes differ
REPRESENTATIVE = {
    "test_a_recipe_composes_and_builds": {
        *("iwslt14_de_en_dynamicconv", "rnnsearch", "tatoeba", "wu", "wmt14_en_de_transformer_base"),
    },
    "test_a_published_recipe_names_the_expected_score": {"iwslt14_de_en_dynamicconv", "wmt14_en_de_transformer_base"},
    "test_systems_of_a_task_differ_in_the_mixer_alone": {"q1_en_fr"},
    "test_a_task_of_the_benchmark_has_the_planned_values": {"q1_en_fr", "q2_authors", "q3_data"},
    "test_checkpoints_for_the_published_average_are_kept": {
        "iwslt14_de_en_lightconv-10-None",
        "wmt14_en_fr_rnnsearch-None-None",
    },
}
EXHAUSTIVE = {"test_data_sizes_have_equal_epochs", "test_systems_of_the_first_question"}


@functools.cache
def settings(name: str) -> dict[str, Any]:
    """Compose a recipe, once; callers do not change the result."""
    overrides = [f"experiment={name}", "data.train=train", "data.valid=valid", "data.test=test"]
    needs_files = "override /data: files" in RECIPES[name] or name.startswith("iwslt14")
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        found = OmegaConf.to_container(compose("train", overrides[: 4 if needs_files else 1]), resolve=True)
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_composes_and_builds(name):
    config = settings(name)
    sections = read_settings(config)
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
def test_a_published_recipe_names_the_expected_score(name):
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
def test_checkpoints_for_the_published_average_are_kept(name, count, steps):
    """A recipe keeps as many validations as its paper averages, each after an epoch or an equal part of the run."""
    trainer = settings(name)["trainer"]
    assert (trainer["keep_last"], trainer["val_steps"], trainer["val_time"]) == (count, steps, None)
    assert trainer["max_steps"] % (steps or 1) == 0


def test_values_of_the_recipes():
    """Values that an override in three files may lose."""
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


BENCHMARK = conf_dir() / "experiment" / "benchmark"
TASKS = sorted(path.stem for path in BENCHMARK.glob("*.yaml"))
# Updates, tokens of an update, optimizer, languages, and whether the test set is opened
PLAN = {
    "grid_en_fr": (1600, 4096, "muon", "en fr", False),
    "grid_it_en_small": (2500, 25_000, "muon", "it en", False),
    "grid_it_en_base": (2500, 25_000, "muon", "it en", False),
    "q1_en_de": (3200, 4096, "muon", "en de", True),
    "q1_en_fr": (3200, 4096, "muon", "en fr", True),
    "q1_more_en_de": (3200, 4096, "muon", "en de", True),
    "q1_more_en_fr": (3200, 4096, "muon", "en fr", True),
    "q1_flops_en_fr": (3052, 4096, "muon", "en fr", True),
    "q2_ours": (6400, 4096, "muon", "en de", True),
    "q2_authors": (8000, 8192, "adam", "en de", True),
    "q3_small": (10_000, 25_000, "muon", "it en", True),
    "q3_base": (10_000, 25_000, "muon", "it en", True),
    "q3_data": (1180, 4096, "muon", "it en", True),
}


@functools.cache
def composed(*overrides: str) -> Any:
    """Compose the settings of a command, Hydra's own included."""
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        return compose("train", list(overrides), return_hydra_config=True)


def jobs(task: str) -> list[str]:
    """The files that the systems of a task choose, one override each."""
    sweep = composed(f"experiment=benchmark/{task}").hydra.sweeper.params
    (group,) = [key for key in sweep if key.endswith(("/system", "/flops"))]
    return [f"{group}={name}" for name in sweep[group].split(",")]


def plain(task: str, *overrides: str) -> dict[str, Any]:
    """The settings of one job of a task."""
    config = composed(f"experiment=benchmark/{task}", *overrides)
    found = OmegaConf.to_container(
        OmegaConf.masked_copy(config, [key for key in config if key != "hydra"]), resolve=True
    )
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}


def test_the_protocol_names_every_task():
    page = (conf_dir().parent / "docs" / "benchmark.md").read_text("utf-8")
    assert set(TASKS) == set(PLAN)
    for task, (updates, tokens, *_) in PLAN.items():
        assert f"`{task}`" in page
        if task != "q1_flops_en_fr":
            assert f"{updates:,}" in page
        # Command and budget are in the file
        text = (BENCHMARK / f"{task}.yaml").read_text("utf-8")
        assert f"-m experiment=benchmark/{task}\n" in text
        assert re.search(r"# Budget: .*(update|epoch)", text)
        assert f"{tokens:,}" in text or tokens == 8192


@pytest.mark.parametrize("task", TASKS)
def test_a_task_of_the_benchmark_has_the_planned_values(task):
    config = plain(task)
    read_settings(config)
    updates, tokens, optimizer, languages, tested = PLAN[task]
    trainer, data = config["trainer"], config["data"]
    assert (trainer["max_steps"], trainer["max_epochs"], trainer["max_time"]) == (updates, None, None)
    assert (data["batch_tokens"], config["optim"]["name"], trainer["test"]) == (tokens, optimizer, tested)
    assert f"{data['src']} {data['tgt']}" == languages
    assert config["search"]["beam_size"] == 5
    # As many validations as the mean of the last ten checkpoints needs
    assert trainer["keep_last"] == 10
    sweep = composed(f"experiment=benchmark/{task}").hydra.sweeper.params
    if task.startswith("grid"):
        assert composed(f"experiment=benchmark/{task}").seed == 0
        assert "optim.peak_lr" in sweep
    else:
        assert sweep.seed == "1,2,3,4,5"
        assert updates >= 10 * trainer["val_steps"]


@pytest.mark.parametrize("task", ["q1_en_fr", "q1_more_en_de", "q2_authors", "q3_base"])
def test_systems_of_a_task_differ_in_the_mixer_alone(task):
    systems = [plain(task, job) for job in jobs(task)]
    first, *others = [{key: value for key, value in system.items() if key != "mixer"} for system in systems]
    assert all(other == first for other in others)
    mixers = [str(system["mixer"]) for system in systems]
    assert len(set(mixers)) == len(mixers)


def test_systems_of_the_first_question():
    """Depth, gate, windows and positions agree with the names of the systems."""
    mixer = {
        job.partition("=")[2]: plain("q1_en_fr", job)["mixer"] for job in [*jobs("q1_en_fr"), *jobs("q1_more_en_fr")]
    }
    depth = {name: each.get("extra_encoder_layers") or 0 for name, each in mixer.items()}
    deep = {"transformer_deep", "lightconv", "lightconv_no_gate", "dynamicconv"}
    assert {name for name, extra in depth.items() if extra == 1} == deep
    assert all(extra == 0 for name, extra in depth.items() if name not in deep)
    assert not mixer["lightconv_no_gate"]["decoder"]["glu"]
    assert mixer["windows"]["encoder"]["per_layer"]["window"] == [3, 7, 15, 31]
    assert mixer["separable_64"]["decoder"]["max_len"] == 64
    assert plain("q1_en_fr")["data"]["clean"]["max_length"] == 64


def test_data_sizes_have_equal_epochs():
    for name, count in {"10k": 10_000, "30k": 30_000, "100k": 100_000, "300k": 300_000, "all": 648_849}.items():
        config = plain("q3_data", f"experiment/benchmark/pairs={name}")
        assert config["data"]["limit"] == (None if name == "all" else count)
        assert config["trainer"]["max_steps"] == pytest.approx(0.118 * count, rel=0.001)


@pytest.mark.slow
def test_updates_at_equal_flops():
    """A target token of a pair of 14 and 15 pieces costs what docs/benchmark.md says."""
    page = (conf_dir().parent / "docs" / "benchmark.md").read_text("utf-8")
    row = re.compile(r"^\| `(\w+)` \| [45] \+ 4 \| ([\d.]+)M \| ([\d.]+)M \| ([\d.]+) \| ([\d,]+) \|$", re.MULTILINE)
    found = {name: numbers for name, *numbers in row.findall(page)}
    costs = {name: _cost(name) for name in found}
    for name, (parameters, millions, ratio, updates) in found.items():
        count, cost = costs[name]
        share = cost / costs["transformer"][1]
        assert (parameters, millions, ratio) == (f"{count / 1e6:.2f}", f"{cost / 1e6:.1f}", f"{share:.2f}"), name
        planned = 3200 if abs(share - 1) < 0.02 else round(3200 / share)
        assert int(updates.replace(",", "")) == planned, name
        if planned != 3200:
            assert plain("q1_flops_en_fr", f"experiment/benchmark/flops={name}")["trainer"]["max_steps"] == planned


def _cost(system: str) -> tuple[int, float]:
    """Parameters, and training FLOPs of a target token."""
    config = plain("q1_en_fr", f"experiment/benchmark/system={system}")
    sizes = {"src_vocab_size": 10_000, "tgt_vocab_size": 10_000, "pad_id": 0, "joint": True}
    built = {"model": config["model"], "mixer": config["mixer"], **sizes}
    with on_meta_device():
        model = build_model(built)
    flops = training_flops(built)
    assert flops is not None
    return sum(parameter.numel() for parameter in model.parameters()), flops(32, 14, 15) / (32 * 15)
