"""Compare finished runs: BLEU, sentences a second in translation, target tokens a second in training.

    python -m benchmarks.run_speed runs/multi30k-* --sentences 500 --out benchmarks/results/run_speed
    python -m benchmarks.run_speed runs/short-* --tokens 15    # runs of a few updates, at the lengths of long ones
    python -m benchmarks.run_speed runs/q3_base-*-1 --sentences 1000 --rounds 5 --updates 0 --int8
    python -m benchmarks.run_speed runs/q3_base-*-1 --sentences 1000 --rounds 5 --device cuda

Wu et al. 2019 report speed with BLEU in the same way (section 6.2). The sentences are the first of the test set, which
all runs must share. All runs take turns, since the speed of a shared machine drifts; figures are medians over the
rounds. On a CPU all work on one thread, and figures are per CPU-second. Training makes whole updates with the run's
optimizer, batch size, accumulation windows and precision, without averaging weights. Translation uses the best
checkpoint in float32, with a beam of 1 and with the run's beam; --int8 adds its ONNX export in int8. On a GPU
translation alone is measured, in bfloat16, per second. With --tokens every translation has this length, so that speed
does not depend on what the model has learned; BLEU is left out.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from seq2seq.training.machine.environment import VARIABLES

# Set before torch is imported
os.environ.update(VARIABLES | os.environ)

import torch

from benchmarks import harness
from seq2seq import checkpoint
from seq2seq.data.batching import Batch, Ragged, collate, token_batches
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.inference.export.card import Origin
from seq2seq.inference.export.formats import export_model
from seq2seq.inference.translator import Translator
from seq2seq.metrics.scorers import bleu, tokenize_for
from seq2seq.network.build import hidden_matrices
from seq2seq.runs.results import RunResult, collect, read_origin
from seq2seq.settings.declare import read_section
from seq2seq.settings.optim import OptimSettings
from seq2seq.settings.search import SearchSettings
from seq2seq.settings.trainer import TrainerSettings
from seq2seq.system.markdown import markdown_table
from seq2seq.system.memory import keep_freed_memory
from seq2seq.training.make_trainer import prepare_for_training
from seq2seq.training.objective.batch_loss import sum_losses
from seq2seq.training.objective.optim import build_optimizer, scale_and_clip

# The sentences are repeated until they fill at least this many batches.
_FULL = 10
# Beams of translation; None is the run's own.
_BEAMS = {"greedy": 1, "beam": None}


class Training:
    """Updates of a run's model with the run's batch size; a call makes some and returns their target tokens.

    Args:
        run: A finished run.
        sentences: Number of pairs of its test set that are trained on repeatedly.
        updates: Updates of a call.
    """

    def __init__(self, run: RunResult, sentences: int, updates: int) -> None:
        loaded = checkpoint.load(run.folder.best)
        self.model, self.updates = loaded.model.train(), updates
        self.settings = read_section(OptimSettings, run.config["optim"], "optim")
        self.optimizer = build_optimizer(self.model.parameters(), self.settings, hidden_matrices(self.model))
        precision = str(run.results["precision"])
        self.autocast = precision == "bf16-mixed"
        if precision == "bf16-true":
            self.model.bfloat16()
        trainer = read_section(TrainerSettings, run.config["trainer"], "trainer")
        prepare_for_training(self.model, trainer)
        self.window = int(run.results.get("accumulate", trainer.accumulate))
        max_tokens = int(run.results["max_tokens"])
        self.batches = itertools.cycle(_batches(run, loaded.tokenizer, sentences, max_tokens))

    def __call__(self) -> int:
        """Train, and return the target tokens."""
        tokens = 0
        for _ in range(self.updates):
            count = 0
            for batch in itertools.islice(self.batches, self.window):
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.autocast):
                    sums = sum_losses(self.model, batch, self.settings)
                sums.loss.backward()
                count += int(sums.tokens)
            scale_and_clip(self.model.parameters(), torch.tensor(1 / count), clip_norm=self.settings.clip_norm)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            tokens += count
        return tokens


def _batches(run: RunResult, tokenizer: Tokenizer, sentences: int, max_tokens: int) -> Iterator[Batch]:
    sides = [run.test_lines(side)[:sentences] for side in ("src", "ref")]
    encoded = [tokenizer.encode_src(sides[0]), tokenizer.encode_tgt(sides[1])]
    # Sentences are repeated so that nearly all batches are full
    times = 1 + _FULL * max_tokens // sum(map(len, encoded[1]))
    src, tgt = (Ragged.from_rows(rows * times) for rows in encoded)
    for index in token_batches(src.lengths, tgt.lengths, max_tokens=max_tokens):
        yield collate(src.select(index), tgt.select(index), index, pad_id=tokenizer.pad_id, bos_id=tokenizer.bos_id)


def search_settings(run: RunResult, *, beam_size: int | None, tokens: int | None) -> SearchSettings:
    """Return a run's search with another beam and lengths.

    Args:
        beam_size: Beam size (None: the run's own).
        tokens: Target tokens of every translation, its end not counted (None: as many as the model writes).
    """
    settings = read_section(SearchSettings, run.config["search"], "search")
    if beam_size is not None:
        settings = dataclasses.replace(settings, beam_size=beam_size)
    if tokens is not None:
        settings = dataclasses.replace(settings, min_len=tokens, max_len_ratio=0.0, max_len_extra=tokens + 1)
    return settings


class Translation:
    """Translation of some of a run's test set; a call makes it once and returns the number of sentences.

    Args:
        run: A finished run.
        model: Its checkpoint, or the folder of its export.
        sentences: Number of sentences.
        settings: Settings of the search.
        device: `cpu` for float32, `cuda` for bfloat16.
    """

    def __init__(self, run: RunResult, model: Path, *, sentences: int, settings: SearchSettings, device: str) -> None:
        dtype = "float32" if device == "cpu" else "bfloat16"
        self.translator = Translator.load(model, device=device, dtype=dtype, settings=settings)
        self.lines, self.references = (run.test_lines(side)[:sentences] for side in ("src", "ref"))
        data = run.config["data"]
        self.tokenize = tokenize_for(str(data["tgt"]), data["tokenize"])
        self.found: list[str] = []

    def __call__(self) -> int:
        """Translate, and return the number of sentences."""
        self.found = self.translator.texts(self.lines)
        return len(self.found)

    @property
    def bleu(self) -> float:
        """BLEU of the last translations."""
        return bleu(self.found, self.references, tokenize=self.tokenize).value


def export_int8(run: RunResult, out: Path) -> Path:
    """Write a run's ONNX export in int8 to the folder `out`, and return it."""
    best = run.folder.best
    export_model(str(best), out, format="onnx", origin=Origin(*read_origin(best)), dtype="int8")
    return out


def measure(
    contestants: Mapping[tuple[Path, str], Callable[[], int]],
    rounds: int,
    clock: Callable[[], float],
) -> dict[tuple[Path, str], float]:
    """Return each contestant's median rate over `rounds` in which all take turns.

    A first round, which compiles kernels, is not counted.

    Args:
        contestants: Calls by run and kind of work; each returns the amount of work that it did.
        clock: time.process_time for rates per CPU-second, or time.perf_counter.
    """
    rates: dict[tuple[Path, str], list[float]] = {key: [] for key in contestants}
    for turn in range(rounds + 1):
        for key, work in contestants.items():
            began = clock()
            done = work()
            if turn:
                rates[key].append(done / (clock() - began))
    return {key: statistics.median(values) for key, values in rates.items()}


def main() -> int:
    """Print a row for each run."""
    parser = harness.parser_for("run_speed", __doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folders of finished runs, or globs")
    parser.add_argument("--sentences", type=int, default=500, help="of the test set (500)")
    parser.add_argument("--updates", type=int, default=10, help="of training in a round; 0: no training (10)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that are measured (3)")
    parser.add_argument("--tokens", type=int, metavar="N", help="target tokens of every translation (the model's own)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: translation alone (cpu)")
    parser.add_argument("--int8", action="store_true", help="also translate with the ONNX export in int8, on the CPU")
    options = parser.parse_args()
    on_cpu = options.device == "cpu"
    if options.int8 and not on_cpu:
        parser.error("--int8 is measured on the CPU: leave out --device cuda")
    found = collect(options.runs, "test")
    for name, reason in found.unusable:
        print(f"left out: {name}: {reason}", file=sys.stderr)
    runs = found.runs
    digests = {run.test_digest() for run in runs}
    if len(digests) != 1 or None in digests:
        reason = "no run is" if not runs else "one has not saved its text" if None in digests else "theirs differ"
        parser.error(f"name finished runs with one test set: {reason}")
    if on_cpu:
        torch.set_num_threads(1)
        keep_freed_memory()
    trained: dict[tuple[Path, str], Training] = {}
    translated: dict[tuple[Path, str], Translation] = {}
    with tempfile.TemporaryDirectory() as folder:
        for index, run in enumerate(runs):
            path = run.folder.path
            if options.updates and on_cpu:
                trained[path, "training"] = Training(run, options.sentences, options.updates)
            models = {"": run.folder.best}
            if options.int8:
                models["int8_"] = export_int8(run, Path(folder) / str(index))
            for (number, model), (name, beam_size) in itertools.product(models.items(), _BEAMS.items()):
                settings = search_settings(run, beam_size=beam_size, tokens=options.tokens)
                translated[path, number + name] = Translation(
                    run, model, sentences=options.sentences, settings=settings, device=options.device
                )
        clock = time.process_time if on_cpu else time.perf_counter
        rates = measure({**trained, **translated}, options.rounds, clock)
    second = "cpu_second" if on_cpu else "second"
    kinds = dict.fromkeys(kind for _, kind in rates)
    rows = []
    for run in runs:
        row = {"run": run.name, "mixer": run.mixer, "parameters": run.number("parameters")}
        for kind in kinds:
            rate = rates[run.folder.path, kind]
            if kind == "training":
                row[f"target_tokens_per_{second}"] = rate
                continue
            row[f"sentences_per_{second}_{kind}"] = rate
            # BLEU of models after a few updates would mislead
            if options.tokens is None:
                row[f"bleu_{kind}"] = translated[run.folder.path, kind].bleu
        rows.append(row)
    titles = {
        "parameters": "parameters",
        f"target_tokens_per_{second}": "training: target tokens/s",
        **{f"sentences_per_{second}_{kind}": f"{kind.replace('_', ', ')}: sentences/s" for kind in kinds},
        **{f"bleu_{kind}": "BLEU" for kind in kinds},
    }
    shown = [name for name in rows[0] if name in titles]
    cells = [[f"`{row['mixer']}`", *(_cell(name, row[name]) for name in shown)] for row in rows]
    header = [titles[name] for name in shown]
    table = markdown_table(["mixer", *header], cells, right=header)
    print(table)
    given = {key: getattr(options, key) for key in ("sentences", "updates", "rounds", "tokens")}
    harness.write(options.out, "run_speed", {"machine": harness.machine(options.device), **given, "runs": rows}, table)
    return 0


def _cell(name: str, value: float) -> str:
    if name == "parameters":
        return f"{value / 1e6:.2f}M"
    if name.startswith("bleu"):
        return f"{value:.2f}"
    return f"{value:,.0f}" if name.startswith("target") else f"{value:,.1f}"


if __name__ == "__main__":
    sys.exit(main())
