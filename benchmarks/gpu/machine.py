"""Describe the machine: device, versions, cores, and the packages that are missing."""

from __future__ import annotations

import os
from importlib import metadata
from typing import TYPE_CHECKING

import torch

from benchmarks import harness
from benchmarks.gpu import pack

if TYPE_CHECKING:
    from benchmarks.gpu.part import PartJob

# Packages that later parts use if they are installed.
PACKAGES = (
    *("triton", "numpy", "lightning", "sentencepiece", "sacrebleu", "pytest", "pytest-xdist", "hypothesis"),
    *pack.PACKAGES,
)


def run(job: PartJob) -> None:
    """Save the description."""
    facts = harness.machine(job.device)
    if job.on_gpu:
        properties = torch.cuda.get_device_properties(0)
        facts |= {"memory_gib": round(properties.total_memory / 2**30, 1), "cuda": torch.version.cuda}
        facts |= {"capability": f"{properties.major}.{properties.minor}"}
    versions = {name: version_of(name) for name in PACKAGES}
    job.save(**facts, cores=os.cpu_count(), packages=versions)


def version_of(package: str) -> str | None:
    """Return the version of an installed package, None if it is missing."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def wait(device: torch.device) -> None:
    """Wait until a GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
