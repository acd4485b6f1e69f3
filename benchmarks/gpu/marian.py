"""Train Hugging Face's Marian of the same size on the batches of the training command, by each way of attention."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu.command import settings
from benchmarks.gpu.machine import wait
from benchmarks.train import SMOOTHING, marian_model
from seq2seq.data.batching import Batch
from seq2seq.data.preparation import prepare_corpora
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.settings.compose import resolved_settings
from seq2seq.training.checks import make_data_plan
from seq2seq.training.lightning_parts.datamodule import TranslationDataModule
from seq2seq.training.plan import make_plan

if TYPE_CHECKING:
    from benchmarks.gpu.part import PartJob

_WAYS = ("sdpa", "eager", "flash_attention_2")
# Seconds of updates after the first ones, which load kernels.
_SECONDS, _FIRST = 8.0, 8
# Number of batches, from the first epoch; they are kept on the GPU, so that reading them takes no time.
_BATCHES = 128
_TINY = {"d_model": 16, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "encoder_layers": 1, "decoder_layers": 1}


def run(job: PartJob) -> None:
    """Time updates of 16,384 tokens: bf16 autocast, smoothed labels, clipping, fused AdamW."""
    if find_spec("transformers") is None:
        job.save(missing="transformers")
        return
    device = torch.device(job.device)
    config = resolved_settings(settings(job, "transformer", "16384"))
    data = prepare_corpora(make_data_plan(make_plan(config, mixer="transformer"), None))
    loader = TranslationDataModule(data).train_dataloader()
    batches = [
        Batch(*(part.to(device) for part in batch)) for batch in itertools.islice(loader, _BATCHES if job.on_gpu else 3)
    ]
    for way in job.while_time(_WAYS, 12.0 if job.on_gpu else 1.0):
        try:
            update = training(data.tokenizer, device, way, **({} if job.on_gpu else _TINY))
            found = rate(update, batches, device, seconds=_SECONDS if job.on_gpu else 0.1)
        except (ImportError, RuntimeError, ValueError) as error:
            found = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
        job.save(**{way: found})
        update = None
        gc.collect()
        if job.on_gpu:
            torch.cuda.empty_cache()


def training(tokenizer: Tokenizer, device: torch.device, way: str, **smaller: int) -> Callable[[Batch], Tensor]:
    """Return a call that makes an update of a new model, and returns its loss."""
    ids = {"pad_token_id": tokenizer.pad_id, "eos_token_id": tokenizer.eos_id}
    model = marian_model(
        vocab_size=tokenizer.tgt_vocab_size,
        decoder_start_token_id=tokenizer.bos_id,
        attn_implementation=way,
        **ids,
        **smaller,
    )
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def update(batch: Batch) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(
                input_ids=batch.src,
                attention_mask=batch.src_mask.long(),
                decoder_input_ids=batch.tgt_in,
                use_cache=False,
            ).logits
            loss = F.cross_entropy(
                logits.flatten(0, 1),
                batch.tgt_out.flatten(),
                ignore_index=tokenizer.pad_id,
                label_smoothing=SMOOTHING,
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return update


def rate(
    update: Callable[[Batch], Tensor], batches: list[Batch], device: torch.device, *, seconds: float
) -> dict[str, Any]:
    """Return target tokens/s without padding over some seconds of updates."""
    # Counted beforehand, because reading a count from the GPU would wait for it
    tokens = [int(batch.tgt_mask.sum()) for batch in batches]
    order = itertools.cycle(range(len(batches)))
    for place in itertools.islice(order, _FIRST):
        update(batches[place])
    wait(device)
    done, updates, began = 0, 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        # Only a few updates are queued at a time, so that the clock stays close to the GPU
        for place in itertools.islice(order, 4):
            loss = update(batches[place])
            done += tokens[place]
            updates += 1
        wait(device)
    took = time.perf_counter() - began
    return {
        "target_tokens_per_second": round(done / took),
        "updates": updates,
        "loss": round(float(loss), 3),
        **({"GiB": round(torch.cuda.max_memory_allocated() / 2**30, 1)} if device.type == "cuda" else {}),
    }
