"""Export a checkpoint as a folder for the Hugging Face hub, with its settings, its tokenizer and a model card."""

from __future__ import annotations

from pathlib import Path

from seq2seq.checkpoint import Loaded, Stored, save
from seq2seq.inference.description import write_description
from seq2seq.inference.export.card import Origin, model_card
from seq2seq.system.files import write_text
from seq2seq.system.model_path import WEIGHTS


def write_safetensors(folder: Path, loaded: Loaded, origin: Origin, *, marian: bool) -> None:
    """Write the checkpoint as model.safetensors, with the files that people and other programs read.

    Args:
        marian: The folder has a copy for Hugging Face's Marian, which the card mentions.
    """
    save(folder / WEIGHTS, Stored(loaded.meta, loaded.model.state_dict()))
    write_description(folder, loaded.meta, loaded.tokenizer, "weights", {"file": str(WEIGHTS)})
    size = sum(weight.numel() for weight in loaded.model.parameters())
    write_text(folder / "README.md", model_card(loaded.meta, origin, parameters=size, marian=marian))
