"""Measurements of a run's own speed: FLOPs/s, MFU, padding and memory, over an interval, a run and a resumed run."""

from __future__ import annotations

import mmap
import sys

import numpy as np
import pytest
import torch
from composed import TINY, config

from seq2seq.data.batching import Batch, Ragged, collate
from seq2seq.training.machine.flops import training_flops
from seq2seq.training.machine.throughput import (
    Meter,
    measured_flops,
    memory_gib,
    peak_flops,
    reset_peak_memory,
)

CPU = torch.device("cpu")
# Shallow: counting its FLOPs takes a second
MODEL = ("mixer=transformer", *TINY, "model.encoder_layers=1", "model.decoder_layers=1")


def batch(*lengths: tuple[int, int]) -> Batch:
    sides = (Ragged.from_rows([[5] * n for n in side]) for side in zip(*lengths, strict=True))
    return collate(*sides, np.arange(len(lengths)), pad_id=0, bos_id=2)


def meter() -> Meter:
    return Meter(config(*MODEL), device=CPU, dtype=torch.float32)


def test_rates_are_those_of_the_interval():
    given, count = meter(), training_flops(config(*MODEL))
    assert count is not None
    first, second = batch((4, 6), (2, 3)), batch((8, 8))
    given.add(first)
    values = given.take(2.0)
    assert values["model_flops_per_second"] == count(2, 4, 6) / 2.0
    assert values["padding"] == pytest.approx(1 - 15 / 20)
    given.add(second)
    given.add(second)
    values = given.take(6.0)
    assert values["model_flops_per_second"] == 2 * count(1, 8, 8) / 4.0
    assert values["padding"] == 0
    assert values["mfu"] == pytest.approx(values["model_flops_per_second"] / measured_flops(CPU, torch.float32, 1))
    whole = given.report(6.0)
    assert whole["model_flops_per_second"] == round((count(2, 4, 6) + 2 * count(1, 8, 8)) / 6.0, 4)
    assert whole["padding"] == pytest.approx(1 - 47 / 52, abs=1e-4)
    assert (
        whole["peak_flops_per_second"]
        == whole["measured_flops_per_second"]
        == round(measured_flops(CPU, torch.float32, 1))
    )
    assert whole["mfu"] == whole["mfu_of_measured"]
    assert whole["memory_gib"] == pytest.approx(memory_gib(CPU), rel=0.5)


def test_a_resumed_meter_keeps_the_peak_and_counts_no_flops_without_a_model():
    given = Meter(None, device=CPU, dtype=torch.float32)
    given.load(given.state() | {"memory": 1e3})
    given.add(batch((4, 6), (2, 3)))
    assert given.report(1.0) == {
        "padding": 0.25,
        "memory_gib": 1000,
        "peak_flops_per_second": None,
        "measured_flops_per_second": None,
    }


def test_two_passes_are_twice_the_work():
    one, two = meter(), Meter(config(*MODEL), device=CPU, dtype=torch.float32, passes=2)
    for each in (one, two):
        each.add(batch((4, 6), (2, 3)))
    single, double = one.take(1.0), two.take(1.0)
    assert double["model_flops_per_second"] == pytest.approx(2 * single["model_flops_per_second"], rel=0.01)
    assert double["padding"] == single["padding"]


def test_a_resumed_meter_goes_on():
    one, first, second = meter(), meter(), meter()
    for each in (one, first):
        each.add(batch((4, 6), (2, 3)))
        each.take(1.0)
        each.add(batch((12, 3)))
    second.load(first.state())
    for each in (one, second):
        each.add(batch((6, 6)))
    expected, found = one.take(3.0), second.take(3.0)
    for key in ("model_flops_per_second", "padding"):
        assert found[key] == expected[key]
        assert second.report(3.0)[key] == one.report(3.0)[key]


def test_the_peak_is_the_devices_own(monkeypatch):
    cuda = torch.device("cuda")
    monkeypatch.setattr("lightning.fabric.accelerators.cuda._is_ampere_or_later", lambda: True)
    for name, bf16, single, tf32 in (
        ("NVIDIA H200", 989e12, 67e12, 494.5e12),
        ("NVIDIA GH200 480GB", 989e12, 67e12, 494.5e12),
        ("NVIDIA H100 NVL", 835e12, 60e12, 417.5e12),
        ("NVIDIA H100 80GB HBM3", 989.4e12, 66.9e12, 494.7e12),  # from here on by Lightning's table
        ("NVIDIA A100-SXM4-80GB", 312e12, 19.5e12, 156e12),
        ("NVIDIA L4", 121e12, 30.3e12, 60e12),
        ("A card of tomorrow", None, None, None),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=name: name)
        monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "highest")
        assert peak_flops(cuda, torch.bfloat16) == bf16, name
        assert peak_flops(cuda, torch.float32) == single, name
        monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
        assert peak_flops(cuda, torch.float32) == tf32, name


def test_a_cpu_is_measured_once_for_each_number_of_threads():
    assert measured_flops(CPU, torch.float32, 1) == measured_flops(CPU, torch.float32, 1) > 1e9


def test_both_peaks_of_a_gpu_are_reported(monkeypatch):
    """A run reports half of the data sheet's peak, which is 5/8 of the measured peak."""
    monkeypatch.setattr("seq2seq.training.machine.throughput.peak_flops", lambda *_: 1000e6)
    monkeypatch.setattr("seq2seq.training.machine.throughput.measured_flops", lambda *_: 800e6)
    given, count = meter(), training_flops(config(*MODEL))
    assert count is not None
    given.add(batch((8, 8)))
    found = given.report(count(1, 8, 8) / 500e6)
    assert (found["mfu"], found["peak_flops_per_second"]) == (0.5, 1000e6)
    assert (found["mfu_of_measured"], found["measured_flops_per_second"]) == (0.625, 800e6)


@pytest.mark.gpu
def test_a_gpu_is_measured_below_its_data_sheet():
    device = torch.device("cuda", 0)
    sheet = peak_flops(device, torch.bfloat16)
    assert sheet is not None
    assert 0.4 * sheet < measured_flops(device, torch.bfloat16, 1) < 1.02 * sheet


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forgets a peak")
def test_memory_is_not_that_of_an_earlier_run():
    # Half a GiB from the system itself: glibc may keep the memory of a tensor, as `train` sets it for its process
    with mmap.mmap(-1, 2**29) as much:
        for page in range(0, len(much), mmap.PAGESIZE):
            much[page] = 1
        before = memory_gib(CPU)
    reset_peak_memory(CPU)
    assert memory_gib(CPU) < before - 0.4
