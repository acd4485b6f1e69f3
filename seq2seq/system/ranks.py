"""Ranks of a run: their numbers, their launcher, and their agreement on a decision."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence

import torch
import torch.distributed as dist

from seq2seq.system.slurm import this_job

# Signals that end a run: Ctrl-C, kill, and the two by which clusters announce a time limit or preemption.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def rank() -> int:
    """Return the rank of this process in the run, which is known before the process group exists."""
    if launcher() == "srun":
        return _first_number("SLURM_PROCID")
    # Torchrun sets RANK and Lightning's launcher LOCAL_RANK, also within a task of SLURM
    return _first_number("RANK", "LOCAL_RANK", "SLURM_PROCID")


def local_rank() -> int:
    """Return the rank of this process on its machine, which is also the index of its device."""
    if launcher() == "srun":
        return _first_number("SLURM_LOCALID")
    return _first_number("LOCAL_RANK", "SLURM_LOCALID")


def _first_number(*names: str) -> int:
    """Return the value of the first of these environment variables that is set, else 0."""
    return next((int(value) for name in names if (value := os.environ.get(name))), 0)


def is_first_process() -> bool:
    """Return True on rank 0, which writes files."""
    return rank() == 0


def launcher() -> str | None:
    """Return the launcher of all ranks, "torchrun" or "srun"; None if this process starts the others."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return "torchrun"
    # A process that is alone in its step starts the others. Batch scripts have no step, and an interactive shell is the
    # only task of its step, whatever SLURM_NTASKS is.
    alone = int(os.environ.get("SLURM_STEP_NUM_TASKS") or 1) == 1
    interactive = os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
    return None if alone or interactive else "srun"


def require_startable(devices: int, nodes: int, *, sweep: bool) -> None:
    """Check that the number of started processes agrees with the settings.

    Args:
        devices: Processes per machine.
        nodes: Machines.
        sweep: This is a job of a sweep.

    Raises:
        ValueError: torchrun or srun started another number of processes; no launcher started the processes of other
            machines; or a job of a sweep would start processes, which would repeat the sweep.
    """
    wanted = devices * nodes
    if by := launcher():
        started = int(os.environ["WORLD_SIZE" if by == "torchrun" else "SLURM_STEP_NUM_TASKS"])
        if started != wanted:
            raise ValueError(
                f"{by} started {started} processes, and trainer.devices={devices} "
                f"times trainer.nodes={nodes} is {wanted}: make both numbers equal"
            )
    # LOCAL_RANK is set in a process whose parent has passed this check.
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
    """Maximum of numbers over all ranks, computed by Gloo on the CPU, which does not wait for a GPU."""

    def __init__(self) -> None:
        # Made on first use: torch.distributed may start after this object is built
        self._group: dist.ProcessGroup | int | None = None

    def maxima(self, numbers: Sequence[float]) -> list[float]:
        """Return the maximum of each number over all ranks; every rank must call this.

        Args:
            numbers: The numbers of this rank; all ranks have the same count.
        """
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return list(numbers)
        # The default group, NCCL on GPUs, cannot reduce CPU tensors
        if self._group is None:
            self._group = dist.new_group(backend="gloo")
        # float64 holds counters exactly up to 2^53
        together = torch.tensor(numbers, dtype=torch.float64)  # (len(numbers),)
        dist.all_reduce(together, op=dist.ReduceOp.MAX, group=self._group)
        return together.tolist()


def requeue(signum: int) -> str | None:
    """Ask SLURM to run this job again after a signal that announces its end.

    Only rank 0 asks, and only after SIGUSR1 or SIGUSR2, by which SLURM announces a time limit or preemption.

    Returns:
        The number of the job, or None if this process did not ask.

    Raises:
        RuntimeError: SLURM refuses, does not answer, or is not installed here.
    """
    job = this_job()
    if not job or signum not in (signal.SIGUSR1, signal.SIGUSR2) or not is_first_process():
        return None
    # A controller that does not answer must not use up the rest of the job's time
    try:
        subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        reason = str(getattr(error, "stderr", None) or error).strip()
        raise RuntimeError(f"scontrol requeue {job}: {reason}; submit the same command with resume=auto") from None
    return job
