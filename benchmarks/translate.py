"""Measure translation on one CPU core: target tokens per CPU-second, ours, CTranslate2's and Hugging Face Marian's.

    python -m benchmarks.translate --out benchmarks/results/translate
    python -m benchmarks.translate --engines onnx:int8 ctranslate2:int8 --cells 1x1 32x5 --rounds 5
    python -m benchmarks.translate --lengths 500 --engines torch:float32 torch:float32:dynamicconv --cells 1x1 8x1

All engines have the sizes of model=base, and all Transformers the same random weights: `seq2seq.export` writes the
peers' models and compares them with ours. A run decodes 25 source tokens to a fixed number of target tokens, the end
included. The engines are separate processes that take turns on the same core, so that other load affects all alike. A
figure is the median of the rounds. The engines need ctranslate2, transformers, onnx, onnxscript and onnxruntime.

An engine is NAME:DTYPE or NAME:DTYPE:MIXER. NAME is torch (a checkpoint as it is), onnx (an export of it, run by ONNX
Runtime), ctranslate2 or marian.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import harness

ENGINES = (
    *("torch:float32", "torch:bfloat16", "onnx:float32", "onnx:int8"),
    *(f"onnx:{dtype}:{mixer}" for mixer in ("lightconv", "dynamicconv", "bahdanau") for dtype in ("float32", "int8")),
    *("ctranslate2:float32", "ctranslate2:int8", "marian:float32", "marian:bfloat16"),
)
VOCABULARY = 32000
SOURCE = 25
# Minimum number of tokens of a run, so that a round of one sentence is longer than a tick of the clock.
_LEAST = 75


class Engine(NamedTuple):
    """Engine to measure: a program, its number format, and the mixer of the model."""

    name: str
    dtype: str
    mixer: str

    @classmethod
    def parse(cls, text: str) -> Engine:
        """Read NAME:DTYPE[:MIXER]."""
        name, *rest = text.split(":")
        if name not in _LOADERS or len(rest) not in (1, 2):
            raise argparse.ArgumentTypeError(f"{text!r} is not NAME:DTYPE[:MIXER] with a NAME of {', '.join(_LOADERS)}")
        return cls(name, rest[0], rest[1] if rest[1:] else "transformer")

    @property
    def label(self) -> str:
        """Name in tables."""
        return ":".join(self if self.mixer != "transformer" else self[:2])


class Cell(NamedTuple):
    """Number of sentences in a batch, and of hypotheses of each."""

    batch: int
    beam: int

    @classmethod
    def parse(cls, text: str) -> Cell:
        """Read BATCHxBEAM."""
        batch, _, beam = text.partition("x")
        return cls(int(batch), int(beam))

    def __str__(self) -> str:
        return f"{self.batch}x{self.beam}"


# Decodes (batch, beam, tokens) and returns the first tokens of the first sentence.
Run = Callable[[int, int, int], list[int]]


def make_loaded(mixer: str) -> Any:
    """Build a base model of random weights, with a tokenizer of as many words as the vocabulary has pieces."""
    import sentencepiece
    import torch

    from seq2seq.checkpoint import Loaded
    from seq2seq.data.tokenizer import Tokenizer
    from seq2seq.metadata import describe
    from seq2seq.network.build import build_model
    from seq2seq.settings.compose import resolved_settings

    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(word) for word in itertools.islice(itertools.product(letters, repeat=4), VOCABULARY - 4)]
    buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(" ".join(words[i : i + 20]) for i in range(0, len(words), 20)),
        model_writer=buffer,
        model_type="word",
        vocab_size=VOCABULARY,
        pad_id=0,
        unk_id=1,
        bos_id=2,
        eos_id=3,
        minloglevel=2,
    )
    tokenizer = Tokenizer(src_model=buffer.getvalue())
    settings = resolved_settings((f"mixer={mixer}", "model=base"))
    sizes = {"src_vocab_size": VOCABULARY, "tgt_vocab_size": VOCABULARY, "pad_id": 0, "joint": True}
    config = {"model": settings["model"], "mixer": settings["mixer"], **sizes}
    torch.manual_seed(0)
    meta = describe(
        model_config=config, tokenizer=tokenizer, src_lang="de", tgt_lang="en", tokenize="13a", data="random"
    )
    return Loaded(build_model(config).eval(), tokenizer, meta)


def prepare(engine: Engine, folder: Path) -> Path:
    """Write the model of an engine unless it exists, and return its path."""
    # The peers convert float32 weights while loading, so one folder serves all number formats
    target = folder / ("-".join(engine) if engine.name == "onnx" else f"{engine.name}-{engine.mixer}")
    if target.exists() or engine.name == "torch":
        return target
    from seq2seq.inference.export.ctranslate2_model import write_ctranslate2
    from seq2seq.inference.export.marian import write_marian
    from seq2seq.inference.export.onnx_graphs import write_onnx
    from seq2seq.system.files import atomic_folder

    loaded = make_loaded(engine.mixer)
    with atomic_folder(target) as part:
        if engine.name == "onnx":
            write_onnx(part, loaded, positions=None, tags=[], dtype=engine.dtype)
        elif engine.name == "ctranslate2":
            write_ctranslate2(part, loaded, positions=None, tags=[])
        else:
            write_marian(part, loaded)
    return target


def sources(batch: int) -> list[list[int]]:
    """Draw sources of SOURCE tokens; the last is the end token."""
    import torch

    drawn = torch.randint(4, VOCABULARY, (batch, SOURCE - 1), generator=torch.Generator().manual_seed(0))
    return [[*row, 3] for row in drawn.tolist()]


def _load_ours(engine: Engine, path: Path) -> Run:
    import torch

    from seq2seq.search import Specials, search
    from seq2seq.settings.search import SearchSettings

    if engine.name == "onnx":
        from seq2seq.inference.model_files import load_model

        model = load_model(path, device="cpu").model
    else:
        from seq2seq.inference.model_files import store_weights_in

        model = make_loaded(engine.mixer).model
        store_weights_in(engine.dtype, model)

    def run(batch: int, beam: int, tokens: int) -> list[int]:
        src = torch.tensor(sources(batch))
        settings = SearchSettings(beam_size=beam, min_len=tokens - 1, max_len_ratio=0, max_len_extra=tokens)
        found = search(model, src, torch.ones_like(src).bool(), special=Specials(2, 3, 0), settings=settings)
        assert all(len(beams[0].ids) == tokens - 1 for beams in found)
        return found[0][0].ids

    return run


def _load_ctranslate2(engine: Engine, path: Path) -> Run:
    from seq2seq.system.packages import require

    translator = require("ctranslate2", "this engine", extra="export").Translator(
        str(path), compute_type=engine.dtype, intra_threads=1, inter_threads=1
    )
    pieces = json.loads((path / "shared_vocabulary.json").read_text("utf-8"))
    number = {piece: i for i, piece in enumerate(pieces)}

    def run(batch: int, beam: int, tokens: int) -> list[int]:
        # CTranslate2 appends the end itself
        lines = [[pieces[i] for i in row[:-1]] for row in sources(batch)]
        limits = {"min_decoding_length": tokens, "max_decoding_length": tokens}
        found = translator.translate_batch(lines, beam_size=beam, **limits)
        assert all(len(each.hypotheses[0]) == tokens for each in found)
        return [number[piece] for piece in found[0].hypotheses[0]]

    return run


def _load_marian(engine: Engine, path: Path) -> Run:
    import torch

    from seq2seq.system.packages import require

    model = (
        require("transformers", "this engine", extra="export")
        .MarianMTModel.from_pretrained(path, dtype=getattr(torch, engine.dtype))
        .eval()
    )

    @torch.inference_mode()
    def run(batch: int, beam: int, tokens: int) -> list[int]:
        src = torch.tensor(sources(batch))
        limits = {"min_new_tokens": tokens, "max_new_tokens": tokens, "max_length": None}
        found = model.generate(src, attention_mask=torch.ones_like(src), num_beams=beam, do_sample=False, **limits)
        # The first token is the start token
        assert found.shape[1] == tokens + 1
        return found[0, 1:].tolist()

    return run


_LOADERS: dict[str, Callable[[Engine, Path], Run]] = {
    "torch": _load_ours,
    "onnx": _load_ours,
    "ctranslate2": _load_ctranslate2,
    "marian": _load_marian,
}


def work(engine: Engine, path: Path) -> None:
    """Decode for each line of standard input, BATCH BEAM TOKENS, and print the rate and the tokens."""
    import torch

    from seq2seq.system.memory import keep_freed_memory

    torch.set_num_threads(1)
    if engine.name in ("torch", "onnx"):
        # As the commands do
        keep_freed_memory()
    run = _LOADERS[engine.name](engine, path)
    for line in sys.stdin:
        batch, beam, tokens = map(int, line.split())
        times = -(-_LEAST // (batch * tokens))
        start = time.process_time()
        for _ in range(times):
            found = run(batch, beam, tokens)
        seconds = time.process_time() - start
        print(json.dumps([times * batch * tokens / seconds, found[: tokens - 1]]), flush=True)


class Worker:
    """An engine in a separate process."""

    def __init__(self, engine: Engine, path: Path, core: int | None) -> None:
        command = [sys.executable, "-m", "benchmarks.translate", "--worker", ":".join(engine), "--work", str(path)]
        pin = ["taskset", "-c", str(core)] if core is not None else []
        # Transparent huge pages help, since a step reads all weights
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "THP_MEM_ALLOC_ENABLE": "1"}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([*pin, *command], stdin=pipe, stdout=pipe, text=True, env=variables)

    def rate(self, cell: Cell, tokens: int) -> tuple[float, list[int]]:
        """Return target tokens per CPU-second, and the tokens of the first sentence."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(*cell, tokens, file=self.process.stdin, flush=True)
        return tuple(json.loads(self.process.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def measure(
    workers: dict[Engine, Worker], cells: list[Cell], tokens: int, rounds: int
) -> dict[Engine, dict[Cell, float]]:
    """Measure the engines in turns in each cell, and compare the float32 translations of equal weights."""
    rates: dict[Engine, dict[Cell, list[float]]] = {engine: {cell: [] for cell in cells} for engine in workers}
    decoded: dict[tuple[Cell, str], list[int]] = {}
    for worker in workers.values():
        worker.rate(Cell(1, 1), tokens)  # warm up
    for _, cell in itertools.product(range(rounds), cells):
        for engine, worker in workers.items():
            rate, found = worker.rate(cell, tokens)
            rates[engine][cell].append(rate)
            if engine.dtype == "float32" and decoded.setdefault((cell, engine.mixer), found) != found:
                print(f"note: {engine.label} decodes other tokens than the first engine, {cell}", file=sys.stderr)
    return {engine: {cell: statistics.median(all_) for cell, all_ in by.items()} for engine, by in rates.items()}


def table(rates: dict[Engine, dict[Cell, float]], cells: list[Cell], tokens: int) -> str:
    """Format the rates, the ratios of ours to each peer, and the ratios of DynamicConv to the Transformer."""
    lines = [f"{tokens} target tokens | " + " | ".join(map(str, cells)), "---|" + "--:|" * len(cells)]
    lines += [f"{engine.label} | " + " | ".join(f"{by[cell]:.0f}" for cell in cells) for engine, by in rates.items()]
    peers = [engine for engine in rates if engine.name in ("ctranslate2", "marian")]
    for engine, peer in itertools.product(rates, [*peers, *rates]):
        comparable = peer.name != engine.name and peer in peers and engine.mixer == "transformer"
        forms = engine[:2] == peer[:2] and peer.mixer == "transformer" and engine.mixer == "dynamicconv"
        if engine not in peers and (comparable or forms):
            ratios = " | ".join(f"{rates[engine][cell] / rates[peer][cell]:.2f}" for cell in cells)
            lines.append(f"{engine.label} / {peer.label} | {ratios}")
    return "\n".join(dict.fromkeys(f"| {line} |" if "---" not in line else f"|{line}" for line in lines))


def main() -> int:
    """Measure, and print tables."""
    parser = harness.parser_for("translate", __doc__)
    parser.add_argument("--engines", nargs="+", type=Engine.parse, default=[Engine.parse(text) for text in ENGINES])
    parser.add_argument(
        "--cells", nargs="+", type=Cell.parse, default=[Cell(1, 1), Cell(1, 5), Cell(32, 1), Cell(32, 5)]
    )
    parser.add_argument("--lengths", nargs="+", type=int, default=[25], help="target tokens")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--core", type=int, help="pin all engines to this core (default: the machine's choice)")
    parser.add_argument("--work", type=Path, help="folder of the engines' models, kept (default: a temporary one)")
    parser.add_argument("--worker", type=Engine.parse, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.work)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        paths = {engine: prepare(engine, folder) for engine in options.engines}
        workers = {engine: Worker(engine, path, options.core) for engine, path in paths.items()}
        results, tables = {}, []
        for tokens in options.lengths:
            rates = measure(workers, options.cells, tokens, options.rounds)
            tables.append(table(rates, options.cells, tokens))
            print(tables[-1], end="\n\n", flush=True)
            results[tokens] = {e.label: {str(cell): rate for cell, rate in by.items()} for e, by in rates.items()}
        for worker in workers.values():
            worker.close()
    result = {"machine": harness.machine(), "rounds": options.rounds, "tokens per CPU-second": results}
    harness.write(options.out, "translate", result, "\n\n".join(tables))
    return 0


if __name__ == "__main__":
    sys.exit(main())
