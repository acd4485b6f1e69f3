"""Parts of the headline: a mixer is trained on text and translates, or is timed on synthetic batches."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.headline.data import Batches, Prepared, synthetic
from benchmarks.headline.training import Trainer
from seq2seq.data.batching import Ragged, collate, token_batches
from seq2seq.network.model import Seq2Seq
from seq2seq.search import Specials, search
from seq2seq.settings.search import SearchSettings
from seq2seq.training.machine.compilation import eager


class Plan(NamedTuple):
    """Seconds of training, sizes of batches, and other settings of all parts."""

    device: torch.device
    seconds: float
    synthetic_seconds: float
    max_tokens: int
    synthetic_tokens: int
    compile: bool
    beam_size: int


# Ends the name of a translation with weights in bfloat16.
IN_BFLOAT16 = " in bfloat16"


def quality(prepared: Prepared, mixer: str, plan: Plan, folder: Path) -> dict[str, Any]:
    """Train the small model, translate every test set, and keep the translations' ids and the weights."""
    trainer, warm = _warmed(prepared, mixer, plan)
    batches = iter(_batches(prepared, plan))
    result = {"warm_up_seconds": round(warm, 1), "max_tokens": plan.max_tokens}
    result |= trainer.run(batches, seconds=plan.seconds)
    # Ends the thread that makes batches
    batches.close()  # type: ignore[attr-defined]
    model = trainer.model.eval()
    result["translations"] = {name: translate(model, prepared, name, plan) for name in prepared.tests}
    # The weights as well, so that other measurements need no training
    torch.save({key: value.cpu() for key, value in model.state_dict().items()}, folder / f"{mixer}.pt")
    # As `translate` does on a GPU
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    for name in prepared.tests:
        result["translations"][f"{name}{IN_BFLOAT16}"] = translate(model, prepared, name, plan)
    return result


def _batches(prepared: Prepared, plan: Plan) -> Batches:
    return Batches(prepared, max_tokens=plan.max_tokens, seed=1, device=plan.device)


def _warmed(prepared: Prepared, mixer: str, plan: Plan) -> tuple[Trainer, float]:
    """Create a trainer and run its first batches; without compilation where that fails."""
    for compile in (plan.compile, False):
        trainer = Trainer(prepared.model("small", mixer), device=plan.device, compile=compile)
        batches = iter(_batches(prepared, plan))
        try:
            return trainer, trainer.warm_up(batches)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if not trainer.compiled:
                raise
            why = f"{type(error).__name__}: {str(error)[:200]}"
            print(f"{mixer}: does not compile ({why}); goes on without", flush=True)
            torch._dynamo.reset()
        finally:
            batches.close()  # type: ignore[attr-defined]
    raise AssertionError("unreachable")


def speed(prepared: Prepared, size: str, mixer: str, length: int, plan: Plan) -> dict[str, Any]:
    """Measure tokens/s and MFU on random pairs of `length`, with fewer rows a batch if memory does not suffice."""
    config = prepared.model(size, mixer)
    rows, compile = max(1, plan.synthetic_tokens // length), plan.compile
    while True:
        try:
            trainer = Trainer(config, device=plan.device, compile=compile)
            batches = itertools.repeat(synthetic(rows, length, config["tgt_vocab_size"], plan.device))
            warm = trainer.warm_up(batches)
            result = trainer.run(batches, seconds=plan.synthetic_seconds)
            return {"rows": rows, "length": length, "warm_up_seconds": round(warm, 1), **result}
        except torch.OutOfMemoryError:
            if rows == 1:
                raise
            rows //= 2
        except Exception as error:
            if not compile:
                raise
            print(f"{size} {mixer}: does not compile ({type(error).__name__}); goes on without", flush=True)
            torch._dynamo.reset()
            compile = False
        # The failed model must be gone before its memory can be returned
        trainer = batches = None  # type: ignore[assignment]
        if plan.device.type == "cuda":
            torch.cuda.empty_cache()


def translate(model: Seq2Seq, prepared: Prepared, name: str, plan: Plan) -> dict[str, Any]:
    """Translate a test set: ids of the best hypothesis of each sentence in file order, and the seconds taken."""
    src, tgt = prepared.split(name)
    settings = SearchSettings(beam_size=plan.beam_size)
    ids = prepared.ids
    special = Specials(ids["bos"], ids["eos"], ids["pad"])
    hypothesis_ids: list[list[int]] = [[] for _ in src.lengths]
    began = time.perf_counter()
    # Batches are sorted by length, so results go back to their lines by `rows`
    for rows, batch in _test_batches(src, tgt, ids):
        batch = type(batch)(*(part.to(plan.device) for part in batch))
        with eager(model):
            best = search(model, batch.src, batch.src_mask, settings=settings, special=special)
        for row, hypotheses in zip(rows, best, strict=True):
            hypothesis_ids[row] = hypotheses[0].ids
    return {"seconds": round(time.perf_counter() - began, 2), "ids": hypothesis_ids}


def _test_batches(src: Ragged, tgt: Ragged, ids: dict[str, int]) -> Iterator[tuple[np.ndarray, Any]]:
    lengths = src.lengths
    for rows in token_batches(lengths, lengths, max_tokens=16_000, shuffle=False):
        yield rows, collate(src.select(rows), tgt.select(rows), rows, pad_id=ids["pad"], bos_id=ids["bos"])
