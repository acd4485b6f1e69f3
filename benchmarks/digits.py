"""Compare self-attention with a small ResNet on scikit-learn's digits: classification as translation into one word.

    python -m benchmarks.digits --updates 400

The fully attentional model is this project's, with an encoder of `quadratic` on 2 x 2 patches and a decoder that reads
the image to write one word of ten; with and without heads that start at the taps of a 3 x 3 kernel. The ResNet has as
many FLOPs: a convolution of stride 2 in place of the patches, residual blocks of two 3 x 3 convolutions, and the mean
over positions. All are trained by AdamW on the same batches, with the same schedule, and scored on the same test
images. FLOPs are counted for products in a forward pass of one image; seconds are CPU seconds of the training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import harness
from seq2seq.images.digits import NAMES, Digits, splits
from seq2seq.images.lines import pack
from seq2seq.network.build import build_model
from seq2seq.settings.tokenizer import PatchGrid
from seq2seq.system.markdown import markdown_table

GRID = PatchGrid(height=8, width=8)
# Ids of the target: ten words, the begin symbol, and padding.
BOS, PAD = len(NAMES), len(NAMES) + 1
HEADER = ("model", "test accuracy", "parameters", "MFLOPs", "CPU seconds")
BATCH = 64
PEAK_LR = 2e-3


class Attention(nn.Module):
    """Translation of patches (B, 16) into one word: logits (B, 10).

    Args:
        layers: Encoder layers, of nine heads each; the decoder has one layer.
        taps: Start the heads at the taps of a 3 x 3 kernel instead of at random.
        dim: Width.
    """

    def __init__(self, *, layers: int, taps: bool, dim: int = 72) -> None:
        super().__init__()
        sizes = {"dim": dim, "ffn_dim": 2 * dim, "encoder_layers": layers, "decoder_layers": 1, "max_len": 64}
        kind = {"positions": "sinusoidal", "src_positions": "grid", "norm": "pre", "activation": "relu", "tie": "none"}
        off = {"dropout": 0.0, "activation_dropout": 0.0, "residual": True, "scale_embedding": True}
        quadratic = {"_target_": "seq2seq.mixers.quadratic.Quadratic", "num_heads": 9}
        heads = quadratic | ({"center_std": None} if taps else {})
        cross = {"_target_": "seq2seq.mixers.attention.CrossAttention", "num_heads": 9}
        settings = {
            "model": sizes | kind | off,
            "mixer": {"encoder": heads, "decoder": None, "cross": cross},
            "patches": {"height": GRID.height, "width": GRID.width, "size": GRID.size, "bits": GRID.bits},
            **{"src_vocab_size": GRID.vocab_size, "tgt_vocab_size": PAD + 1, "pad_id": PAD, "joint": False},
        }
        self.model = build_model(settings)

    def forward(self, patches: Tensor) -> Tensor:
        """Return the logits of the word after the begin symbol."""
        begin = patches.new_full((len(patches), 1), BOS)
        return self.model(patches, torch.ones_like(patches).bool(), begin)[:, 0, : len(NAMES)]


class Block(nn.Module):
    """Residual block of two 3 x 3 convolutions, each with batch normalization (He et al. 2016)."""

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Transform x (B, C, h, w)."""
        y = self.norms[0](self.convs[0](x)).relu()
        return (x + self.norms[1](self.convs[1](y))).relu()


class ResNet(nn.Module):
    """Residual network on images (B, 1, 8, 8): logits (B, 10).

    Args:
        blocks: Number of blocks.
        width: Channels.
    """

    def __init__(self, *, blocks: int, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 2, stride=2, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.blocks = nn.Sequential(*(Block(width=width) for _ in range(blocks)))
        self.out = nn.Linear(width, len(NAMES))

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


# Widths with about the same cost of a forward pass; the table shows the cost.
SUBJECTS = (
    Subject("quadratic, heads at the taps", lambda: Attention(layers=4, taps=True), patches),
    Subject("quadratic, heads at random", lambda: Attention(layers=4, taps=False), patches),
    Subject("ResNet of 4 blocks", lambda: ResNet(blocks=4, width=44), pixels),
)


def train(model: nn.Module, x: Tensor, labels: Tensor, *, updates: int, seed: int) -> float:
    """Train on batches that the seed draws, with warm-up and cosine decay, and return the CPU seconds."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_LR, total_steps=updates + 1, pct_start=0.1)
    model.train()
    start = time.process_time()
    for _ in range(updates):
        rows = torch.randint(len(x), (BATCH,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), labels[rows]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return time.process_time() - start


def measure(subject: Subject, digits: dict[str, Digits], *, updates: int, seed: int) -> dict[str, Any]:
    """Train one model, and return its accuracy on the test images and its cost."""
    torch.manual_seed(seed)
    model = subject.make()
    labels = {split: torch.from_numpy(part.labels) for split, part in digits.items()}
    seconds = train(model, subject.inputs(digits["train"]), labels["train"], updates=updates, seed=seed)
    model.eval()
    test = subject.inputs(digits["test"])
    with torch.no_grad():
        right = model(test).argmax(-1) == labels["test"]
        with FlopCounterMode(display=False) as counter:
            model(test[:1])
    return {
        "model": subject.name,
        "seed": seed,
        "accuracy": float(right.float().mean()),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "flops": counter.get_total_flops(),
        "seconds": seconds,
    }


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
    parser.add_argument("--updates", type=int, default=400, metavar="N", help=f"of {BATCH} images each (400)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], metavar="N", help="one run of each model each (1)")
    parser.add_argument("--held-out", type=int, default=300, metavar="N", help="images to test on (300)")
    options = parser.parse_args(arguments)
    digits = splits(held_out=options.held_out, seed=1)
    rows = []
    results = []
    for subject in SUBJECTS:
        scores = [measure(subject, digits, updates=options.updates, seed=seed) for seed in options.seeds]
        rows.append(_cells(scores))
        results += scores
    table = markdown_table(HEADER, rows, right=HEADER[1:])
    print(table)
    harness.write(options.out, "digits", {"machine": harness.machine(), "runs": results}, table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
