"""What a run sets on its machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Page faults of four blocks of 64 MiB, one after the other, before and after.
FAULTS = """
import resource
from seq2seq.training.hardware import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        bytearray(b"x") * (64 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults()
keep_freed_memory()
faults()  # the heap grows
print(before, faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
@pytest.mark.parametrize("chosen", [{}, {"MALLOC_TRIM_THRESHOLD_": "131072"}], ids=["kept", "as the environment says"])
def test_freed_memory_is_kept_for_later_tensors(chosen):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], env=environment | chosen, capture_output=True, text=True, check=True
    )
    before, after = map(int, done.stdout.split())
    # a page of 4 KiB or of 2 MiB
    assert before >= 4 * 32
    assert after >= 4 * 32 if chosen else after < 32
