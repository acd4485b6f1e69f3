"""Ranks of a run: their numbers, how they are started, and how they agree on a decision."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence

import torch
import torch.distributed as dist

from seq2seq.system.slurm import this_job

# What ends a run: Ctrl-C and kill, and the two by which clusters announce the end of a job's time, or its preemption.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def rank() -> int:
    """Return the number of this process in the run, from 0; known before the process group exists."""
    if launcher() == "srun":
        return _first_number("SLURM_PROCID")
    # Torchrun sets RANK, also within a task of SLURM; Lightning's launcher LOCAL_RANK alone, also within a task
    return _first_number("RANK", "LOCAL_RANK", "SLURM_PROCID")


def local_rank() -> int:
    """Return the number of this process on its machine, from 0, which is also that of its device."""
    if launcher() == "srun":
        return _first_number("SLURM_LOCALID")
    return _first_number("LOCAL_RANK", "SLURM_LOCALID")


def _first_number(*names: str) -> int:
    """Return the first of these environment variables that is set, 0 if none is."""
    return next((int(value) for name in names if (value := os.environ.get(name))), 0)


def is_first_process() -> bool:
    """Return True on rank 0, the one that writes."""
    return rank() == 0


def launcher() -> str | None:
    """Return what started this process and its peers, "torchrun" or "srun"; None if it starts them itself."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return "torchrun"
    # Alone in its step a process starts the others itself. Batch scripts are in no step, and interactive shells are the
    # one task of theirs, whatever SLURM_NTASKS says of the job.
    alone = int(os.environ.get("SLURM_STEP_NUM_TASKS") or 1) == 1
    interactive = os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
    return None if alone or interactive else "srun"


def require_startable(devices: int, nodes: int, *, sweep: bool) -> None:
    """Check that as many processes will run as the settings say.

    Args:
        devices: Processes per machine.
        nodes: Machines.
        sweep: This is a job of a sweep.

    Raises:
        ValueError: torchrun or srun started another number of processes; nobody started those of other machines; or a
            job of a sweep would start processes, which repeat the command line, and so the sweep.
    """
    wanted = devices * nodes
    if by := launcher():
        started = int(os.environ["WORLD_SIZE" if by == "torchrun" else "SLURM_STEP_NUM_TASKS"])
        if started != wanted:
            raise ValueError(
                f"{by} started {started} processes, and trainer.devices={devices} "
                f"times trainer.nodes={nodes} is {wanted}: set these two to what was started, or start as many"
            )
    # With LOCAL_RANK set this is such a started process, whose parent has passed the checks.
    elif wanted > 1 and sweep and "LOCAL_RANK" not in os.environ:
        raise ValueError(
            f"trainer.devices={devices} in a sweep (-m): let the cluster start the processes "
            f"(hydra/launcher=slurm, which asks for as many tasks a node), or run the settings one by one"
        )
    elif nodes > 1:
        raise ValueError(
            f"trainer.nodes={nodes}, and neither srun nor torchrun started this process: within a job of SLURM put "
            "srun before the command, elsewhere start it by torchrun on each machine"
        )


class Agreement:
    """All-reduce of numbers by their maximum, over all ranks, on CPUs (Gloo), so that no device is synchronized."""

    def __init__(self) -> None:
        # Made on first use: torch.distributed may start after this object is built
        self._group: dist.ProcessGroup | int | None = None

    def maxima(self, numbers: Sequence[float]) -> list[float]:
        """Return the maximum of each number over all ranks, which must call this together.

        Args:
            numbers: This rank's, equally many on every rank.
        """
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return list(numbers)
        # The default group is nccl on GPUs, which cannot reduce CPU tensors
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
    job = this_job()
    if not job or signum not in (signal.SIGUSR1, signal.SIGUSR2) or not is_first_process():
        return None
    # Seconds: a controller that does not answer must not use up what is left of the job's time
    done = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise RuntimeError(f"scontrol requeue {job}: {done.stderr.strip()}; submit the same command with resume=auto")
    return job


def requeued() -> bool:
    """Return True if SLURM has put this job back into its queue and now runs its command again."""
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0) > 0
