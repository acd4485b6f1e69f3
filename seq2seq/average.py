"""Average the weights of checkpoints: the last ones of a run are often better together than the best one alone."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seq2seq.cli import Parser, UsageError, exit_status, fail, positive, require_output
from seq2seq.experiments.folder import step_checkpoints

if TYPE_CHECKING:
    import torch

EPILOG = """\
Examples:
  python -m seq2seq.average --out mean.ckpt a.ckpt b.ckpt c.ckpt
  python -m seq2seq.average --last 5 runs/wmt-...           # writes checkpoints/average.ckpt in the run

--last takes the run's latest checkpoints/step-*.ckpt, which training keeps with trainer.keep_last=5.
The mean is taken in float64 and stored in the type of the first checkpoint. The result translates, is scored, and can
be fine-tuned (init_from) as any other. Exit status: 0 done; 2 wrong options or files; 130 interrupted."""

# What the `seq2seq` entries of checkpoints must agree in; the data's name and versions may differ.
_SAME = ("format", "model", "tokenizer", "src_lang", "tgt_lang", "tokenize")
# What training calls its checkpoints.
_TRAINING = r"(last|best|step-\d+|top-\d+)\.ckpt"


def _parser() -> Parser:
    parser = Parser(prog="python -m seq2seq.average", description=__doc__, epilog=EPILOG)
    parser.add_argument("checkpoints", nargs="+", metavar="CKPT", help="checkpoints; with --last, one run's folder")
    parser.add_argument("--last", type=positive, metavar="N", help="the latest N checkpoints of the run")
    parser.add_argument("--out", metavar="FILE", help="checkpoint to write (with --last: checkpoints/average.ckpt)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.last and len(options.checkpoints) > 1:
        parser.error("--last N takes one run's folder")
    if not options.last and not options.out:
        parser.error("--out says where the average is written")
    try:
        return exit_status(lambda: _run(options))
    except ValueError as error:
        return fail(error)


def _run(options: argparse.Namespace) -> int:
    paths = [Path(path) for path in options.checkpoints]
    out = Path(options.out) if options.out else paths[0] / "checkpoints" / "average.ckpt"
    if options.last:
        paths = latest(paths[0], options.last)
    require_output(out, "--out", inputs=paths)
    if _is_of_training(out):
        raise UsageError(f"--out {out} is a checkpoint of a run; choose another file")
    from seq2seq import checkpoint
    from seq2seq.experiments.folder import translate_command

    checkpoint.save(out, average(paths))
    print(f"the mean of {', '.join(str(path) for path in paths)}")
    print(f"translate with: {translate_command(out)}")
    return 0


def _is_of_training(path: Path) -> bool:
    """Whether a run wrote the file `path`, and may need it."""
    place = path.resolve()
    return place.is_file() and place.parent.name == "checkpoints" and bool(re.fullmatch(_TRAINING, place.name))


def latest(run: Path, count: int) -> list[Path]:
    """The `count` latest step checkpoints of a run, oldest first; UsageError if it kept fewer."""
    if not run.is_dir():
        raise UsageError(f"{run} is no run's folder; without --last, name checkpoints and --out")
    found = step_checkpoints(run / "checkpoints")
    if len(found) < count:
        raise UsageError(
            f"{run} kept {len(found)} step checkpoints, not {count}; train with trainer.keep_last={count}, "
            "or name the checkpoints to average"
        )
    return found[-count:]


def average(paths: Sequence[Path]) -> dict[str, Any]:
    """A checkpoint's dictionary with w = (1 / n) sum_i w_i for every weight, summed in float64.

    ValueError, naming the file, unless all are checkpoints of one model, tokenizer and direction. One is in memory at a
    time, beside the sums.
    """
    from seq2seq import checkpoint

    if len(paths) < 2:
        raise UsageError(f"an average needs two checkpoints or more, not {len(paths)}")
    first = checkpoint.read(paths[0])
    sums = {name: weight.double() if weight.is_floating_point() else weight for name, weight in _weights(first).items()}
    for path in paths[1:]:
        payload = checkpoint.read(path)
        _require_same(first[checkpoint.KEY], payload[checkpoint.KEY], paths[0], path)
        _add(sums, _weights(payload), paths[0], path)
    mean = {
        name: (sums[name] / len(paths)).to(weight.dtype) if weight.is_floating_point() else weight
        for name, weight in _weights(first).items()
    }
    return {"state_dict": mean, checkpoint.KEY: first[checkpoint.KEY]}


def _weights(payload: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return dict(payload["state_dict"])


def _require_same(one: Mapping[str, Any], other: Mapping[str, Any], first: Path, path: Path) -> None:
    from seq2seq.config.dicts import differences

    for key in _SAME:
        if one.get(key) == other.get(key):
            continue
        if key == "tokenizer":
            raise ValueError(f"{path} has another tokenizer than {first}; average checkpoints of one run")
        name, mine, theirs = next(differences({key: one.get(key)}, {key: other.get(key)}))
        raise ValueError(
            f"{path} cannot be averaged with {first}: {name} is {theirs} there and {mine} here; "
            "average checkpoints of one model"
        )


def _add(sums: dict[str, torch.Tensor], weights: dict[str, torch.Tensor], first: Path, path: Path) -> None:
    if sums.keys() != weights.keys():
        odd = sorted(sums.keys() ^ weights.keys())[0]
        raise ValueError(f"{path} and {first} have different weights ({odd}); average checkpoints of one model")
    for name, weight in weights.items():
        if weight.shape != sums[name].shape:
            raise ValueError(f"{path}: weight '{name}' has shape {tuple(weight.shape)}, in {first} another")
        if weight.is_floating_point():
            sums[name] += weight
        elif not weight.equal(sums[name]):
            raise ValueError(f"{path}: '{name}' holds whole numbers that differ from those of {first}: no mean of them")


if __name__ == "__main__":
    sys.exit(main())
