"""Compile the Triton kernels ahead of time, without a GPU: registers, shared memory, spills, instructions.

    python -m benchmarks.aot [--out DIR] [--arch 80 90 100] [--jobs N] [--gate] [--match REGEX]

Prints a table, writes DIR/aot.json, and exits with 1 if a kernel does not compile or is over a limit (see LIMITS).
Compiled are the launches of backend="auto": constants and launch settings are the kernels' own, requested for every K
from 1 to 64, and compiled once where several K share them. --match keeps the configurations whose name matches, as the
JSON file spells it. --gate is what a change must pass, under each of two compilers (`make aot`), in a few minutes: on
sm_90 bfloat16 with heads of 64 channels, with ends alone and with everything switched on, and everything for the least
and the most demanding other types and heads; on other architectures only K = 3, 31 and 64 with everything on.

Covered, for each architecture:
- bfloat16 with heads of 64 channels: every combination of K, DropConnect (off, on), GLU (off, on), softmax of a
  decoding step (off, on), and ends of sentences (off, on).
- bfloat16 and float32 with heads of 16, 32, 64, 80, 128 and 256 channels, and float16, which differs from bfloat16 by
  a few instructions, with 64: K = 3, 31 and 64 with everything switched on.
- The loss, for rows of 16, 64 and 128 KB of logits.
- Sublayers' norms of 512 and 1,024 channels, and of the most channels: post-norm with dropout, and the two of pre-norm.
- Attention of short rows, for tiles of 16, 32 and 64 queries and keys: causal, with a mask, and with everything.
- The kernels for sentences of one tile (dynamicconv_tile_32 and the like) likewise.
- Pointers and strides of x and dy are multiples of 16, as in a model whose width is one. Where they are not
  ("unaligned"), and for one head or a beam of 1 ("ones"), Triton compiles anew: likewise, for the first item alone.
Strides of 2^31 or more and logits or weights of another type than x (float32 for LightConv's weights) are left out.
"""

from __future__ import annotations

import importlib
import itertools
import multiprocessing
import os
import re
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

from benchmarks import harness


class ArchLimits(NamedTuple):
    """Resources of an architecture per thread, per block, and per multiprocessor."""

    registers: int  # of a thread; ptxas spills to stay within it
    shared: int  # bytes of a block
    all_shared: int  # bytes of a multiprocessor; a block takes 1 KB more than its request
    warps: int  # of a multiprocessor


# By compute capability: 8.0 A100, 9.0 H100, 10.0 B200, 12.0 RTX 50 series.
KB = 1024
LIMITS = {
    80: ArchLimits(registers=255, shared=99 * KB, all_shared=164 * KB, warps=64),  # a block has 163 KB, 99 on 8.6
    90: ArchLimits(registers=255, shared=227 * KB, all_shared=228 * KB, warps=64),
    100: ArchLimits(registers=255, shared=227 * KB, all_shared=228 * KB, warps=64),
    120: ArchLimits(registers=255, shared=99 * KB, all_shared=100 * KB, warps=48),
}
REGISTERS = 65536  # of a multiprocessor, in four equal parts
# Limits by name; the first pattern that matches counts. FEWEST_WARPS: warps that must fit on a multiprocessor at once,
# so that some work while others wait for memory; 8 allow 255 registers a thread, 12 allow 168, 16 allow 128, 32 allow
# 64. Spills: the instructions that may read or write local memory. Unaligned input is rare and may be slow, and so may
# the gradients of attention in float32 or with grouped key heads.
FEWEST_WARPS = {
    "unaligned": 8,
    "conv_step|keep_words|cross_entropy|residual_norm": 16,
    r"dynamicconv .* K 33-64 head": 8,  # with a tile of 64: by estimate as fast as 12 with a tile of 32
    r"conv (bf16|fp16) .* head (16|32|64)\b": 12,  # forward
    "": 8,
}
MOST_SPILLS = {
    "unaligned": 200,
    "attention_backward (fp32|bf16 .* head 128, rows of 64, groups)": 16,
    # 6 by Triton 3.6.0
    "lightconv_backward fp32 K 50-64|dynamicconv_backward bf16 K 18-32 head 16, 1 word": 8,
    "": 0,
}
DTYPE, HEAD_DIM = "bf16", 64  # compiled with all options
HEAD_DIMS = {"bf16": (16, 32, 64, 80, 128, 256), "fp16": (64,), "fp32": (16, 32, 64, 80, 128, 256)}
# Strides that Triton specializes on when they are multiples of 16.
ALIGNED = (
    *("x_batch", "x_row", "dy_batch", "dy_row", "value_batch", "value_head", "value_slot", "value_row"),
    *("row_stride", "vocab"),
    *(f"{name}_{axis}" for name in ("q", "k", "v", "dq", "dk", "dy") for axis in ("batch", "head", "row")),
)
# Arguments that Triton turns into constants when they are 1.
ONES = ("heads", "beam")
OTHER_TAPS = (3, 31, 64)  # for other types and heads
GATED_HEADS = (16, 64, 256)
# Specializations of a launch; the module's docstring explains them.
FORMS = ("", "unaligned", "ones")


