"""Bound the batch size of a search by the numbers that a step computes and by the memory of a GPU."""

from __future__ import annotations

import torch

from seq2seq.network.state import Cache, leaves
from seq2seq.search import longest_target
from seq2seq.search.models import AnyModel
from seq2seq.settings.search import SearchSettings

# Most numbers that a step of a search computes, 1 GiB in float32; wide beams get smaller batches.
_STEP_NUMBERS = 1 << 28
# Slots of an attention cache that a hypothesis reads for each hypothesis of its beam: 64 positions in 8 heads.
_SLOTS = 512
# Share of a GPU's free memory that a search may take.
_SHARE = 0.5
# Copies of a sentence's numbers that a search holds: scores in two types, normalized and sorted; caches whose rows
# move; temporaries of several captured steps.
_COPIES = 4


def most_rows(beam_size: int, vocab_size: int) -> int:
    """Return how many sentences may be searched together so that a step computes at most _STEP_NUMBERS; at least 1."""
    # A hypothesis has a score for every token, and for every slot that its beam has filled in each attention head
    numbers = beam_size * max(vocab_size, beam_size * _SLOTS)
    return max(1, _STEP_NUMBERS // numbers)


def fitting_rows(model: AnyModel, width: int, settings: SearchSettings, vocab_size: int, device: torch.device) -> int:
    """Return how many sentences of `width` pieces fit into the free memory of a GPU.

    The result is a power of two, so that small changes of free memory seldom change it or the rounding of sums.
    """
    each = _COPIES * (kept_bytes(model, width, settings, device) + 4 * settings.beam_size * vocab_size)
    return 1 << (max(1, int(_SHARE * free_memory(device)) // each).bit_length() - 1)


@torch.inference_mode()
def kept_bytes(model: AnyModel, width: int, settings: SearchSettings, device: torch.device) -> int:
    """Measure the bytes of context and state for a sentence of `width` pieces and its longest translation."""
    src = torch.zeros(1, width, dtype=torch.int64, device=device)  # (1, S)
    context = model.context(src, torch.ones_like(src, dtype=torch.bool))
    limit = longest_target(width, settings)
    state = model.init_state(context, beam_size=settings.beam_size, max_len=limit)
    # The other tensors of a cache are small
    kept = [leaf.values if isinstance(leaf, Cache) else leaf for leaf in leaves([context, state])]
    return sum(tensor.nbytes for tensor in kept)


def free_memory(device: torch.device) -> int:
    """Return the free bytes of a GPU: free for the driver, or reserved by torch but unused."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
