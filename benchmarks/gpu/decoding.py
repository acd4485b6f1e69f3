"""Time beam search of base models with random weights, in float32 and in bf16, and count the host's waits.

A stream of sentences, whose finished rows are refilled as `translate` does, is searched both with plain steps and with
steps that are captured as CUDA graphs and replayed.
"""

from __future__ import annotations

import time
import warnings
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.gpu.plan import MIXERS
from benchmarks.gpu.training_data import Prepared, synthetic
from seq2seq.network.build import build_model
from seq2seq.network.model import Seq2Seq
from seq2seq.search import Graphs, Source, Specials, search, search_stream
from seq2seq.search.graphs import cuda_graphs
from seq2seq.settings.search import SearchSettings

if TYPE_CHECKING:
    from benchmarks.gpu.part import PartJob

# Sentences as long as in training; with random weights, translations end at the limit.
_ROWS, _LENGTH, _BEAM = 64, 27, 5
# Sentences of a stream for each row.
_TURNS = 4


def run(job: PartJob) -> None:
    """Time every mixer."""
    prepared = Prepared(job.data)
    rows, length, beam = (_ROWS, _LENGTH, _BEAM) if job.on_gpu else (2, 4, 2)
    device = torch.device(job.device)
    settings = SearchSettings(beam_size=beam, max_len_ratio=1.0, max_len_extra=1)
    special = Specials(prepared.ids["bos"], prepared.ids["eos"], prepared.ids["pad"])
    for mixer in MIXERS:
        config = prepared.model("base", mixer)
        torch.manual_seed(1)
        model = build_model(config).to(device).eval()
        never_ending(model, special.eos)
        batch = synthetic(rows, length, config["tgt_vocab_size"], device)

        def decode(model: Seq2Seq = model, batch: Any = batch) -> None:
            search(model, batch.src, batch.src_mask, special=special, settings=settings)

        found: dict[str, Any] = {"sentences": rows, "beam": beam, "steps": length + 1}
        for name, enabled in (("float32", False), ("bf16", True)):
            with torch.autocast(device.type, torch.bfloat16, enabled=enabled):
                took = seconds_of(decode, device)
                found[name] = {"ms a step": 1e3 * took / (length + 1), "tokens/s": rows * (length + 1) / took}
        found["waits a step"] = waits_of(decode, device, length + 1)
        job.save(**{mixer: found})
        given = sources(_TURNS * rows, length, config["src_vocab_size"])
        for name in ("float32", "bfloat16"):
            # `translate` stores the weights in this type
            for parameter in model.parameters():
                parameter.data = parameter.data.to(getattr(torch, name))
            stream = {"special": special, "settings": settings, "rows": rows, "device": device}
            found[f"replayed {name}"] = both_ways(model, given, stream, device)
            job.save(**{mixer: found})


def sources(count: int, longest: int, vocabulary: int) -> list[Source]:
    """Draw sentences of at least half the greatest length, the longest first, with translations of equal length."""
    lengths = torch.randint(longest // 2, longest + 1, (count,)).sort(descending=True).values.tolist()
    return [Source(torch.randint(4, vocabulary, (length,)).tolist()) for length in lengths]


def both_ways(model: Seq2Seq, given: list[Source], how: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Search a stream with plain and with replayed steps; on a CPU both are plain, and nothing is captured."""
    tokens = sum(len(source.ids) + 1 for source in given)
    found: dict[str, Any] = {}
    results: dict[str, Any] = {}
    graphs: Graphs | None = None
    for way in ("plain", "replayed"):

        def work(way: str = way) -> None:
            nonlocal graphs
            graphs = cuda_graphs(device) if way == "replayed" and device.type == "cuda" else None
            results[way] = dict(chain.from_iterable(search_stream(model, given, graphs=graphs, **how)))

        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        found[f"{way} tokens/s"] = tokens / seconds_of(work, device)
        if device.type == "cuda":
            found[f"{way} GiB"] = torch.cuda.max_memory_reserved() / 2**30
    same = sum(results["plain"][i][0].ids == results["replayed"][i][0].ids for i in range(len(given)))
    found |= {"ratio": found["replayed tokens/s"] / found["plain tokens/s"], "equal": same, "sentences": len(given)}
    return found | ({"graphs": graphs.count, "capture s": graphs.seconds, "failed": graphs.failed} if graphs else {})


def never_ending(model: Seq2Seq, eos: int) -> None:
    """Make the end symbol improbable, so that every sentence takes all steps."""
    bias = torch.zeros(model.output.weight.shape[0], device=model.output.weight.device)
    bias[eos] = -1e4
    model.output.bias = torch.nn.Parameter(bias)  # type: ignore[assignment]


def seconds_of(work: Any, device: torch.device) -> float:
    """Return the least time of three calls, after one that is not counted."""
    times = []
    for _ in range(4):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times[1:])


def waits_of(work: Any, device: torch.device, steps: int) -> float | None:
    """Return how often the host waits for the device in a step, as CUDA reports it; None on a CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            work()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return round(sum("synchroniz" in str(one.message) for one in found) / steps, 2)
