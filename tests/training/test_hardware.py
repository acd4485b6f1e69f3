"""Settings that a run makes on its machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import toycorpus

from seq2seq.mixers.attention import CrossAttention
from seq2seq.mixers.lightconv import LightConv
from seq2seq.settings.trainer import TrainerSettings
from seq2seq.training.machine import hardware

# Page faults of four blocks of 64 MiB, one after the other, before and after; then whether a part of memory asks for
# large pages.
FAULTS = """
import resource
from seq2seq.system.memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        bytearray(b"x") * (64 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults()
keep_freed_memory()
faults()  # the heap grows
after = faults()
with open("/proc/self/smaps") as parts:
    print(before, after, int(any(line.startswith("VmFlags") and " hg" in line for line in parts)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
@pytest.mark.parametrize("chosen", [{}, {"MALLOC_TRIM_THRESHOLD_": "131072"}], ids=["kept", "as the environment says"])
def test_freed_memory_is_kept_for_later_tensors(chosen):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], env=environment | chosen, capture_output=True, text=True, check=True
    )
    before, after, large = map(int, done.stdout.split())
    # A page of 4 KiB or of 2 MiB
    assert before >= 4 * 32
    assert after >= 4 * 32 if chosen else after < 32
    if Path("/sys/kernel/mm/transparent_hugepage").exists():
        assert large == (not chosen)


@pytest.mark.parametrize(
    ("capability", "precision", "lightnings", "note"),
    [
        ((8, 0), "auto", "bf16-mixed", None),
        ((7, 5), "auto", "32-true", "auto trains in float32"),
        ((7, 0), "bf16", "bf16-mixed", "precision=32 is faster"),
        ((7, 0), "bf16-true", "bf16-true", "precision=32 is faster"),
        ((7, 5), "32", "32-true", None),
        ((7, 5), "tf32", "32-true", None),
    ],
)
def test_an_older_gpu_says_what_it_trains_in(monkeypatch, caplog, capability, precision, lightnings, note):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: capability >= (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    assert hardware.resolve_precision(precision, "gpu") == lightnings
    assert [note in message for message in caplog.messages] == ([True] if note else [])


@pytest.mark.parametrize(("bf16", "lacking"), [(True, r"trainer\.precision=bf16"), (False, "a GPU with bf16")])
def test_packing_asks_for_what_the_gpu_can_do(monkeypatch, bf16, lacking):
    monkeypatch.setattr(hardware, "has_bf16", lambda accelerator: bf16)
    mixer = CrossAttention(dim=16, memory_dim=16, num_heads=2, packed=True)
    with pytest.raises(ValueError, match=f"packed=true of CrossAttention needs .*{lacking}"):
        hardware.require_packing(mixer, "gpu", "32-true")


def test_a_mixer_that_demands_triton_needs_a_machine_with_it(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    layer = LightConv(dim=16, causal=True, num_heads=2, kernel_size=3, backend="triton")
    with pytest.raises(ValueError, match=r"backend=triton of LightConv .*tensors on cpu"):
        hardware.require_kernels(torch.nn.Sequential(layer), "cpu")
    layer.backend = "auto"
    hardware.require_kernels(torch.nn.Sequential(layer), "cpu")


def test_a_run_keeps_freed_memory_before_it_measures_threads(tmp_path, monkeypatch):
    corpus, events = toycorpus.write(tmp_path / "corpus"), []
    monkeypatch.setattr("seq2seq.training.run.keep_freed_memory", lambda: events.append("memory"))
    monkeypatch.setattr("seq2seq.training.run.measure_threads", lambda *_, **__: events.append("threads"))
    monkeypatch.setattr("seq2seq.training.run.known_threads", lambda *_: None)
    toycorpus.execute(toycorpus.settings(corpus, tmp_path, "trainer.max_steps=1", "trainer.test=false"))
    assert events == ["memory", "threads"]


def test_fused_kernels_need_a_gpu():
    with pytest.raises(ValueError, match=r"trainer\.fused"):
        hardware.resolve_accelerator(TrainerSettings(max_steps=1, fused=True, accelerator="cpu"))
