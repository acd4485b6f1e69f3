"""Options of all commands that translate with a model: the model, its search, the device. Imports no torch."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from seq2seq.inference.limits import (
    CPU_TOKENS,
    DTYPES,
    LEAST_SOURCE,
    LONGEST_SOURCE,
    MOST_SOURCE,
    MOST_THREADS,
    SENTENCES,
)
from seq2seq.options.command_line import nonempty, number, option_name, positive, whole_number
from seq2seq.settings.declare import keys
from seq2seq.settings.search import KEPT, SamplingSettings, SearchSettings, chosen_search
from seq2seq.system.cores import Cores
from seq2seq.system.memory import keep_freed_memory

if TYPE_CHECKING:
    from seq2seq.inference.translator import Translator


def search_range(name: str) -> tuple[Any, Any]:
    """Return the smallest and the largest value of a search setting."""
    limits = keys(SearchSettings)[name].metadata
    return limits["least"], limits["most"]


def value_of(cls: type, name: str) -> dict[str, Any]:
    """Return the arguments of `add_argument` for a setting: its type and range, or its choices."""
    limits = keys(cls)[name].metadata
    if "choices" in limits:
        return {"choices": limits["choices"]}
    if "above" in limits:
        return {"type": number(limits["above"], limits["most"], above=True), "metavar": "X"}
    least = limits.get("option_least", limits.get("least", 0))
    kind, letter = (whole_number, "N") if keys(cls)[name].type == "int" else (number, "X")
    return {"type": kind(least, limits["most"]), "metavar": letter}


def add_model_options(parser: argparse._ActionsContainer, *, sentences: str = "auto") -> None:
    """Add the options of every command that translates with a checkpoint.

    Args:
        sentences: The default of --sentences.
    """
    add = parser.add_argument
    # An option without a value is None; `load_translator` takes it from the checkpoint
    for name, field in keys(SearchSettings).items():
        if name in KEPT:
            text = f"{field.metadata['help']} (default: the run's)"
            add(option_name(name), help=text, **value_of(SearchSettings, name))
    text = f"source pieces in a batch, padding counted ({CPU_TOKENS} on a CPU, as many as memory holds on a GPU)"
    add("--max-tokens", type=positive, metavar="N", help=text)
    text = f"longest source in pieces ({LONGEST_SOURCE})"
    add("--max-len", type=whole_number(LEAST_SOURCE, MOST_SOURCE), default=LONGEST_SOURCE, metavar="N", help=text)
    text = (
        "translate a line sentence by sentence: always (split), never (keep), or if it has more sentences or pieces "
        f"than most training lines (auto) ({sentences})"
    )
    add("--sentences", choices=SENTENCES, default=sentences, help=text)
    text = "average the probabilities with these checkpoints"
    add("--ensemble", nargs="+", type=nonempty, default=[], metavar="FILE", help=text)
    text = "file of python -m seq2seq.shortlist; only its pieces are scored"
    add("--shortlist", type=nonempty, metavar="FILE", help=text)
    text = "terms, one per line (source, tab, target): a translation has the target if its sentence has the source"
    add("--glossary", type=nonempty, metavar="FILE", help=text)
    text = "search: require terms in translations; tags: write them into sources, as data.augment.terms does (search)"
    add("--glossary-by", choices=("search", "tags"), help=text)
    add("--tgt-lang", type=nonempty, metavar="LANG", help="target language, of a checkpoint that has several")
    text = "source language, of a checkpoint whose sources begin with the tag of their language"
    add("--src-lang", type=nonempty, metavar="LANG", help=text)
    add("--device", default="auto", metavar="DEVICE", help="cpu, cuda, cuda:N or auto (auto)")
    add("--dtype", choices=DTYPES, help="number format of the weights (float32; bfloat16 on a GPU, except to score)")
    text = "replay decoding steps as CUDA graphs (on a GPU, where possible)"
    add("--cuda-graphs", action=argparse.BooleanOptionalAction, help=text)
    add("--threads", type=whole_number(1, MOST_THREADS), metavar="N", help="CPU threads (as many as cores are free)")
    text = "package, besides seq2seq, whose mixers a checkpoint may name; may be repeated"
    add("--trust", action="append", default=[], metavar="PACKAGE", help=text)


def search_of(options: argparse.Namespace, defaults: SearchSettings) -> tuple[SearchSettings, SamplingSettings | None]:
    """Complete the options of a command with a checkpoint's settings.

    Raises:
        ValueError: The options cannot be combined; the message names them.
    """
    # A command may have only some of these options, which are named after the settings
    names = (*KEPT, "n_best", *keys(SamplingSettings), "samples", "mbr", "phrases", "glossary")
    try:
        return chosen_search(defaults, {name: getattr(options, name, None) for name in names})
    except ValueError as error:
        words = rf"\b({'|'.join(names)})\b"
        raise ValueError(re.sub(words, lambda name: option_name(name[1]), str(error))) from None


def load_translator(options: argparse.Namespace) -> Translator:
    """Load the translator with the options of `add_model_options`; the checkpoint sets options without a value.

    Raises:
        ValueError: The checkpoint, the device or an option cannot be used.
    """
    cores = Cores()
    # Imported here, since --help and wrong options need no torch
    import torch

    from seq2seq.inference.model_files import choose_device
    from seq2seq.inference.translator import Translator

    # Checked before loading, which may take long
    device = choose_device(options.device)
    torch.set_num_threads(options.threads or cores.threads(torch.get_num_threads()))
    if device == "cpu":
        keep_freed_memory()
    # cuDNN would round convolutions in float32 to TF32
    torch.backends.cudnn.allow_tf32 = False
    names = ("device", "dtype", "trust", "max_tokens", "max_len", "sentences", "tgt_lang", "src_lang")
    names += ("ensemble", "shortlist", "cuda_graphs", "glossary", "glossary_by")
    how: dict[str, Any] = {name: getattr(options, name) for name in names}
    translator = Translator.load(options.ckpt, **how)
    translator.settings, _ = search_of(options, translator.settings)
    return translator
