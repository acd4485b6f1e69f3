"""Compile the Triton kernels for real GPUs, without a GPU: nothing spills, and benchmarks/aot.py detects spills.

Everything runs in other processes, since this one may define kernels for Triton's interpreter.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRITON = importlib.util.find_spec("triton")
TOOLS = Path(TRITON.origin).parent / "backends" / "nvidia" / "bin" if TRITON and TRITON.origin else Path()

pytestmark = [
    pytest.mark.exhaustive,  # compiles in other processes
    pytest.mark.skipif(TRITON is None, reason="triton is not installed"),
    pytest.mark.skipif(not (TOOLS / "cuobjdump").exists(), reason="triton came without cuobjdump"),
]

CONVOLUTIONS = "(dynamicconv|lightconv)(_backward)? bf16 .* head 64, (1 word|GLU), ends$"
CONV_STEP = "conv_step bf16 .* head 64, softmax$"
ATTENTION = "attention(_backward)? bf16 .* head 64, rows of (32|64), (causal|mask, bias and dropout)$"
LOSS = "cross_entropy (bf16|fp32) .*gradient$"
NORM = "residual_norm(_backward)? (bf16|fp32) .*post, D 512"
MAIN = """
every = aot.jobs
aot.jobs = lambda archs, **rest: [job for job in every(archs, **rest) if job.taps[0] <= 31 <= job.taps[1]]
sys.exit(aot.main())
"""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code after `from benchmarks import aot`."""
    command = [sys.executable, "-c", f"import sys\nfrom benchmarks import aot\n{code}", *arguments]
    env = os.environ | {"TRITON_INTERPRET": "1"}  # which must not matter
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env)


def test_main_kernels_do_not_spill(tmp_path):
    """Heads of 64 channels, K = 31, bfloat16, everything switched on, on sm_90; LightConv forward on two more."""
    others = "sm_(80|100) lightconv bf16 .* head 64$"
    kinds = f"{CONVOLUTIONS}|{CONV_STEP}|keep_words|{LOSS}|{ATTENTION}|{NORM}"
    match = f"sm_90 ({kinds})|{others}"
    arguments = ("--arch", "80", "90", "100", "--jobs", "1", "--match", match, "--out", str(tmp_path))
    done = run(MAIN, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "aot.json").read_text(encoding="utf-8"))["rows"]
    assert {row["op"] for row in rows} == {
        "dynamicconv", "dynamicconv_backward", "lightconv", "lightconv_backward", "conv_step", "keep_words",
        "cross_entropy", "attention", "attention_backward", "residual_norm", "residual_norm_backward",
    }  # fmt: skip
    assert sorted(row["arch"] for row in rows) == [80] + [90] * 26 + [100]
    for row in rows:
        assert (row["error"], row["spills"], row["stack"]) == ("", 0, 0), row
        assert 0 < row["registers"] <= 255, row
        assert row["instructions"] > 50, row
        assert row["shared"] <= 99 * 1024, row
        assert f"| {row['op']} |" in done.stdout


def test_planted_violation_is_found():
    code = "aot.LIMITS[90] = aot.LIMITS[90]._replace(registers=1)"
    done = run(code + MAIN, "--arch", "90", "--jobs", "1", "--match", CONV_STEP)
    assert done.returncode == 1, done.stderr
    assert "OVER sm_90 conv_step bf16 K 17-32 head 64, softmax: " in done.stdout
    assert "registers, limit 1" in done.stdout


def test_kernel_that_does_not_compile_is_found():
    code = "aot._types = lambda job: {}  # no pointers among the arguments"
    done = run(code + MAIN, "--arch", "90", "--jobs", "1", "--match", CONV_STEP)
    assert done.returncode == 1, done.stderr
    assert "OVER sm_90 conv_step bf16 K 17-32 head 64, softmax: CompilationError" in done.stdout


def test_no_such_configuration_is_an_error():
    done = run("sys.exit(aot.main())", "--match", "no such kernel")
    assert done.returncode == 2
    assert "no such kernel" in done.stderr


