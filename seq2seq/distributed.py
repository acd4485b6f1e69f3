"""Ranks of a run: their numbers, how they are started, and how they agree on a decision."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence

import torch
import torch.distributed as dist


def rank() -> int:
    """Return the number of this process in the run, from 0; known before the process group exists."""
    # torchrun sets RANK, srun SLURM_PROCID, Lightning's launcher LOCAL_RANK alone
    return _first_number("RANK", "SLURM_PROCID", "LOCAL_RANK")


def local_rank() -> int:
    """Return the number of this process on its machine, from 0, which is also that of its device."""
    return _first_number("LOCAL_RANK", "SLURM_LOCALID")


def _first_number(*names: str) -> int:
    """Return the first of these environment variables that is not 0: in a process started by another, one may be 0."""
    return next((number for name in names if (number := int(os.environ.get(name) or 0))), 0)


def is_first_process() -> bool:
    """Return True on rank 0, the one that writes."""
    return rank() == 0


def started_outside() -> bool:
    """Return True if torchrun or srun started this process and its peers, so that none is to be started from here."""
    # SLURM_NTASKS is 1 also in a job whose one task starts the ranks itself
    return "TORCHELASTIC_RUN_ID" in os.environ or int(os.environ.get("SLURM_NTASKS", "1")) > 1


def require_startable(devices: int, *, sweep: bool) -> None:
    """Raise ValueError if a job of a sweep would start processes: they repeat the command line, and so the sweep."""
    # with LOCAL_RANK set this is such a started process, whose parent has passed the check
    if devices > 1 and sweep and not started_outside() and "LOCAL_RANK" not in os.environ:
        raise ValueError(
            f"trainer.devices={devices} in a sweep (-m): let the cluster start the processes "
            f"(hydra/launcher=slurm, which asks for as many tasks a node), or run the settings one by one"
        )


class Agreement:
    """Maximum of each number over all ranks, by messages between CPUs, for which no device has to wait."""

    def __init__(self) -> None:
        # made on first use: torch.distributed may start after this object is built
        self._group: dist.ProcessGroup | int | None = None

    def of(self, numbers: Sequence[float]) -> list[float]:
        """Return the maximum of each number over all ranks, which must call this together.

        Args:
            numbers: This rank's, equally many on every rank.
        """
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return list(numbers)
        # the default group is nccl on GPUs, which cannot reduce CPU tensors
        if self._group is None:
            self._group = dist.new_group(backend="gloo")
        # float64 holds counters exactly up to 2^53
        together = torch.tensor(numbers, dtype=torch.float64)  # (len(numbers),)
        dist.all_reduce(together, op=dist.ReduceOp.MAX, group=self._group)
        return together.tolist()


def requeue(signum: int) -> str | None:
    """Ask SLURM to run this job again after a signal that announces its end.

    Only rank 0 asks, and only after SIGUSR1 or SIGUSR2, with which SLURM announces the end of a job's time or its
    preemption.

    Returns:
        The number of the job, None if it was not asked for.

    Raises:
        RuntimeError: SLURM refuses.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None or signum not in (signal.SIGUSR1, signal.SIGUSR2) or not is_first_process():
        return None
    # seconds: a controller that does not answer must not use up what is left of the job's time
    done = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise RuntimeError(f"scontrol requeue {job}: {done.stderr.strip()}; submit the same command with resume=auto")
    return job
