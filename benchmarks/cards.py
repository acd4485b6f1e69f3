"""Write a result card for each mixer preset: docs/cards.md, for `benchmarks.tables`."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import runpy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from seq2seq.network.build import build_model, on_meta_device
from seq2seq.settings.compose import presets
from seq2seq.system.resources import conf_dir
from seq2seq.system.yaml_file import read_yaml
from seq2seq.training.machine.flops import forward_flops

ROOT = Path(__file__).resolve().parent.parent
SPEED = "benchmarks/results/run_speed/six-mixers.json"
VOCABULARY = {"src_vocab_size": 10_000, "tgt_vocab_size": 10_000, "pad_id": 0, "joint": True}
# Rows and pieces of the batch whose FLOPs are counted, with the lengths of docs/benchmark.md
_ROWS, _SRC, _TGT = 64, 14, 15
# The functions that write the table of docs/mixers.md
_HOOKS = runpy.run_path(str(ROOT / "docs/hooks.py"))
# Names of tests by hand or against torch, and of tests that state an equality of mixers
_CHECKING = re.compile(r"by_hand|_torchs|by_its_definition"), re.compile(r"_(is|are)_")
# Presets that share a class with others, or whose tests have other names
_CHECKS = {
    "transformer": ["test_self_attention_is_torchs", "test_causal_attention_is_torchs"],
    "grouped_query": ["test_grouped_queries_are_attention_with_repeated_heads"],
    "relu_attention": ["test_weights_are_as_defined", "test_attention_by_hand"],
    "gru": ["test_recurrent_mixers_are_torchs_on_packed_sequences"],
}
# Words with which a docstring or comment refers to the paper
_OF_PAPER = re.compile(r"\b([Pp]ublished|papers?|ours|in RNNsearch)\b")


@cache
def _composed() -> dict[str, Any]:
    """Return the sections `model` and `mixer` of each preset at model=tiny."""
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        settings = {name: compose(overrides=["+model=tiny", f"+mixer={name}"]) for name in presets()}
    return {name: OmegaConf.to_container(each, resolve=True) for name, each in settings.items()}


@cache
def size(name: str) -> tuple[int, float]:
    """Return a preset's parameters, and its FLOPs of training by a target token, counted on the meta device."""
    with on_meta_device():
        model = build_model({**_composed()[name], **VOCABULARY}).eval()
    # One shape, where `TrainingFlops` counts fourteen. Both count three times the forward pass
    flops = 3 * forward_flops(model, _ROWS, _SRC, _TGT)
    return sum(each.numel() for each in model.parameters()), flops / (_ROWS * _TGT)


@cache
def _tests() -> list[tuple[str, str, str]]:
    """Return path, name and source of each test of mixers."""
    files = [(path, ast.parse(path.read_text("utf-8"))) for path in sorted((ROOT / "tests/mixers").glob("test_*.py"))]
    functions = [(path, node) for path, tree in files for node in tree.body if isinstance(node, ast.FunctionDef)]
    tests = [(path, node) for path, node in functions if node.name.startswith("test_")]
    return [(f"tests/mixers/{path.name}", node.name, ast.unparse(node)) for path, node in tests]


def checks(name: str, cls: str) -> list[str]:
    """Return the tests that tie a preset to its equation or reference: two at most."""
    if name in _CHECKS:
        return [f"{path}::{test}" for path, test, _ in _tests() if test in _CHECKS[name]]
    of_class = [(path, test) for path, test, source in _tests() if re.search(rf"\b{cls}\b", source)]
    for names in _CHECKING:
        tests = [f"{path}::{test}" for path, test in of_class if names.search(test)]
        if tests:
            return ([each for each in tests if name.split("_")[0] in each.split("::")[1]] or tests)[:2]
    return []


def differences_from_paper(name: str, docstring: str) -> str:
    """Return what the docstring and the comments of settings say about the paper."""
    text = " ".join(_HOOKS["SECTION"].split(docstring)[0].split())
    found = [sentence for sentence in re.split(r"(?<=\.) (?=[A-Z])", text) if _OF_PAPER.search(sentence)]
    for slot in read_yaml(conf_dir() / f"mixer/{name}.yaml")["defaults"]:
        ((kind, value),) = slot.items()
        for line in (conf_dir() / f"mixer/{kind.split('@')[0]}/{value}.yaml").read_text("utf-8").splitlines():
            setting, _, comment = line.partition("#")
            if setting.strip() and _OF_PAPER.search(comment):
                found.append(f"`{setting.strip()}` ({comment.strip()}).")
    return " ".join(dict.fromkeys(found))


def card(name: str, scores: Callable[[str], str]) -> str:
    """Write the card of a preset, with the scores that kept runs give it."""
    module, cls = _HOOKS["own_class"](_composed()[name]["mixer"]).rsplit(".", 1)
    summary, equation, papers = _HOOKS["describe"](module, cls)
    docstring = inspect.getdoc(getattr(importlib.import_module(module), cls)) or ""
    parameters, flops = size(name)
    relative = f"{flops / size('transformer')[1]:.2f} of the Transformer's"
    speeds = {run["mixer"]: run for run in json.loads((ROOT / SPEED).read_text("utf-8"))["runs"]}
    speed = ""
    if found := speeds.get(name):
        speed = f"{found['target_tokens_per_cpu_second']:,.0f} target tokens trained, "
        speed += f"{found['sentences_per_cpu_second_beam']:.1f} sentences translated a CPU-second"
    lines = {
        "Equation": equation and f"`{equation}`",
        "Source": papers,
        "Checked by": ", ".join(f"`{test}`" for test in checks(name, cls)),
        "Size": f"{parameters / 1e6:.2f}M parameters, {flops / 1e6:.1f}M FLOPs a token, {relative}",
        "Speed": speed,
        "BLEU": scores(name),
        "Compared with its paper": differences_from_paper(name, docstring),
    }
    what = _HOOKS["leading_comment"](conf_dir() / f"mixer/{name}.yaml") or summary
    return "\n".join([f"## {name}\n", f"{what}\n", *(f"- **{key}**: {text}" for key, text in lines.items() if text)])


def cards(scores: Callable[[str], str]) -> str:
    """Write the cards of all presets."""
    return "\n\n".join(card(name, scores) for name in presets())