LAUNCHES = """
import itertools
import torch

class Recorder:
    def __init__(self, kernel):
        self.arg_names, self.name = kernel.arg_names, kernel.__name__
    def __getitem__(self, grid):
        return self.launch
    def launch(self, *given, **constants):
        types = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64"}
        types[torch.bool] = "*i1"
        scalars = {int: "i32", float: "fp32"}
        kinds = [types[part.dtype] if isinstance(part, torch.Tensor) else scalars[type(part)] for part in given]
        signature = dict(zip([n for n in self.arg_names if n not in constants], kinds, strict=True))
        launched.add((self.name, tuple(sorted(constants.items())), tuple(sorted(signature.items()))))

launched, planned = set(), set()
for job in aot.jobs([90]):
    attends = job.module == "attention" and (job.head_dim, "rows of 32" in job.group) == (64, True)
    if job.dtype == "bf16" and (job.head_dim == 256 or attends):
        kernel = getattr(aot.kernel_module(job.module), job.kernel)
        types, constants = aot._types(job), dict(job.constants)
        signature = {n: types.get(n, "i32") for n in kernel.arg_names if n not in constants}
        planned.add((kernel.__name__, tuple(sorted(constants.items())), tuple(sorted(signature.items()))))
for name in ("dynamicconv", "lightconv", "attention"):
    module = aot.kernel_module(name)
    for kernel in [f"{kind}_{way}" for kind in ("band", "direct", "one_tile") for way in ("forward", "backward")]:
        if hasattr(module, kernel):
            setattr(module, kernel, Recorder(getattr(module, kernel)))
conv_step = aot.kernel_module("conv_step")
conv_step.conv_step_kernel = Recorder(conv_step.conv_step_kernel)

h = lambda *shape: torch.zeros(shape, dtype=torch.bfloat16)
f = lambda *shape: torch.zeros(shape)
dynamic, light = aot.kernel_module("dynamicconv"), aot.kernel_module("lightconv")
owner, ends = torch.zeros(2, 5, dtype=torch.int64), torch.ones(2, dtype=torch.int64)
# sentences of one tile of 16, of 32 and of 64, and longer ones
for taps, length in itertools.product(aot.OTHER_TAPS, (5, 20, 40, 70)):
    x, logits, lse = h(2, length, 1024), h(2, length, 4, taps), f(2, length, 4)
    given = (torch.zeros(2, length, 4, -(-taps // 32), dtype=torch.int32), ends)
    dynamic.forward(x, logits, *given, True, 1.1)
    dynamic.backward(x, x, logits, lse, *given, True, 1.1)
    light.forward(h(2, length, 2048), f(4, taps), ends, True, True)
    light.backward(x, h(2, length, 2048), f(4, taps), ends, True, True)
    conv_step.conv_step(h(2, 4, 5, 1, 256), owner, ends, h(2, 4, taps), True)
attention, mask = aot.kernel_module("attention"), torch.ones(2, 1, 1, 20, dtype=torch.bool)
words, bias = torch.zeros(2, 4, 20, 1, dtype=torch.int32), f(4, 20, 20)
q, one = h(2, 4, 20, 64), h(2, 1, 20, 64)
options = ((q, None, None, None, True), (q, None, mask, None, False), (q, bias, mask, words, True))
for k, *given, causal in (*options, (one, None, mask, words, True)):
    attention.forward(q, k, k, *given, causal, 0.1)
    attention.backward(q, f(2, 4, 20), q, k, k, *given, causal=causal, drop=0.1)
assert planned == launched, (planned - launched, launched - planned)
# five for each K, and two for each size of one tile, which needs more than three taps
assert len(planned) >= 5 * len(aot.OTHER_TAPS) + 2 * 3, len(planned)
"""


def test_what_is_compiled_is_what_is_launched():
    """Constants, settings and types for heads of 256 channels, against calls of recorders in the kernels' places."""
    done = run(LAUNCHES)
    assert done.returncode == 0, done.stderr


def test_warps_that_fit_by_hand():
    code = """
    assert aot._resident(aot.LIMITS[90], 128, 0, 4) == 16  # 65536 registers / (128 * 32)
    assert aot._resident(aot.LIMITS[90], 129, 0, 4) == 12  # counted as 136: 3.76 warps in each quarter
    assert aot._resident(aot.LIMITS[90], 255, 0, 16) == 0  # a block of 16 warps does not fit at all
    assert aot._resident(aot.LIMITS[90], 32, 75 * 1024, 8) == 24  # three blocks of 76 KB in 228
    assert aot._resident(aot.LIMITS[120], 32, 0, 4) == 48
    """
    done = run("\n".join(line.strip() for line in code.splitlines()))
    assert done.returncode == 0, done.stderr
