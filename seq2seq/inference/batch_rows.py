"""Size the batches of a search: as many sentences as a step may compute, and as the memory of a GPU holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from seq2seq.inference.limits import MOST_GPU_TOKENS
from seq2seq.network.state import Cache, leaves
from seq2seq.search import longest_target
from seq2seq.search.rows import AnyModel
from seq2seq.settings.search import SearchSettings

if TYPE_CHECKING:
    from seq2seq.inference.translator import Translator

# Numbers that a step of a search computes, 1 GiB in float32; wide beams get smaller batches.
_STEP_NUMBERS = 1 << 28
# Slots of attention's cache that a hypothesis reads for each of its beam: 64 positions, 8 heads.
_SLOTS = 512
# Share of a GPU's free memory that a search may take, and how often it has what it keeps and computes for a sentence:
# scores in two types, normalized, and sorted; caches whose rows move; temporaries of several captured steps.
_SHARE, _COPIES = 0.5, 4


def search_rows(translator: Translator, width: int, settings: SearchSettings, waiting: int) -> int:
    """Return how many of `waiting` sentences of up to `width` pieces are searched at a time."""
    vocab_size = translator.tokenizer.tgt_vocab_size
    rows = max(1, translator.max_tokens // width)
    # Memory is looked at where there are more sentences than rows
    if translator.by_memory and waiting > rows:
        fitting = fitting_rows(translator.model, width, settings, vocab_size, torch.device(translator.device))
        rows = max(1, min(fitting, MOST_GPU_TOKENS // width))
    return min(rows, most_rows(settings.beam_size, vocab_size))


def most_rows(beam_size: int, vocab_size: int) -> int:
    """Return how many sentences may be searched at a time, by what a step computes for each; one is always allowed."""
    # A hypothesis has a score of every token, and of every slot that its beam has filled in each head of attention
    numbers = beam_size * max(vocab_size, beam_size * _SLOTS)
    return max(1, _STEP_NUMBERS // numbers)


def fitting_rows(model: AnyModel, width: int, settings: SearchSettings, vocab_size: int, device: torch.device) -> int:
    """Return how many sentences of `width` pieces the free memory of a GPU holds.

    A power of two, so that a little more or less free memory, which rounds sums in another order, seldom matters.
    """
    each = _COPIES * (kept_bytes(model, width, settings, device) + 4 * settings.beam_size * vocab_size)
    return 1 << (max(1, int(_SHARE * free_memory(device)) // each).bit_length() - 1)


@torch.inference_mode()
def kept_bytes(model: AnyModel, width: int, settings: SearchSettings, device: torch.device) -> int:
    """Measure what a model keeps of a sentence of `width` pieces and the hypotheses of its longest translation."""
    src = torch.zeros(1, width, dtype=torch.int64, device=device)  # (1, S)
    context = model.context(src, torch.ones_like(src, dtype=torch.bool))
    limit = longest_target(width, settings)
    state = model.init_state(context, beam_size=settings.beam_size, max_len=limit)
    # What else a cache has is small
    kept = [leaf.values if isinstance(leaf, Cache) else leaf for leaf in leaves([context, state])]
    return sum(tensor.nbytes for tensor in kept)


def free_memory(device: torch.device) -> int:
    """Return the bytes that tensors may take of a GPU: what the driver has, and what torch keeps unused."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
