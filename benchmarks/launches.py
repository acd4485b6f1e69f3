"""Count launches, casts and waits of the host in a training step and in a decoding step, without a GPU.

    python -m benchmarks.launches
    python -m benchmarks.launches --only transformer --rows 8 --out benchmarks/results/launches
    python -m benchmarks.launches --fused      # with the kernels that are off by default

The code runs on a CPU with tensors that claim to be on a GPU, so that it takes a GPU's branches. A launch is an
operation that computes, copies or fills (not a view or an allocation), or a Triton kernel. A wait makes the host wait
for the GPU, or copies from the host without pinned memory: reading a number, an index that is a list or a mask, a
tensor made of numbers. A cast is a launch that copies between types. The optimizer's fused update is one launch here
and a few on a GPU. Models have the depth and heads of model=base and are narrow, since widths do not change the
counts. Training is under autocast to bf16 with the CPU's list of operations, decoding in float32.

Host ms are the CPU time of a training step whose Triton kernels do nothing: Python, autograd and torch's dispatch,
including the cost of the pretense and without the driver's launches. They compare two versions on one machine.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any
from unittest import mock

# Set before torch imports Triton, since there is no GPU to compile for
if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode,
)
from triton.runtime.interpreter import GridExecutor

from benchmarks import harness
from seq2seq.data.batching import Batch
from seq2seq.kernels.fused import fused
from seq2seq.network.build import build_model
from seq2seq.search import Selection, Specials, search
from seq2seq.settings.compose import resolved_settings
from seq2seq.settings.optim import OptimSettings
from seq2seq.settings.search import SearchSettings
from seq2seq.settings.trainer import TrainerSettings
from seq2seq.training.lightning_parts.task import TranslationTask
from seq2seq.training.make_trainer import prepare_for_training

VOCABULARY, PAD, BOS, EOS = 200, 0, 2, 3
NARROW = ("model=base", "model.dim=32", "model.ffn_dim=32")
CASES = {
    "transformer": ("mixer=transformer",),
    "transformer, learned positions": ("mixer=transformer", "model.positions=learned"),
    "lightconv": ("mixer=lightconv",),
    "dynamicconv": ("mixer=dynamicconv",),
    "bahdanau": ("mixer=bahdanau",),
}
_INTERPRET = GridExecutor.__call__
GPU, CPU = torch.device("cuda", 0), torch.device("cpu")

# Functions of torch that read a tensor on the host.
_READS = {"item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__", "__array__"}
# Operations whose result has a size that only the device knows.
_SIZED_BY_VALUES = {"nonzero", "masked_select", "_unique2", "unique_dim"}
_NO_LAUNCHES = {
    *("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "_unsafe_view", "device"),
    *("_local_scalar_dense", "_record_function_enter_new", "_record_function_exit"),
}


class Trace(TorchFunctionMode):
    """Counter of launches, casts and waits; `waits` counts them by line of our code.

    Args:
        pretend: Whether tensors claim to be on a GPU.
        count: Whether operations are counted.
    """

    def __init__(self, *, pretend: bool = True, count: bool = True) -> None:
        super().__init__()
        self.pretend = pretend
        self.casts = 0
        self.launches: collections.Counter[str] = collections.Counter()
        self.waits: collections.Counter[str] = collections.Counter()
        self._operations = _Operations(self) if count else contextlib.nullcontext()

    def __enter__(self) -> Trace:
        """Begin to count."""
        self._operations.__enter__()
        return super().__enter__()

    def __exit__(self, *given: Any) -> None:
        """End counting."""
        super().__exit__(*given)
        self._operations.__exit__(*given)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count a call of torch, and answer for a GPU."""
        kwargs = kwargs or {}
        # Getters of properties arrive here as functions, too
        name = getattr(func, "__name__", "")
        getter = name == "__get__"
        name = func.__self__.__name__ if getter else name
        if self.pretend and getter and name in ("device", "is_cuda"):
            return GPU if name == "device" else True
        if _waits(name, args, kwargs):
            self.waits[_place(name)] += 1
        if self.pretend:
            args, kwargs = _on_cpu(args), _on_cpu(kwargs)
        return func(*args, **kwargs)


