"""Variables of the environment that torch and its libraries read when they are imported. Imports no torch."""

from __future__ import annotations

# What training sets, unless the user has: `os.environ.update(VARIABLES | os.environ)`, before torch is imported.
VARIABLES = {
    # Compiled matrix kernels that oneDNN keeps: its default, 1,024, is too few for an epoch's shapes times the layers.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "8192",
    # Large tensors in pages of 2 MiB: a step's fresh memory costs few page faults (without, 5 to 20% of its time).
    "THP_MEM_ALLOC_ENABLE": "1",
    # The profiler's library writes a line for every stage; 6 is above all its levels.
    "KINETO_LOG_LEVEL": "6",
    # Threads that wait for others sleep instead of spinning: beside other work, two spinning threads make a tenth of
    # the updates of one, since the one that has no core holds up the other (measured in docs/log.md).
    "OMP_WAIT_POLICY": "PASSIVE",
}
