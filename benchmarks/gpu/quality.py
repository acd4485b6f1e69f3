"""Train a mixer's small model on German-English, translate the test sets and score the translations."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.gpu.trainer import Trainer
from benchmarks.gpu.training_data import Batches, Prepared
from seq2seq.data.batching import collate, token_batches
from seq2seq.network.model import Seq2Seq
from seq2seq.search import Specials, search
from seq2seq.settings.search import SearchSettings
from seq2seq.training.machine.compilation import eager

if TYPE_CHECKING:
    from benchmarks.gpu.part import PartJob

# Suffix of the name of a translation with weights in bfloat16.
IN_BFLOAT16 = " in bfloat16"


def run(job: PartJob) -> None:
    """Train for four minutes at most; translations that cannot be scored here are kept as ids."""
    (mixer,) = job.words
    prepared = Prepared(job.data)
    device = torch.device(job.device)
    # Compilation before training and translation after it take up to two minutes
    seconds = max(60.0, min(240.0, job.left(reserve=120.0))) if job.on_gpu else 0.3
    batches = iter(Batches(prepared, max_tokens=8192 if job.on_gpu else 400, seed=1, device=device))
    trainer = Trainer(prepared.model("small", mixer), device=device, compile=job.on_gpu)
    warm = trainer.warm_up(batches)
    found = {"warm_up_seconds": round(warm, 1), **trainer.run(batches, seconds=seconds)}
    # This ends the thread that makes batches
    batches.close()  # type: ignore[attr-defined]
    model = trainer.model.eval()
    beam_size = 5 if job.on_gpu else 2
    translations = {name: translate(model, prepared, name, beam_size) for name in prepared.tests}
    # `translate` casts the weights on a GPU, too
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    for name in prepared.tests:
        translations[f"{name}{IN_BFLOAT16}"] = translate(model, prepared, name, beam_size)
    # Saved before scoring, whose packages may be missing
    job.save(**found, translations=translations)
    if score(translations, prepared):
        for translation in translations.values():
            del translation["ids"]
        job.save(translations=translations)


def translate(model: Seq2Seq, prepared: Prepared, name: str, beam_size: int) -> dict[str, Any]:
    """Translate a test set: ids of the best hypothesis of each sentence in file order, and the seconds taken."""
    src, tgt = prepared.split(name)
    settings = SearchSettings(beam_size=beam_size)
    ids = prepared.ids
    special = Specials(ids["bos"], ids["eos"], ids["pad"])
    device = next(model.parameters()).device
    hypothesis_ids: list[list[int]] = [[] for _ in src.lengths]
    began = time.perf_counter()
    # Batches are sorted by length, so results go back to their lines by `rows`
    for rows in token_batches(src.lengths, src.lengths, max_tokens=16_000, shuffle=False):
        batch = collate(src.select(rows), tgt.select(rows), rows, pad_id=ids["pad"], bos_id=ids["bos"])
        with eager(model):
            best = search(model, batch.src.to(device), batch.src_mask.to(device), settings=settings, special=special)
        for row, hypotheses in zip(rows, best, strict=True):
            hypothesis_ids[row] = hypotheses[0].ids
    return {"seconds": round(time.perf_counter() - began, 2), "ids": hypothesis_ids}


def score(translations: dict[str, Any], prepared: Prepared) -> bool:
    """Add BLEU and chrF to every translation, in place; return False if a package for it is missing."""
    try:
        from seq2seq.data.tokenizer import Tokenizer
        from seq2seq.metrics.scorers import bleu, chrf
    except ImportError:
        return False
    # The vocabulary is joint, so the source's model also decodes the target
    tokenizer = Tokenizer(src_model=(prepared.folder / "tokenizer.model").read_bytes())
    for name, translation in translations.items():
        lines = tokenizer.decode(translation["ids"])
        references = prepared.references(name.removesuffix(IN_BFLOAT16))
        translation["scores"] = [metric(lines, references)._asdict() for metric in (bleu, chrf)]
        # A sample to read
        translation["text"] = lines[:20]
    return True
