"""Compare imported models of fairseq with fairseq itself: logits, greedy search and beam search.

    python -m benchmarks.fairseq_agreement --fairseq TREE

TREE holds the package `fairseq`, such as a clone of its repository; it also needs the package bitarray. fairseq builds
small models, which are taught a little, so that their translations end, saved and converted. A row has the largest
difference of logits in whole padded batches, the largest logit, and how many sentences have the same tokens by either
search. DynamicConv of fairseq is compared in two forms: the expanded one, with which the published models were trained,
by decoding every prefix anew, and the incremental one. (For whole sequences later versions normalize fewer taps where
the target is shorter than the kernel.) Exit status 1 if a sentence differs.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import importlib
import logging
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

from seq2seq import checkpoint
from seq2seq.inference.export.agreement import specials
from seq2seq.inference.imports.published import imported
from seq2seq.search import search
from seq2seq.settings.search import SearchSettings
from seq2seq.system.markdown import markdown_table

PAD, EOS, WORDS, LONGEST = 1, 2, 100, 16
TIED, OUTPUT = {"share_all_embeddings": True}, {"share_decoder_input_output_embed": True}
PRE = {"encoder_normalize_before": True, "decoder_normalize_before": True}
LEARNED = {"encoder_learned_pos": True, "decoder_learned_pos": True, "no_scale_embedding": True}
DEPTH = {"encoder_layers": 2, "decoder_layers": 2}
PLAIN = {"encoder_glu": False, "decoder_glu": False}
SIZES = {
    f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("embed_dim", 64), ("ffn_embed_dim", 96))
}
# Convolution and arguments of each model; the published convolutions have 7 + 6 layers
CASES: dict[str, tuple[str | None, dict[str, Any]]] = {
    "transformer, post-norm, one table": (None, TIED | DEPTH),
    "transformer, pre-norm, two dictionaries, gelu": (None, OUTPUT | PRE | DEPTH | {"activation_fn": "gelu"}),
    "transformer, learned positions, nothing tied": (None, LEARNED | DEPTH),
    "lightconv, published": ("lightweight", TIED),
    "lightconv, without glu, pre-norm": ("lightweight", OUTPUT | PRE | PLAIN),
    "dynamicconv, published": ("dynamic", TIED),
    "dynamicconv, without glu, pre-norm": ("dynamic", OUTPUT | PRE | PLAIN),
}


def import_fairseq(tree: Path) -> None:
    """Import fairseq from a tree; since Python 3.11 the defaults of its data classes must be hashable."""
    original = dataclasses.dataclass

    def dataclass(cls: Any = None, **options: Any) -> Any:
        if cls is None:
            return lambda each: dataclass(each, **options)
        if cls.__module__.startswith("fairseq"):
            options.setdefault("unsafe_hash", True)
        return original(cls, **options)

    sys.path.insert(0, str(tree))
    logging.disable(logging.WARNING)
    dataclasses.dataclass = dataclass
    try:
        importlib.import_module("fairseq.models.lightconv")
        importlib.import_module("fairseq.models.transformer")
        importlib.import_module("fairseq.sequence_generator")
    finally:
        dataclasses.dataclass = original


def build(conv: str | None, values: dict[str, Any]) -> tuple[Any, argparse.Namespace, list[Any]]:
    """Build a model of fairseq with random biases; return it with its arguments and both dictionaries."""
    from fairseq.data import Dictionary
    from fairseq.models import lightconv
    from fairseq.models.transformer import TransformerModel, base_architecture

    sides = []
    for lang in ("de", "de" if "share_all_embeddings" in values else "en"):
        dictionary = Dictionary()
        for i in range(WORDS):
            dictionary.add_symbol(f"{lang}{i}{'@@' if i % 3 else ''}", n=WORDS - i)
        dictionary.finalize()
        sides.append(dictionary)
    args = argparse.Namespace(source_lang="de", target_lang="en", **SIZES, **values)
    args.encoder_conv_type = args.decoder_conv_type = conv
    args.weight_softmax = True
    (base_architecture if conv is None else lightconv.base_architecture)(args)
    cls = TransformerModel if conv is None else lightconv.LightConvModel
    model = cls.build_model(args, SimpleNamespace(source_dictionary=sides[0], target_dictionary=sides[1]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.1)
    return model, args, sides


def sources(count: int, size: int, seed: int) -> list[list[int]]:
    """Draw source sentences of several lengths, with eos."""
    rng = random.Random(seed)
    return [[*rng.choices(range(4, size), k=rng.randint(1, LONGEST)), EOS] for _ in range(count)]


def padded(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Pad rows of ids on the right."""
    return pad_sequence([torch.tensor(row) for row in rows], True, PAD)


