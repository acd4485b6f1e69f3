"""Environment variables that torch and its libraries read when they are imported. Imports no torch."""

from __future__ import annotations

# Training sets these before torch is imported, unless the user has: `os.environ.update(VARIABLES | os.environ)`.
VARIABLES = {
    # Size of oneDNN's cache of matrix kernels; the default 1,024 is too small for an epoch's shapes and layers.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "8192",
    # Pages of 2 MiB for large tensors, so that a step's fresh memory costs few page faults (else 5 to 20% of it).
    "THP_MEM_ALLOC_ENABLE": "1",
    # The profiler's library logs a line for every stage; 6 is above all of its log levels.
    "KINETO_LOG_LEVEL": "6",
    # Waiting threads sleep instead of spinning. When other programs use the cores, two spinning threads make a tenth of
    # the updates of one thread, because the thread without a core holds up the other (measured in docs/log.md).
    "OMP_WAIT_POLICY": "PASSIVE",
}