class _Operations(TorchDispatchMode):
    """Counter of operations, beneath all functions of torch."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count an operation."""
        name = func.name().split("::")[1].split(".")[0]
        masks = name == "index" and any(part is not None and part.dtype == torch.bool for part in args[1])
        if name in _SIZED_BY_VALUES or masks:
            self.trace.waits[_place(name)] += 1
        if name not in _NO_LAUNCHES and not _is_view(func):
            self.trace.launches[name] += 1
        self.trace.casts += _is_cast(name, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def _is_cast(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return True for a copy into another type."""
    if name == "_to_copy":
        return kwargs.get("dtype") not in (None, args[0].dtype)
    if name == "_foreach_copy_":
        return args[0][0].dtype != args[1][0].dtype
    return name == "copy_" and args[0].dtype != args[1].dtype


def _waits(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if name in _READS:
        return True
    if name in ("__getitem__", "__setitem__"):
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return any(isinstance(part, list) for part in index)
    # These copy numbers from the host
    return name == "new_tensor" or (name in ("tensor", "as_tensor") and kwargs.get("device") is not None)


def _on_cpu(value: Any) -> Any:
    """Replace the GPU by the CPU among arguments."""
    if isinstance(value, torch.device):
        return CPU if value.type == "cuda" else value
    if type(value) in (tuple, list):
        return type(value)(map(_on_cpu, value))
    return {key: _on_cpu(part) for key, part in value.items()} if type(value) is dict else value


def _is_view(func: Any) -> bool:
    """Return True for an operation whose results share the memory of its arguments, and that writes nothing."""
    aliases = [part.alias_info for part in func._schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


def _place(name: str) -> str:
    """Name the innermost line of our code in the stack."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if f"{os.sep}seq2seq{os.sep}" in file and f"{os.sep}benchmarks{os.sep}" not in file:
            return f"{os.path.basename(file)}:{frame.f_lineno} {name}"
        frame = frame.f_back
    return f"elsewhere {name}"


def _count(kernel: Any, *given: Any, **constants: Any) -> None:
    """Count a Triton launch."""
    mode = _get_current_dispatch_mode()
    if isinstance(mode, _Operations):
        mode.trace.launches[kernel.fn.__name__] += 1


def _interpret(kernel: Any, *given: Any, **constants: Any) -> None:
    """Count a Triton launch, and compute it; the interpreter's operations are not counted."""
    _count(kernel)
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        _INTERPRET(kernel, *given, **constants)


@contextlib.contextmanager
def pretended_gpu(launch: Callable[..., None] = _interpret) -> Iterator[None]:
    """Answer queries to the driver like a GPU that Triton supports, and let `launch` take Triton's launches."""
    with contextlib.ExitStack() as stack:
        for target, value in (
            ("seq2seq.kernels.dispatch.gpu_obstacle", lambda device: None),
            ("seq2seq.kernels.launch_config._capability", lambda device: 90),
            ("seq2seq.training.lightning_parts.task.seed_generator", lambda seed, device: None),
            ("triton.runtime.interpreter.GridExecutor.__call__", launch),
            # Without flash attention, a GPU has another fused kernel, but a CPU takes a dozen operations
            ("torch.backends.cuda.enable_flash_sdp", lambda enabled: None),
            # The CPU's autocast stands in for the GPU's
            ("torch.autocast", functools.partial(_of_cpu, torch.autocast)),
            ("torch.is_autocast_enabled", functools.partial(_of_cpu, torch.is_autocast_enabled)),
            ("torch.get_autocast_dtype", functools.partial(_of_cpu, torch.get_autocast_dtype)),
        ):
            stack.enter_context(mock.patch(target, value))
        yield


def _of_cpu(real: Any, device_type: str = "cpu", *args: Any, **kwargs: Any) -> Any:
    return real("cpu", *args, **kwargs)


def make_model(overrides: tuple[str, ...]) -> Any:
    """Build a narrow model of six and six layers."""
    settings = resolved_settings((*overrides, *NARROW))
    sizes = {"src_vocab_size": VOCABULARY, "tgt_vocab_size": VOCABULARY, "pad_id": PAD, "joint": True}
    torch.manual_seed(0)
    return build_model({"model": settings["model"], "mixer": settings["mixer"], **sizes})


def make_batch(rows: int, length: int) -> Batch:
    """Draw pairs of up to `length` tokens; the first pair is the longest."""
    lengths = torch.randint(length // 2, length, (rows,))
    lengths[0] = length
    mask = torch.arange(length) < lengths[:, None]  # (B, T)
    ids = torch.randint(4, VOCABULARY, (rows, length)).masked_fill(~mask, PAD)
    return Batch(ids, mask, ids, ids, mask.clone(), torch.arange(rows))


def training_step(model: Any, batch: Batch, optimizer: str = "adam", *, bf16: bool = False) -> Callable[[], None]:
    """Return a whole update by the task of `seq2seq.train`: loss, gradients, clipping, optimizer, schedule.

    Args:
        bf16: Compute the loss under autocast to bf16.
    """
    optim = OptimSettings(name=optimizer)
    prepare_for_training(model, TrainerSettings(max_steps=1))
    task = TranslationTask(
        model=model.train(), tokenizer=None, description={}, optim=optim, search=SearchSettings(), seed=1  # type: ignore[arg-type]
    )  # fmt: skip
    task.trainer = SimpleNamespace(  # type: ignore[assignment]
        accumulate_grad_batches=1, world_size=1, global_rank=0, global_step=0, estimated_stepping_batches=10
    )
    made = task.configure_optimizers()
    updates, scheduler = made["optimizer"], made["lr_scheduler"]["scheduler"]

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
            loss = task.training_step(batch, 0)
        # Function modes are off inside Tensor.backward
        torch.autograd.backward([loss])
        task.on_before_optimizer_step(updates)
        updates.step()
        updates.zero_grad(set_to_none=True)
        task.lr_scheduler_step(scheduler, None)

    return step


def of_training(
    overrides: tuple[str, ...], rows: int = 4, length: int = 12, optimizer: str = "adam", *, bf16: bool = False
) -> Trace:
    """Trace a training step, after a first step that allocates memory; Triton's kernels do nothing."""
    step, trace = training_step(make_model(overrides), make_batch(rows, length), optimizer, bf16=bf16), Trace()
    # Interpreting them takes most of a test's time, and no branch depends on their results
    with pretended_gpu(_count):
        with Trace():
            step()
        with trace:
            step()
    return trace


def host_ms(
    overrides: tuple[str, ...], rows: int = 4, length: int = 12, optimizer: str = "adam", *, repeat: int = 3
) -> float:
    """Return the median CPU milliseconds of a training step under autocast whose Triton kernels do nothing."""
    step = training_step(make_model(overrides), make_batch(rows, length), optimizer, bf16=True)
    with pretended_gpu(_count), Trace(count=False):
        return 1e3 * harness.median_seconds(step, repeat=repeat, clock=time.process_time)


def of_decoding(
    overrides: tuple[str, ...],
    rows: int = 4,
    length: int = 12,
    *,
    byte_of: Mapping[int, int] | None = None,
    selection: Selection | None = None,
    **how: Any,
) -> dict[str, Any]:
    """Trace a beam search of five; return the mean launches and waits of its later steps.

    Args:
        byte_of: Bytes by the id of their piece.
        selection: Chooses the next hypotheses instead of a beam search, such as `Drawn`.
        how: Further settings of the search.
    """
    model, batch, traces = make_model(overrides).eval(), make_batch(rows, length), []
    special = Specials(BOS, EOS, PAD, byte_of or {})
    # Two searches that differ only in the number of steps, after a first one that allocates memory
    limits = (1, 4, 12)
    for most in limits:
        settings = SearchSettings(**{"beam_size": 5, "n_best": 5, "max_len_ratio": 0, "max_len_extra": most} | how)
        trace = Trace()
        with pretended_gpu(), trace:
            search(
                *(model, batch.src, batch.src_mask),
                special=special,
                settings=settings,
                selection=selection,
            )
        traces.append(trace)
    steps = limits[2] - limits[1]
    counts = [[sum(trace.launches.values()), sum(trace.waits.values())] for trace in traces[1:]]
    launches, waits = ((long - short) / steps for short, long in zip(*counts, strict=True))
    return {"launches": round(launches, 1), "waits": round(waits, 1), "at": dict(traces[2].waits)}


def main() -> int:
    """Print the table; with --out also write launches.json."""
    parser = harness.parser_for("launches", __doc__)
    parser.add_argument("--only", choices=CASES, help="this model alone")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--length", type=int, default=12)
    parser.add_argument("--fused", action="store_true", help="with the training kernels that are off by default")
    parser.add_argument("--optimizer", choices=("adam", "muon"), default="adam", help="of the training step (adam)")
    parser.add_argument("--repeat", type=int, default=3, help="steps whose median of CPU time is taken (3)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    print("| model | training step: launches | casts | waits | host ms | decoding step, beam 5: launches | waits |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name in [options.only] if options.only else CASES:
        given = (CASES[name], options.rows, options.length, options.optimizer)
        with fused(options.fused):
            trained = of_training(*given, bf16=True)
            host = host_ms(*given, repeat=options.repeat)
        decoded = of_decoding(CASES[name], options.rows, options.length)
        launches, waits = sum(trained.launches.values()), sum(trained.waits.values())
        training = {"launches": launches, "casts": trained.casts, "waits": waits, "at": dict(trained.waits)}
        training["host ms"] = round(host, 1)
        results[name] = {"training": training, "decoding": decoded}
        cells = [
            f"{launches:,}",
            trained.casts,
            waits,
            training["host ms"],
            f"{decoded['launches']:,}",
            decoded["waits"],
        ]
        print(f"| {name} | {' | '.join(map(str, cells))} |", flush=True)
    for name, result in results.items():
        for part, found in result.items():
            if found["at"]:
                print(f"waits of {name}, {part}: {', '.join(f'{place} ({n})' for place, n in found['at'].items())}")
    harness.write(options.out, "launches", {"machine": harness.machine(), "results": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
