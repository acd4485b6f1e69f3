"""Compile kernels on all processors ahead of the measurements; processes share Triton's cache on disk."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, wait
from contextlib import nullcontext

import torch

from benchmarks.kernels.convolutions import calls_of
from benchmarks.kernels.inputs import draw
from benchmarks.kernels.session import Session
from benchmarks.kernels.shapes import OPS, PASSES, Shape, timed_pairs
from benchmarks.kernels.tune import candidates, kernels
from benchmarks.kernels.ways import by_backend
from seq2seq.kernels import launch_config

Precompile = Callable[[Session], object]


def compile_ahead(session: Session) -> None:
    """Run every job once, on small inputs, in worker processes; a failing job will fail again in its section."""
    jobs, begin = jobs_ahead(session), time.perf_counter()
    # Workers get the session's settings, without the rows measured so far
    alone = dataclasses.replace(session, rows=[], result={})
    # Every worker has a CUDA context, which takes memory of the device
    workers = max(1, min(12, (os.cpu_count() or 1) - 2))
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(job, alone) for job in jobs]
        # Jobs that are not compiled by the deadline are compiled when they are measured
        wait(futures, timeout=session.deadline - time.perf_counter())
        pool.shutdown(cancel_futures=True)
    # A job that failed leaves no trace but this count: its section reports the error
    done = sum(not (one.cancelled() or one.exception()) for one in futures)
    took = time.perf_counter() - begin
    session.result["log"].append(f"compiled ahead: {done} of {len(jobs)} jobs in {took:.0f} s")


def jobs_ahead(session: Session) -> list[Precompile]:
    """List the launches that the sections will compile, once each."""
    jobs: dict[object, Precompile] = {}
    sizes = session.sizes
    if "timings" in session.sections:
        for op, shape in timed_pairs(sizes.shapes):
            # A backward call compiles the forward kernel as well
            jobs[op, shape] = functools.partial(compile_call, op, "backward", shape, None, "")
    if "tune" in session.sections:
        for shape, op, direction in itertools.product(sizes.tuned, OPS, PASSES):
            for kernel in kernels(op, direction, shape, sizes):
                for settings in candidates(kernel.default, kernel.sizes):
                    # K and the chunk are not constants of the kernel; these two values, which follow from K, are
                    reach = (launch_config.backs(shape.taps, settings.tile), launch_config.columns(shape.taps))
                    key = (kernel.name, settings._replace(chunk=1), reach)
                    jobs[key] = functools.partial(compile_call, op, direction, shape, settings, kernel.name)
    return list(jobs.values())


def compile_call(
    op: str, direction: str, shape: Shape, settings: launch_config.Config | None, name: str, session: Session
) -> None:
    """Launch once on one sentence, which compiles the same code as many sentences; backward runs forward first.

    Args:
        name: Name of the settings for `launch_config.override`, or "".
    """
    # One sentence is enough, since the batch size is not a constant of the kernel
    shape = shape._replace(batch=1)
    prepared = by_backend(session.ours, op, draw(op, shape, torch.bfloat16, session.device), shape)
    calls = calls_of(direction, [prepared])
    with launch_config.override(name, settings) if settings else nullcontext():
        calls[0]()
