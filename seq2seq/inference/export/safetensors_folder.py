"""Export a model's weights as safetensors, with its settings, its tokenizer and a model card."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from seq2seq.checkpoint import Loaded
from seq2seq.files import write_text
from seq2seq.inference.description import write_description
from seq2seq.inference.export.card import Origin, model_card
from seq2seq.inference.model_files import WEIGHTS
from seq2seq.packages import require


def write_safetensors(folder: Path, loaded: Loaded, origin: Origin, *, marian: bool) -> None:
    """Write the folder that `Translator.load` reads.

    Args:
        marian: The folder has a copy for Hugging Face's Marian, which the card mentions.
    """
    safetensors = require("safetensors.torch", "--format huggingface", extra="export")
    stored, tied = unique_weights(loaded.model)
    # Contiguous: the format stores nothing else
    safetensors.save_file({name: weight.contiguous() for name, weight in stored.items()}, folder / WEIGHTS)
    write_description(folder, loaded.meta, loaded.tokenizer, "weights", {"tied": tied})
    size = sum(weight.numel() for weight in stored.values())
    write_text(folder / "README.md", model_card(loaded.meta, origin, parameters=size, marian=marian))


def unique_weights(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return every weight once by its first name, and the further names of those that the model ties."""
    first: dict[int, str] = {}
    stored: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    # keep_vars: parameters by identity
    for name, weight in model.state_dict(keep_vars=True).items():
        if id(weight) in first:
            tied[name] = first[id(weight)]
        else:
            first[id(weight)] = name
            stored[name] = weight.detach()
    return stored, tied