class Compilation(NamedTuple):
    """One compilation: a kernel with its constants, num_warps and num_stages among them."""

    arch: int
    module: str
    kernel: str
    op: str
    dtype: str
    head_dim: int
    taps: tuple[int, int]  # the least and the greatest K that launch it
    group: str
    bounds: str
    form: str
    constants: tuple[tuple[str, Any], ...]

    @property
    def name(self) -> str:
        """Description in one line, which --match searches."""
        taps = "-".join(map(str, sorted(set(self.taps))))
        parts = (f"sm_{self.arch}", self.op, self.dtype, f"K {taps}", f"head {self.head_dim}")
        return ", ".join(part for part in (" ".join(parts), self.group, self.bounds, self.form) if part)


class Resources(NamedTuple):
    """Resources that a compiled kernel needs; spills are the instructions that read and write local memory."""

    registers: int = 0
    shared: int = 0
    stack: int = 0
    spills: int = 0
    instructions: int = 0
    warps: int = 0  # warps that fit on a multiprocessor


class Found(NamedTuple):
    """Resources that a job needs, or the error that it ended with."""

    job: Compilation
    resources: Resources = Resources()
    seconds: float = 0.0
    error: str = ""


# The list of compilations


def jobs(archs: Sequence[int], *, gate: bool = False) -> list[Compilation]:
    """List the compilations that the module's docstring names, the slowest first."""
    found: dict[Any, Compilation] = {}
    sizes = [(dtype, head_dim) for dtype, sizes in HEAD_DIMS.items() for head_dim in sizes]
    # In descending order of K: `found` keeps the greatest K of each kernel and replaces the least
    for arch, (dtype, head_dim), taps in itertools.product(archs, sizes, range(64, 0, -1)):
        for job in _launches(arch, taps, dtype, head_dim):
            # All K that share a kernel and its constants are one compilation
            key = (arch, job.op, dtype, job.form, job.bounds, job.constants)
            found[key] = found.setdefault(key, job)._replace(taps=(taps, found[key].taps[1]))
    listed = [job for job in found.values() if _is_wanted(job) and (not gate or _is_gated(job))]
    # One kernel draws DropConnect's words for all K
    for arch in archs:
        listed.append(
            Compilation(arch, "dropconnect", "keep_words_kernel", "keep_words", "i32", 1, (1, 64), "", "", "", ())
        )
        listed += _losses(arch)
        every = not gate or arch == 90
        listed += [job for job in _norms(arch) if every or job.group.startswith("post, D 512")]
        listed += [job for job in _attentions(arch) if every or (job.dtype, job.head_dim) == (DTYPE, HEAD_DIM)]
    return sorted(listed, key=_cost, reverse=True)


