"""Compare self-attention with small ResNets on scikit-learn's digits, as Cordonnier et al. 2020 did on CIFAR-10.

    python -m benchmarks.digits --updates 600 --seeds 1 2 3 4 5 --out DIR --weights DIR

The fully attentional model has six layers of nine heads on 2 x 2 patches, the mean over positions, and a linear
classifier; its heads see positions by the quadratic encoding, by a learned encoding of offsets, or by a learned
encoding and content. The ResNets halve the image once more and double their width there, as ResNet18 does: one has the
FLOPs of the quadratic model, one its parameters. All are trained by AdamW on the same batches, with the same schedule,
and scored on the same test images. FLOPs are counted for products in a forward pass of one image; seconds are CPU
seconds of the training. `--weights` keeps the trained weights for `python -m benchmarks.image_heads`.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import harness
from seq2seq.images.digits import NAMES, Digits, splits
from seq2seq.images.lines import pack
from seq2seq.network.build import build_model
from seq2seq.network.model import Seq2Seq
from seq2seq.settings.tokenizer import PatchGrid
from seq2seq.system.markdown import markdown_table

GRID = PatchGrid(height=8, width=8)
# Ids of the target: padding, the begin symbol, and ten words.
PAD, BOS, WORDS = 0, 1, 2
HEADER = ("model", "test accuracy", "parameters", "MFLOPs", "CPU seconds")
BATCH = 32
PEAK_LR = 3e-3
# Updates after which the test accuracy is kept.
MOMENTS = (100, 200, 400)
QUADRATIC = {"_target_": "seq2seq.mixers.quadratic.Quadratic", "num_heads": 9}
# Offsets of a grid of 4 x 4 patches are -3 to 3.
LEARNED = {"_target_": "seq2seq.mixers.relative.Relative", "num_heads": 9, "max_offset": 3}


class Attention(nn.Module):
    """Fully attentional classifier of patches (B, 16): logits (B, 10).

    Args:
        mixer: Target and arguments of the self mixer.
        layers: Encoder layers.
        dim: Width.
    """

    def __init__(self, *, mixer: dict[str, Any], layers: int = 6, dim: int = 72) -> None:
        super().__init__()
        sizes = {"dim": dim, "ffn_dim": 2 * dim, "encoder_layers": layers, "decoder_layers": 0, "max_len": 64}
        kind = {"positions": "none", "norm": "pre", "activation": "relu", "tie": "none", "dropout": 0.0}
        settings = {
            "model": sizes | kind,
            "mixer": {"encoder": mixer, "decoder": None, "cross": None},
            "patches": {"height": GRID.height, "width": GRID.width, "size": GRID.size, "bits": GRID.bits},
            **{"src_vocab_size": GRID.vocab_size, "tgt_vocab_size": WORDS + len(NAMES), "pad_id": PAD, "joint": False},
        }
        self.model: Seq2Seq = build_model(settings)

    def forward(self, patches: Tensor) -> Tensor:
        """Return the logits of the word after the begin symbol."""
        begin = patches.new_full((len(patches), 1), BOS)
        return self.model(patches, torch.ones_like(patches).bool(), begin)[:, 0, WORDS:]


class Block(nn.Module):
    """Residual block of two 3 x 3 convolutions, each with batch normalization (He et al. 2016).

    Args:
        inner: Channels of the input.
        outer: Channels of the output; if they are more, the first convolution and the shortcut have stride 2.
    """

    def __init__(self, *, inner: int, outer: int) -> None:
        super().__init__()
        stride = 1 if inner == outer else 2
        self.first = nn.Conv2d(inner, outer, 3, stride=stride, padding=1, bias=False)
        self.second = nn.Conv2d(outer, outer, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outer) for _ in range(2))
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(inner, outer, 1, stride=2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Transform x (B, inner, h, w)."""
        y = self.norms[0](self.first(x)).relu()
        return (self.shortcut(x) + self.norms[1](self.second(y))).relu()


class ResNet(nn.Module):
    """Residual network on images (B, 1, 8, 8): logits (B, 10).

    A convolution of stride 2 in place of the patches, two blocks on 4 x 4 positions, two of twice the channels on
    2 x 2, and a linear classifier of the mean over positions.

    Args:
        width: Channels of the first two blocks.
    """

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 2, stride=2, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        widths = [width, width, width, 2 * width, 2 * width]
        pairs = itertools.pairwise(widths)
        self.blocks = nn.Sequential(*(Block(inner=inner, outer=outer) for inner, outer in pairs))
        self.out = nn.Linear(2 * width, len(NAMES))

    def forward(self, pixels: Tensor) -> Tensor:
        """Classify by the mean over positions."""
        return self.out(self.blocks(self.stem(pixels)).mean((2, 3)))


