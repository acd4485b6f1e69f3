"""The guide's example, docs/your-kernel.md: its kernel against its reference, and its scripts as they are printed."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import DEVICE
from torch import Tensor

pytest.importorskip("triton")

from running_mean import FastAverage, mean

from seq2seq.mixers.average import Average, running_mean
from seq2seq.network.conformance import try_mixer

EXHAUSTIVE = {"test_times_are_ratios"}

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "your-kernel.md").read_text("utf-8")
SCRIPTS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
# By norm; the interpreter cuts bfloat16 off where a GPU rounds it
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 5e-3 if DEVICE == "cuda" else 1e-2}


def example(length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x (2, T, 70) and its mask; half of the second sentence is padding."""
    lengths = torch.tensor([[length], [length // 2]])
    mask = torch.arange(length) < lengths
    return torch.randn(2, length, 70, dtype=dtype).to(DEVICE), mask.to(DEVICE)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("length", [1, 16, 37])
def test_kernel_is_its_reference(length, dtype):
    """Value and gradient agree, with NaN in padding, for any layout of x and dy."""
    x, mask = example(length, dtype)
    exact = x.double().masked_fill(~mask[:, :, None], 0.0).requires_grad_()
    dy = torch.randn(70, dtype=dtype).to(DEVICE).expand_as(x)  # strides of 0
    wanted = running_mean(exact, mask, causal=True)
    wanted = wanted, *torch.autograd.grad(wanted, exact, dy.double())
    poisoned = x.masked_fill(~mask[:, :, None], float("nan")).transpose(0, 1).contiguous().transpose(0, 1)
    for backend in ("triton", "torch"):
        y = mean(poisoned.requires_grad_(), mask, backend)
        for found, expected in zip((y, *torch.autograd.grad(y, poisoned, dy)), wanted, strict=True):
            assert found.dtype == dtype
            error = torch.linalg.vector_norm(found.double() - expected)
            assert error <= TOLERANCE[dtype] * torch.linalg.vector_norm(expected)


@pytest.mark.parametrize("causal", [True, False])
def test_mixer_is_the_average(causal):
    mixer = FastAverage(dim=70, causal=causal, backend="triton").to(DEVICE)
    other = Average(dim=70, causal=causal).to(DEVICE)
    other.load_state_dict(mixer.state_dict())
    x, mask = example(5, torch.float32)
    torch.testing.assert_close(mixer(x, mask)[mask], other(x, mask)[mask])
    try_mixer(mixer.cpu())


def test_times_are_ratios(capsys):
    exec(SCRIPTS[1], {})
    assert re.fullmatch(r"\{'copy': '1.00 copies', 'triton': '[\d.]+ copies', 'torch': .*\}\n", capsys.readouterr().out)


@pytest.mark.exhaustive  # compiles in another process
@pytest.mark.skipif(importlib.util.find_spec("triton.backends.nvidia") is None, reason="Triton without its compiler")
def test_compiled_for_a_gpu_without_one():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(["tests/kernels", str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-c", SCRIPTS[0]], capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"spills=(\d+)", done.stdout) == ["0", "0"], done.stdout


def test_commands_name_what_there_is():
    for module in set(re.findall(r"python -m (benchmarks\.\w+)", PAGE)):
        assert importlib.util.find_spec(module), module
    for path, name in re.findall(r"python -m pytest (\S+)(?: -k (\w+))?", PAGE):
        known = name in (ROOT / path).read_text("utf-8") or (ROOT / f"conf/mixer/{name}.yaml").is_file()
        assert known, (path, name)
