"""Describe the machine, and measure its two peak rates: bandwidth of copies and rate of matrix products."""

from __future__ import annotations

from importlib import metadata

import torch
from torch.utils import collect_env

from benchmarks import harness
from benchmarks.kernels.session import Session
from benchmarks.kernels.timing import measure


def device_section(session: Session) -> None:
    """Record names, versions and sizes, then the measured bandwidth and rate of products."""
    facts = session.result["device"] = harness.machine(session.device.type)
    triton = next((found.version for found in metadata.distributions(name="triton")), "not installed")
    facts |= {"triton": triton, "kernel": session.ours}
    if session.device.type == "cuda":
        properties = torch.cuda.get_device_properties(session.device)
        facts |= {
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
            "driver": collect_env.get_nvidia_driver_version(collect_env.run),
            "multiprocessors": properties.multi_processor_count,
            "l2_mb": round(properties.L2_cache_size / 2**20, 1),
            "memory_gb": round(properties.total_memory / 2**30, 1),
        }
    # `time_way` divides by these, so this section always runs first
    facts |= {"copy_gb_s": copy_bandwidth(session) / 1e9, "matmul_bf16_tflop_s": matmul_rate(session) / 1e12}


def copy_bandwidth(session: Session) -> float:
    """Measure the bytes read and written per second by a device-to-device copy."""
    source = torch.randint(0, 256, (session.sizes.copy_bytes,), dtype=torch.uint8, device=session.device)
    target = torch.empty_like(source)
    # Each byte is read once and written once; 1e6 converts microseconds to seconds
    return 2e6 * source.numel() / measure([lambda: target.copy_(source)], session)["us"]


def matmul_rate(session: Session) -> float:
    """Measure the operations per second of a square bf16 product of random matrices."""
    size = session.sizes.matmul
    a, b = (torch.randn(size, size, device=session.device, dtype=torch.bfloat16) for _ in range(2))
    # Each term is a multiplication and an addition; 1e6 converts microseconds to seconds
    return 2e6 * size**3 / measure([lambda: a @ b], session)["us"]