class Subject(NamedTuple):
    """A model to train: its name, how to make it, and its input of digits."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[Digits], Tensor]


def patches(digits: Digits) -> Tensor:
    """Return the images as ids of patches, (N, 16)."""
    return torch.from_numpy(pack(digits.pixels, GRID))


def pixels(digits: Digits) -> Tensor:
    """Return the images as values between -1 and 1, (N, 1, 8, 8)."""
    return torch.from_numpy(digits.pixels).float()[:, None] / 127.5 - 1


SUBJECTS = (
    Subject("quadratic", lambda: Attention(mixer=QUADRATIC), patches),
    Subject("learned", lambda: Attention(mixer=LEARNED | {"content": False}), patches),
    Subject("learned + content", lambda: Attention(mixer=LEARNED), patches),
    Subject("ResNet, equal FLOPs", lambda: ResNet(width=53), pixels),
    Subject("ResNet, equal parameters", lambda: ResNet(width=34), pixels),
)


def train(
    model: nn.Module, x: Tensor, labels: Tensor, *, updates: int, seed: int, at: Callable[[int], None] | None = None
) -> float:
    """Train on batches that the seed draws, with warm-up and cosine decay, and return the CPU seconds.

    Args:
        at: Called after each update with its number; its time does not count.
    """
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_LR, total_steps=updates + 1, pct_start=0.1)
    seconds = 0.0
    for update in range(1, updates + 1):
        start = time.process_time()
        model.train()
        rows = torch.randint(len(x), (BATCH,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), labels[rows]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        seconds += time.process_time() - start
        if at is not None:
            at(update)
    return seconds


def accuracy(model: nn.Module, x: Tensor, labels: Tensor) -> float:
    """Return the share of images x whose class is right."""
    model.eval()
    with torch.no_grad():
        return float((model(x).argmax(-1) == labels).float().mean())


def measure(
    subject: Subject, digits: dict[str, Digits], *, updates: int, seed: int, weights: Path | None = None
) -> dict[str, Any]:
    """Train one model, and return its accuracy on the test images, also on the way, and its cost."""
    torch.manual_seed(seed)
    model = subject.make()
    labels = {split: torch.from_numpy(part.labels) for split, part in digits.items()}
    test = subject.inputs(digits["test"])
    curve: dict[int, float] = {}

    def score(update: int) -> None:
        if update in MOMENTS:
            curve[update] = accuracy(model, test, labels["test"])

    x = subject.inputs(digits["train"])
    seconds = train(model, x, labels["train"], updates=updates, seed=seed, at=score)
    found = accuracy(model, test, labels["test"])
    if weights:
        weights.mkdir(parents=True, exist_ok=True)
        # Tensors of one storage, such as expanded ones, are copied
        state = {name: each.clone() for name, each in model.state_dict().items()}
        save_file(state, weights / file_of(subject.name, seed))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(test[:1])
    return {
        "model": subject.name,
        "seed": seed,
        "accuracy": found,
        "curve": curve,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "flops": counter.get_total_flops(),
        "seconds": seconds,
    }


def file_of(name: str, seed: int) -> str:
    """Return the file name of the weights of a model."""
    return f"{name.replace(' ', '_')}-{seed}.safetensors"


def _cells(scores: list[dict[str, Any]]) -> list[str]:
    """Format the runs of one model: mean accuracy, with the lowest and the highest of several seeds."""
    accuracies = [score["accuracy"] for score in scores]
    mean = sum(accuracies) / len(scores)
    spread = f" ({min(accuracies):.1%} to {max(accuracies):.1%})" if len(scores) > 1 else ""
    return [
        scores[0]["model"],
        f"{mean:.1%}{spread}",
        f"{scores[0]['parameters']:,}",
        f"{scores[0]['flops'] / 1e6:.2f}",
        f"{sum(score['seconds'] for score in scores) / len(scores):.0f}",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Train every model with every seed, and print the table."""
    parser = harness.parser_for("digits", __doc__)
    parser.add_argument("--updates", type=int, default=600, metavar="N", help=f"of {BATCH} images each (600)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], metavar="N", help="one run of each model each (1)")
    parser.add_argument("--held-out", type=int, default=300, metavar="N", help="images to test on (300)")
    parser.add_argument("--weights", type=Path, metavar="DIR", help="keep the trained weights here")
    names = [subject.name for subject in SUBJECTS]
    parser.add_argument("--models", nargs="+", choices=names, default=names, metavar="NAME", help=f"{', '.join(names)}")
    options = parser.parse_args(arguments)
    subjects = [subject for subject in SUBJECTS if subject.name in options.models]
    digits = splits(held_out=options.held_out, seed=1)
    results = []
    # Seeds first: what an interrupted run printed compares all models
    for seed, subject in itertools.product(options.seeds, subjects):
        results.append(measure(subject, digits, updates=options.updates, seed=seed, weights=options.weights))
        print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    rows = [_cells([each for each in results if each["model"] == subject.name]) for subject in subjects]
    table = markdown_table(HEADER, rows, right=HEADER[1:])
    print(table)
    harness.write(options.out, "digits", {"machine": harness.machine(), "runs": results}, table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
