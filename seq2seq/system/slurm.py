"""Read from the environment which SLURM job this process belongs to."""

from __future__ import annotations

import os


def this_job() -> str:
    """Return the number of this process's SLURM job, `7`, or `7_2` in an array; "" outside SLURM."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    task = os.environ.get("SLURM_ARRAY_TASK_ID")
    # In a task of an array, SLURM_JOB_ID is another number, which `squeue --array` does not print; in the last task, it
    # is the number of the whole array
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID", "")


def launched_by_slurm() -> bool:
    """Return True in a job that submitit gave to SLURM; False in other processes, also inside an allocation."""
    return os.environ.get("SUBMITIT_EXECUTOR") == "slurm"


def requeued() -> bool:
    """Return True if SLURM has requeued this job and now runs its command again."""
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0) > 0