def teach(model: Any, size: int, steps: int) -> None:
    """Train a model to repeat every other token, in order that translations differ and end."""
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    model.eval()
    for step in range(steps):
        rows = sources(32, size, seed=step)
        src, out = padded(rows), padded([[*row[:-1][::2], EOS] for row in rows])
        given = torch.cat([torch.full_like(out[:, :1], EOS), out[:, :-1]], 1)
        logits = model(src, torch.tensor(list(map(len, rows))), given)[0]
        F.cross_entropy(logits.flatten(0, 1), out.flatten(), ignore_index=PAD).backward()
        optimizer.step()
        optimizer.zero_grad()


def expanded(model: Any) -> Any:
    """Return a copy of a model whose DynamicConvs have the expanded form."""
    from fairseq.modules.dynamic_convolution import DynamicConv1dTBC

    model = copy.deepcopy(model)
    for layer in [*model.encoder.layers, *model.decoder.layers]:
        old = layer.conv
        layer.conv = DynamicConv1dTBC(
            old.input_size, old.kernel_size, old.padding_l, old.num_heads, weight_softmax=old.weight_softmax
        )
        layer.conv.weight_linear = old.weight_linear
    return model.eval()


def translate(
    model: Any, dictionary: Any, rows: Sequence[list[int]], beam: int, *, incremental: bool
) -> list[list[int]]:
    """Translate by fairseq's search, without eos."""
    from fairseq.sequence_generator import SequenceGenerator

    generator = SequenceGenerator([model], dictionary, beam_size=beam, max_len_b=2 * LONGEST)
    generator.model.has_incremental = incremental
    net = {"src_tokens": padded(rows), "src_lengths": torch.tensor(list(map(len, rows)))}
    return [found[0]["tokens"].tolist()[:-1] for found in generator.generate([model], {"net_input": net})]


def measure(name: str, count: int, steps: int) -> list[str]:
    """Return the row of one model."""
    conv, values = CASES[name]
    torch.manual_seed(0)
    model, args, (src_words, tgt_words) = build(conv, values)
    teach(model, min(len(src_words), len(tgt_words)), steps)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        for lang, words in (("de", src_words), ("en", tgt_words)):
            words.save(str(path / f"dict.{lang}.txt"))
        (path / "bpecodes").write_text("#version: 0.2\nd e\n")
        torch.save({"args": args, "model": model.state_dict()}, path / "model.pt")
        checkpoint.save(path / "ours.safetensors", imported(path, trust=True))
        ours, tokenizer, _ = checkpoint.load(path / "ours.safetensors")
    whole = expanded(model) if conv == "dynamic" else model
    rows = sources(count, len(src_words), seed=-1)
    src, given = padded(rows), torch.randint(4, len(tgt_words), (count, LONGEST))
    given[:, 0] = EOS
    with torch.no_grad():
        theirs = whole(src, torch.tensor(list(map(len, rows))), given)[0]
        gap = (ours(src, src != PAD, given) - theirs).abs().max().item()
    cells = [name, f"{gap:.1e} of {theirs.abs().max():.0f}"]
    ways: list[tuple[Any, bool]] = [(whole, conv != "dynamic")] + ([(model, True)] if conv == "dynamic" else [])
    ended = 0
    for beam in (1, 5):
        settings = SearchSettings(beam_size=beam, max_len_ratio=0.0, max_len_extra=2 * LONGEST + 1, min_len=1)
        with torch.no_grad():
            found = search(ours, src, src != PAD, special=specials(tokenizer), settings=settings)
        mine = [beams[0].ids for beams in found]
        ended = sum(len(ids) < 2 * LONGEST for ids in mine)
        expected = [translate(used, tgt_words, rows, beam, incremental=incremental) for used, incremental in ways]
        same = [sum(map(list.__eq__, mine, each)) for each in expected]
        cells.append(" / ".join(map(str, same)))
    return [*cells, str(ended)]


def main(argv: Sequence[str] | None = None, write: Callable[[str], Any] = print) -> int:
    """Print a row for each model; return 1 if a sentence differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fairseq_agreement", description=__doc__.split("\n")[0])
    parser.add_argument("--fairseq", type=Path, required=True, metavar="TREE", help="folder with the package fairseq")
    parser.add_argument("--sentences", type=int, default=200, metavar="N", help="sentences that are translated")
    parser.add_argument("--steps", type=int, default=60, metavar="N", help="updates by which each model is taught")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    import_fairseq(options.fairseq)
    table = [measure(name, options.sentences, options.steps) for name in CASES]
    head = ["model", "logits", "greedy", "beam 5", "ended"]
    write(markdown_table(head, table, padded=True))
    whole = str(options.sentences)
    return int(any(each != whole for row in table for cell in row[2:4] for each in cell.split(" / ")))


if __name__ == "__main__":
    sys.exit(main())
