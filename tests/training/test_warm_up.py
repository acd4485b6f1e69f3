"""Kernels are listed and compiled in threads before a run's clock starts.

Triton compiles in another process, since this one may define kernels for its interpreter.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import composed
import pytest
import torch

from seq2seq.data.batching import Batch
from seq2seq.settings.optim import OptimSettings
from seq2seq.training.lightning_parts.kernel_warm_up import collected, representatives, warm_kernels
from seq2seq.training.objective.batch_loss import sum_losses

ROOT = Path(__file__).resolve().parents[2]
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
REPRESENTATIVE = {"test_kernels_of_training_steps_are_listed_and_compiled": {"dynamicconv"}}
SETTINGS = OptimSettings()


def test_batches_of_one_kind_are_tried_once():
    """Tiles of 16, 32 and 64 positions and longer sentences, of either side."""
    shapes = [(rows, src, tgt) for rows in (1, 50) for src in (4, 16, 20, 32, 64, 72, 400) for tgt in (8, 24, 100, 200)]
    found = representatives(shapes)
    assert len(found) <= 7
    kinds = [
        sorted({min(width for width in (16, 32, 64, 999) if width >= shape[side]) for shape in found})
        for side in (1, 2)
    ]
    assert kinds == [[16, 32, 64, 999], [16, 32, 999]]
    assert representatives(iter([(3, 20, 20), (9, 24, 28)])) == [(9, 24, 28)]
    assert not representatives([])


LISTED = """
import contextlib, inspect, json, sys
from types import SimpleNamespace
from unittest import mock
sys.path.insert(0, "tests")
import composed, torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from seq2seq.settings.optim import OptimSettings
from seq2seq.training.lightning_parts import kernel_warm_up as warm_up

target = GPUTarget("cuda", 90, 32)
here = {"get_current_device": lambda: 0, "get_current_stream": lambda device: 0, "get_current_target": lambda: target}
driver.set_active(SimpleNamespace(**here))
mock.patch("seq2seq.kernels.dispatch.device_obstacle", lambda device: None).start()
mock.patch("torch.cuda.device", lambda device: contextlib.nullcontext()).start()
torch.manual_seed(0)
overrides = [f"mixer.{side}.backend=triton" for side in ("encoder", "decoder")]
model = composed.tiny(f"mixer={sys.argv[1]}", "model.dim=64", "model.num_heads=2", *overrides).train()
device, weights = torch.device("cpu"), [each.clone() for each in model.parameters()]
context = lambda: torch.autocast("cpu", torch.bfloat16)
with warm_up.collected() as found:
    twice = [warm_up._compilations(model, OptimSettings(), [shape], device, context) for shape in [(2, 20, 5)] * 2]
kernels = warm_up._compilations(model, OptimSettings(), [(2, 20, 5), (3, 70, 20)], device, context)
assert not found and [len(each) for each in twice] == [len(twice[0])] * 2
assert all(map(torch.equal, weights, model.parameters())) and all(each.grad is None for each in model.parameters())
closures = [inspect.getclosurevars(each).nonlocals for each in kernels]
constants = []
for each in closures:
    data, kernel = json.loads(each["data"]), each["kernel"]
    named = {kernel.arg_names[place]: value for (place,), value in zip(data["constant_keys"], data["constant_vals"])}
    constants.append([kernel.__name__, named["TILE"], data["signature"]["x"]])
# One for two threads
number = [name for name, *_ in constants].index("direct_forward")
warm_up._compile([kernels[number]] * 2, 2, device)
((key, compiled),) = closures[number]["kernel"].device_caches[0][0].items()
assert key == json.loads(closures[number]["data"])["key"] and compiled.asm["cubin"]
print(json.dumps(constants))
"""


@needs_triton
@pytest.mark.parametrize("mixer", [pytest.param("dynamicconv", marks=pytest.mark.exhaustive), "lightconv"])
def test_kernels_of_training_steps_are_listed_and_compiled(tmp_path, mixer):
    """Kernels have the expected constants, in the types of autocast; weights have no gradient afterwards."""
    env = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", LISTED, mixer]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env)
    assert done.returncode == 0, done.stderr
    found = [tuple(each) for each in json.loads(done.stdout)]
    # Of S 20 and 70 and T 5 and 20: one tile of 32 and of 16, and a longer sentence
    for way in ("forward", "backward"):
        assert {tile for name, tile, _ in found if name == f"one_tile_{way}"} == {16, 32}
        assert any(name == f"band_{way}" for name, *_ in found)
    assert {kind for *_, kind in found} == {"*bf16"}


def test_nothing_is_done_on_a_cpu():
    model: Any = None
    warm_kernels(model, SETTINGS, iter(()), device=torch.device("cpu"))


@needs_triton
def test_a_run_continues_if_it_fails(caplog):
    with (
        mock.patch("torch.random.fork_rng"),
        mock.patch(
            "seq2seq.training.lightning_parts.kernel_warm_up.sum_losses", side_effect=RuntimeError("no such kernel")
        ),
        mock.patch("torch.zeros", return_value=torch.ones(2, 4, dtype=torch.int64)),
        caplog.at_level(logging.WARNING),
    ):
        warm_kernels(composed.tiny("mixer=dynamicconv"), SETTINGS, [(2, 4, 4)], device=torch.device("cuda"))
    assert caplog.messages == ["kernels are compiled as they are launched: no such kernel"]


@pytest.mark.gpu
@pytest.mark.parametrize("mixer", ["transformer", "lightconv", "dynamicconv"])
def test_kernels_of_a_gpu_are_compiled_before_they_are_launched(mixer, caplog, monkeypatch, tmp_path):
    """Weights, gradients and random states do not change; a later step finds nothing to compile."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    device, before = torch.device("cuda", 0), torch.cuda.get_rng_state()
    model = composed.tiny(f"mixer={mixer}", "model.dim=64", "model.num_heads=2").to(device).train()
    weights, states = copy.deepcopy(model.state_dict()), torch.get_rng_state()

    def context() -> Any:
        return torch.autocast("cuda", torch.bfloat16)

    with caplog.at_level(logging.WARNING):
        warm_kernels(model, SETTINGS, [(8, 20, 12), (8, 72, 40)], device=device, context=context)
    assert not caplog.messages
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert torch.equal(torch.get_rng_state(), states)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in weights.items())
    assert all(parameter.grad is None for parameter in model.parameters())
    ids = torch.ones(3, 24, dtype=torch.int64, device=device)
    with collected() as found, context():
        sum_losses(model, Batch(ids, ids > 0, ids, ids, ids > 0, ids[:, 0]), SETTINGS).loss.backward()
    assert not found