def _launches(arch: int, taps: int, dtype: str, head_dim: int) -> Iterator[Compilation]:
    """Yield every launch with these taps, with all combinations of the options."""
    import torch

    from seq2seq.kernels.launch_config import one_tile

    types = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    # Keep words of 32 taps each
    words = -(-taps // 32)
    groups = {
        "dynamicconv": [("", {"words": 0}), (f"{words} word{'s' * (words > 1)}", {"words": words})],
        "lightconv": [("", {"glu": False}), ("GLU", {"glu": True})],
    }
    for name, direction, ends in itertools.product(groups, ("forward", "backward"), (False, True)):
        op, module = f"{name}{'_backward' * (direction == 'backward')}", kernel_module(name)
        for group, more in groups[name]:
            direct, values = module.constants(op, taps, head_dim, types[dtype], arch=arch, **more, ends=ends)
            kernel, constants = f"{'direct' if direct else 'band'}_{direction}", tuple(values.items())
            rest = ((taps, taps), group, "ends" * ends)
            for form in FORMS:
                yield Compilation(arch, name, kernel, op, dtype, head_dim, *rest, form, constants)
            # Kernels for sentences of one tile, for each of its sizes
            for tile in (16, 32, 64):
                if one_tile(op, taps, tile, head_dim, types[dtype]):
                    given = {**more, "ends": ends, "arch": arch}
                    values = module.one_tile_constants(op, tile, taps, head_dim, types[dtype], **given)
                    kernel, constants = f"one_tile_{direction}", tuple(values.items())
                    label = op.replace(name, f"{name}_tile_{tile}")
                    yield Compilation(arch, name, kernel, label, dtype, head_dim, *rest, "", constants)
    for softmax, form in itertools.product((False, True), FORMS):
        constants = tuple(kernel_module("conv_step").constants(taps, head_dim, softmax).items())
        group = "softmax" if softmax else ""
        same = (taps, taps)
        yield Compilation(
            arch, "conv_step", "conv_step_kernel", "conv_step", dtype, head_dim, same, group, "", form, constants
        )


def _losses(arch: int) -> Iterator[Compilation]:
    """Yield the launches of the loss for rows of 16, 64 and 128 KB; K and head size have no meaning."""
    import torch

    types = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    for dtype, row in itertools.product(types, (16, 64, 128)):
        for gradient, form in ((True, ""), (False, ""), (True, "unaligned"))[: 3 if dtype == DTYPE else 1]:
            values = kernel_module("cross_entropy").constants(row * KB // types[dtype].itemsize, types[dtype], gradient)
            group = f"rows of {row} KB{', gradient' * gradient}"
            given = ("cross_entropy", "cross_entropy_kernel", "cross_entropy", dtype, 1, (1, 64), group, "", form)
            yield Compilation(arch, *given, tuple(values.items()))


def _norms(arch: int) -> Iterator[Compilation]:
    """Yield the launches around sublayers, with dropout; the residual stream is in the sublayer's type or float32."""
    from seq2seq.kernels.residual_norm import MAX_WIDTH

    module = kernel_module("residual_norm")
    absent = {
        "post": ("ds",),
        "pre": ("y", "dy", "seed"),
        "sum": ("weight", "bias", "out", "stats", "dout", "partial"),
    }
    types = (("bf16", "bf16"), ("fp32", "bf16"), ("fp32", "fp32"))
    for direction, way, (stream, y) in itertools.product(("forward", "backward"), absent, types):
        if way == "pre" and stream != y:
            continue
        kernel, op = f"residual_norm_{direction}", f"residual_norm{'_backward' * (direction == 'backward')}"
        names = getattr(module, kernel).arg_names
        for width in (512, 1024, MAX_WIDTH):
            values = {name: None for name in absent[way] if name in names} | module.constants(direction, width)
            about = f"{way}, D {width}, y {y}"
            yield Compilation(
                arch, "residual_norm", kernel, op, stream, 1, (1, 64), about, "", "", tuple(values.items())
            )


def _attentions(arch: int) -> Iterator[Compilation]:
    """Yield the launches of attention whose queries and keys fill one tile; K has no meaning."""
    import torch

    from seq2seq.kernels.launch_config import attention_warps

    types = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    options = ("causal", "masked", "biased", "drop")
    everything, groups = "mask, bias and dropout", "groups of 4, dropout"
    flags = {"causal": (1, 0, 0, 0), "mask": (0, 1, 0, 0), everything: (1, 1, 1, 1), groups: (1, 1, 0, 1)}
    sizes = [(dtype, tile, head) for dtype in (DTYPE, "fp32") for tile in (16, 32, 64) for head in (16, 64, 128)]
    sizes += [("fp16", tile, 64) for tile in (32, 64)]
    # Sizes that are left to torch have no warps
    sizes = [size for size in sizes if attention_warps(size[1], size[1], size[2], types[size[0]], backward=True)]
    for (dtype, tile, head), direction in itertools.product(sizes, ("forward", "backward")):
        op = f"attention{'_backward' * (direction == 'backward')}"
        for group in flags if (dtype, head) == (DTYPE, 64) else (everything, groups):
            given: dict[str, Any] = {name: bool(flag) for name, flag in zip(options, flags[group], strict=True)}
            given |= {"group": 4 if group == groups else 1, "backward": direction == "backward"}
            values = kernel_module("attention").constants(tile, tile, head, types[dtype], **given)
            forms = FORMS if (dtype, tile, head, group) == (DTYPE, 32, 64, everything) else ("",)
            for form in forms:
                named = ("attention", f"one_tile_{direction}", op, dtype, head, (1, 64), f"rows of {tile}, {group}", "")
                yield Compilation(arch, *named, form, tuple(values.items()))


def _is_wanted(job: Compilation) -> bool:
    """Return True for the main type and head size, and for the most demanding jobs of others and of odd forms."""
    main = job.dtype == DTYPE and job.head_dim == HEAD_DIM
    ends = job.bounds == "ends" or job.op == "conv_step"
    if main and not job.form:
        return True
    taps = any(job.taps[0] <= taps <= job.taps[1] for taps in OTHER_TAPS)
    return bool(job.group and ends and taps and (main or not job.form))


def _is_gated(job: Compilation) -> bool:
    """Return True for the jobs that a change must pass."""
    main = job.dtype == DTYPE and job.head_dim == HEAD_DIM
    group = bool(job.group)
    if job.form or not (main if job.op == "conv_step" else job.bounds == "ends"):
        return False
    if job.arch != 90:
        return main and group and any(job.taps[0] <= taps <= job.taps[1] for taps in OTHER_TAPS)
    return main or (group and job.head_dim in GATED_HEADS)


def _cost(job: Compilation) -> int:
    values = dict(job.constants)
    return values.get("TILE", 1) * job.head_dim * (1 + 3 * ("backward" in job.op)) * (1 + 3 * (job.dtype == "fp32"))


def kernel_module(name: str) -> Any:
    # Triton reads this once, when a kernel is defined: an interpreted kernel cannot be compiled
    os.environ.pop("TRITON_INTERPRET", None)
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    return importlib.import_module(f"seq2seq.kernels.{name}.triton")


# Compiling


def compile_one(job: Compilation) -> Found:
    """Compile a job; an error becomes part of the result."""
    start = time.perf_counter()
    try:
        found = Found(job, resources(_compile(job), job.arch))
    except Exception as error:
        found = Found(job, error=f"{type(error).__name__}: {error}".strip().splitlines()[0])
    return found._replace(seconds=round(time.perf_counter() - start, 2))


def _compile(job: Compilation) -> Any:
    kernel = getattr(kernel_module(job.module), job.kernel)
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants = dict(job.constants)
    # Launch options are not arguments of the kernel
    options = {name: constants.pop(name) for name in ("num_warps", "num_stages", "maxnreg") if name in constants}
    if job.op == "keep_words":
        constants["BLOCK"] = kernel_module(job.module).BLOCK
    if job.form == "ones":
        constants |= {name: 1 for name in ONES if name in kernel.arg_names}
    # Triton takes types by name, and constants and hints by position
    types, signature, places, hints = _types(job), {}, {}, {}
    for place, (name, parameter) in enumerate(zip(kernel.arg_names, kernel.params, strict=True)):
        if name in constants:
            signature[name], places[place,] = "constexpr", constants[name]
            continue
        signature[name] = types.get(name, "i32")
        # Pointers and the strides of x and dy are aligned, unless the kernel forbids specialization
        aligned = (signature[name].startswith("*") or name in ALIGNED) and not parameter.do_not_specialize
        if aligned and job.form != "unaligned":
            hints[place,] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=places, attrs=hints)
    return triton.compile(source, target=GPUTarget("cuda", job.arch, 32), options=options)


def _types(job: Compilation) -> dict[str, str]:
    """Return the types of a kernel's arguments that are not int32; an absent tensor is passed as a float32 one."""
    if job.op == "keep_words":
        return {"seed": "*i64", "words": "*i32"}
    if job.module == "residual_norm":
        names = getattr(kernel_module(job.module), job.kernel).arg_names
        types = dict.fromkeys(("x", "s", "out", "ds", "dout", "dx"), f"*{job.dtype}")
        types |= dict.fromkeys(("y", "dy"), f"*{job.group.split()[-1]}") | {"seed": "*i64"}
        types |= dict.fromkeys(("eps", "scale"), "fp32") | dict.fromkeys(("rows", "threshold"), "i32")
        return dict.fromkeys(names, "*fp32") | types
    values = dict(job.constants)
    if job.module == "attention":
        # The queries' type is passed for absent tensors
        types = dict.fromkeys(("q", "k", "v", "y", "dy", "dq", "dk", "dv", "mask", "bias", "keep"), f"*{job.dtype}")
        given = {"mask": "*i1"} if values["MASKED"] else {}
        given |= {"bias": "*fp32"} if values["BIASED"] else {}
        given |= {"keep": "*i32"} if values["WORDS"] else {}
        return types | given | {"lse": "*fp32", "dbias": "*fp32", "scale": "fp32", "keep_scale": "fp32"}
    types = dict.fromkeys(("x", "y", "dy", "dx", "logits", "dlogits", "values"), f"*{job.dtype}")
    types |= {"lse": "*fp32", "partial": "*fp32", "scale": "fp32", "owner": "*i64", "position": "*i64"}
    types |= {"labels": "*i64", "mask": "*i1", "costs": "*fp32", "at_label": "fp32"}
    types["weights"] = f"*{job.dtype}" if values.get("SOFTMAX") else "*fp32"
    if values.get("COLUMNS", 0) < values.get("WIDTH", 0):  # the parts of a head are summed
        types["dlogits"] = "*fp32"
    types["keep"] = "*i32" if values.get("WORDS") else "*fp32"
    return types | {"end": "*i64" if values.get("ENDS") else "*fp32"}


def resources(compiled: Any, arch: int) -> Resources:
    """Read the resources that a compiled kernel needs from its machine code."""
    usage = _run_tool("cuobjdump", "-res-usage", compiled)
    registers, stack, local = (int(re.findall(rf"{name}:(\d+)", usage)[0]) for name in ("REG", "STACK", "LOCAL"))
    spills = 0
    if stack or local:  # without either there is no local memory to spill to, and disassembling takes long
        spills = len(re.findall(r"\b(?:LDL|STL)\b", disassemble(compiled)))
    # Shared memory in bytes, and warps in a block
    shared, block = compiled.metadata.shared, compiled.metadata.num_warps
    warps = _resident(LIMITS[arch], registers, shared, block)
    return Resources(registers, shared, stack + local, spills, _code_size(compiled.asm["cubin"]) // 16, warps)


def disassemble(compiled: Any) -> str:
    """Return the machine code of a kernel as text, by the disassembler in Triton's own wheel."""
    return _run_tool("nvdisasm", "-c", compiled)


def _run_tool(name: str, option: str, compiled: Any) -> str:
    """Return the output of a program in Triton's wheel for a compiled kernel."""
    import triton

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [getattr(triton.knobs.nvidia, name).path, option, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _resident(limits: ArchLimits, registers: int, shared: int, block: int) -> int:
    """Count the warps that fit on a multiprocessor, in blocks of `block`; registers of a thread come in eights."""
    # Each of the four parts of the register file hosts whole warps of 32 threads
    by_registers = 4 * (REGISTERS // 4 // (32 * 8 * -(-registers // 8)))
    return block * min(by_registers // block, limits.all_shared // (shared + KB), limits.warps // block)


def _code_size(elf: bytes) -> int:
    """Count the bytes of machine code: the sections of a 64-bit ELF file with instructions, 16 bytes each."""
    # offset of the section headers, then their size and number (ELF-64 header)
    (table,), (size, count) = struct.unpack_from("<Q", elf, 40), struct.unpack_from("<HH", elf, 58)
    sections = [struct.unpack_from("<IIQQQQ", elf, table + size * n) for n in range(count)]
    # Flag 4: SHF_EXECINSTR
    return sum(length for _, _, flags, _, _, length in sections if flags & 4)


def compile_all(listed: Sequence[Compilation], workers: int) -> list[Found]:
    """Compile in this process (one worker) or in several, with progress on stderr; results in the order of jobs."""
    found: dict[Compilation, Found] = {}
    if workers == 1:
        results: Iterable[Found] = map(compile_one, listed)
    else:
        pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
        futures = {pool.submit(compile_one, job): job for job in listed}
        results = (_result(future, futures[future]) for future in as_completed(futures))
    for one in results:
        found[one.job] = one
        if len(found) % 50 == 0:
            print(f"{len(found)} of {len(listed)} compiled", file=sys.stderr, flush=True)
    return [found[job] for job in listed]


def _result(future: Future[Found], job: Compilation) -> Found:
    try:
        return future.result()
    except BrokenProcessPool:  # LLVM aborts instead of raising; all jobs that are not compiled yet end here
        return Found(job, error="not compiled: a compiling process died, of this job or another")


# Limits and the table


def problems(found: Found) -> list[str]:
    """List the limits that a compilation exceeds, in words."""
    if found.error:
        return [found.error]
    limits, name, used = LIMITS[found.job.arch], found.job.name, found.resources
    spills, warps = _limit(MOST_SPILLS, name), _limit(FEWEST_WARPS, name)
    said = {
        f"{used.spills} spills, {used.stack} bytes of local memory a thread, limit {spills}": (
            used.spills > spills or (used.stack > 0 and not spills)
        ),
        f"{used.registers} registers, limit {limits.registers}": used.registers > limits.registers,
        f"{used.shared} bytes of shared memory, limit {limits.shared}": used.shared > limits.shared,
        f"{used.warps} warps fit on a multiprocessor, limit {warps}": used.warps < warps,
    }
    return [text for text, wrong in said.items() if wrong]


def _limit(by_pattern: dict[str, int], name: str) -> int:
    return next(limit for pattern, limit in by_pattern.items() if re.search(pattern, name))


def table(found: Iterable[Found], archs: Sequence[int]) -> str:
    """Format a line per kernel, type, K, head size and group: the worst over bounds, for each architecture."""
    lines: dict[tuple[Any, ...], dict[int, list[Found]]] = {}
    for one in sorted(found, key=lambda one: _order(one.job)):
        job, values = one.job, dict(one.job.constants)
        taps = "-".join(map(str, sorted(set(job.taps))))
        about = " ".join(part for part in (job.group, job.form) if part)
        key = (job.op, job.dtype, taps, values.get("TILE", ""), job.head_dim, about, values.get("num_warps", 4))
        lines.setdefault(key, {}).setdefault(job.arch, []).append(one)
    columns = ("stages", "registers", "shared KB", "spills", "instructions", "warps fit")
    head = ["kernel", "type", "K", "tile", "head", "with", "warps", *columns]
    rows = [head, ["---"] * 7 + ["---:"] * len(columns)]
    for key, by_arch in lines.items():
        # A cell has one number for each architecture
        worst = [[_worst(column, by_arch[arch]) if arch in by_arch else "" for arch in archs] for column in columns]
        rows.append([*map(str, key), *(" / ".join(cells) for cells in worst)])
    note = f"Numbers are for {' / '.join(f'sm_{arch}' for arch in archs)}, the worst over bounds.\n\n"
    return note + "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _order(job: Compilation) -> tuple[Any, ...]:
    return (job.op, job.dtype, job.head_dim, job.form, job.taps[1], job.taps[0], job.group)


def _worst(column: str, found: list[Found]) -> str:
    if any(one.error for one in found):
        return "error"
    if column == "warps fit":
        return str(min(one.resources.warps for one in found))
    if column == "stages":
        return str(dict(found[0].job.constants).get("num_stages", 3))
    if column == "shared KB":
        return f"{max(one.resources.shared for one in found) / KB:.1f}"
    return str(max(getattr(one.resources, column) for one in found))


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, print and write the results, and return the exit status, 1 if a limit is exceeded."""
    parser = harness.parser_for("aot", __doc__)
    parser.add_argument("--arch", type=int, nargs="+", choices=LIMITS, default=[80, 90, 100], help="default 80 90 100")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--gate", action="store_true", help="what `make aot` compiles")
    parser.add_argument("--match", default="")
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    listed = [job for job in jobs(options.arch, gate=options.gate) if re.search(options.match, job.name)]
    if not listed:
        parser.error(f"--match {options.match!r}: no configuration has such a name")
    found = compile_all(listed, options.jobs)
    seconds, wrong = time.perf_counter() - start, {one.job.name: problems(one) for one in found if problems(one)}
    import triton

    print(table(found, options.arch))
    print(f"\n{len(found)} configurations, {seconds:.0f} s, triton {triton.__version__}; {len(wrong)} over the limits")
    for name, reasons in wrong.items():
        print(f"OVER {name}: {'; '.join(reasons)}")
    rows = [{"name": one.job.name, **_plain(one)} for one in found]
    result = {"triton": triton.__version__, "seconds": round(seconds), "over": wrong, "rows": rows}
    harness.write(options.out, "aot", result)
    return 1 if wrong else 0


def _plain(found: Found) -> dict[str, Any]:
    job = found.job._asdict() | {"constants": dict(found.job.constants)}
    return job | found.resources._asdict() | {"seconds": found.seconds, "error": found.error}


if __name__ == "__main__":
    sys.exit(main())
