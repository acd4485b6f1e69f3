"""Folders of fairseq's checkpoints with random weights, and its equations written out position by position."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

DIM, HEADS, FFN = 8, 2, 12
KERNELS = {"encoder": [3, 5], "decoder": [3, 4]}
SYMBOLS = ["<s>", "<pad>", "</s>", "<unk>"]
# Whole words, pieces, and the words that make a dictionary's size a multiple of 8
WORDS = {
    "de": ["low", "er", "low@@", "ne@@", ".", ",", "x", "xx@@", "q", "w", "madeupword0000", "madeupword0001"],
    "en": ["the", "l@@", "ow@@", "."],
}
CODES = "#version: 0.2\nl o\nlo w</w>\ne r</w>\nlo w\nn e\nx x\n"

State = dict[str, Tensor]


def arguments(**changed: Any) -> dict[str, Any]:
    """Arguments of a training, as a checkpoint keeps them, with many that no importer needs."""
    heads = {f"{side}_attention_heads": HEADS for side in ("encoder", "decoder")}
    kept = {"arch": "any", "source_lang": "de", "target_lang": "en", "dropout": 0.3, "lr": [0.1], "fp16": True}
    return {**kept, **heads, **changed}


def write_fairseq(folder: Path, args: dict[str, Any], *, conv: str | None = None, glu: bool = True) -> State:
    """Write model.pt, the dictionaries and the codes; return the weights.

    Args:
        conv: "light" or "dynamic"; None for attention.
    """
    folder.mkdir(exist_ok=True)
    state = random_state(args, conv=conv, glu=glu)
    for lang in ("de", "en"):
        words = WORDS["de" if args.get("share_all_embeddings") else lang]
        (folder / f"dict.{lang}.txt").write_text("".join(f"{word} 9\n" for word in words))
    (folder / "bpecodes").write_text(CODES)
    torch.save(checkpoint_of(args, state), folder / "model.pt")
    return state


def checkpoint_of(args: dict[str, Any], state: State) -> dict[str, Any]:
    """What fairseq saves, besides much that is plain."""
    history = [{"criterion_name": "X", "num_updates": 1, "lr_scheduler_state": {"best": None}}]
    return {"args": argparse.Namespace(**args), "model": state, "optimizer_history": history, "extra_state": {}}


def random_state(args: dict[str, Any], *, conv: str | None, glu: bool) -> State:
    """Draw all weights of a model, biases and norms included."""
    torch.manual_seed(3)
    state: State = {}

    def draw(name: str, *sizes: int, bias: bool = True) -> None:
        state[f"{name}.weight"] = torch.randn(*sizes) if len(sizes) > 1 else torch.rand(*sizes) + 0.5
        if bias:
            state[f"{name}.bias"] = torch.randn(next(iter(sizes)))

    for side in ("encoder", "decoder"):
        lang = "de" if side == "encoder" or args.get("share_all_embeddings") else "en"
        rows = len(WORDS[lang]) + len(SYMBOLS)
        draw(f"{side}.embed_tokens", rows, DIM, bias=False)
        state[f"{side}.version"] = torch.tensor([3.0])
        if args.get(f"{side}_learned_pos"):
            draw(f"{side}.embed_positions", 32, DIM, bias=False)
        else:
            state[f"{side}.embed_positions._float_tensor"] = torch.zeros(1)
        for layer in range(2):
            at = f"{side}.layers.{layer}"
            if conv:
                draw(f"{at}.linear1", DIM * (2 if glu else 1), DIM)
                draw(f"{at}.linear2", DIM, DIM)
                size = KERNELS[side][layer]
                if conv == "dynamic":
                    draw(f"{at}.conv.weight_linear", HEADS * size, DIM, bias=False)
                    # Stored without a value, and never added
                    state[f"{at}.conv.conv_bias"] = torch.full((1, 1, DIM), math.nan)
                else:
                    draw(f"{at}.conv", HEADS, 1, size, bias=False)
            readers = ["encoder_attn"] if side == "decoder" else []
            for attn in [*readers, *([] if conv else ["self_attn"])]:
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    draw(f"{at}.{attn}.{part}", DIM, DIM)
            draw(f"{at}.fc1", FFN, DIM)
            draw(f"{at}.fc2", DIM, FFN)
            for norm in norms(side, conv):
                draw(f"{at}.{norm}", DIM)
        if args.get(f"{side}_normalize_before"):
            draw(f"{side}.layer_norm", DIM)
    if args.get("share_all_embeddings"):
        state["decoder.embed_tokens.weight"] = state["encoder.embed_tokens.weight"]
    shared = args.get("share_all_embeddings") or args.get("share_decoder_input_output_embed")
    table = state["decoder.embed_tokens.weight"]
    state["decoder.output_projection.weight"] = table if shared else torch.randn_like(table)
    return state


def norms(side: str, conv: str | None) -> list[str]:
    """The names of a layer's norms: of its self mixer, of reading the source, of its feed-forward."""
    if side == "encoder":
        return ["layer_norm1", "layer_norm2"] if conv else ["self_attn_layer_norm", "final_layer_norm"]
    return ["conv_layer_norm" if conv else "self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"]


class Reference:
    """fairseq's model for one sentence: x is a list of vectors, one a position."""

    def __init__(self, state: State, args: dict[str, Any], *, conv: str | None = None) -> None:
        self.state = state
        self.args = args
        self.conv = conv

    def logits(self, src: list[int], given: list[int]) -> Tensor:
        """The logits after each given target token, (T, V)."""
        memory = self.stack("encoder", src, None)
        return torch.stack(
            [self.state["decoder.output_projection.weight"] @ x for x in self.stack("decoder", given, memory)]
        )

    def stack(self, side: str, tokens: list[int], memory: list[Tensor] | None) -> list[Tensor]:
        """The layers of one side."""
        scale = 1.0 if self.args.get("no_scale_embedding") else math.sqrt(DIM)
        table = self.state[f"{side}.embed_tokens.weight"]
        x = [scale * table[token] + self.position(side, t) for t, token in enumerate(tokens)]
        for layer in range(2):
            at = f"{side}.layers.{layer}"
            names = norms(side, self.conv)
            x = self.sublayer(f"{at}.{names[0]}", side, x, lambda z, at=at: self.mix(at, side, z))
            if memory is not None:
                read = lambda z, at=at: self.attend(f"{at}.encoder_attn", z, memory, causal=False)  # noqa: E731
                x = self.sublayer(f"{at}.{names[1]}", side, x, read)
            x = self.sublayer(f"{at}.{names[-1]}", side, x, lambda z, at=at: [self.feed(at, each) for each in z])
        if self.args.get(f"{side}_normalize_before"):
            x = [self.norm(f"{side}.layer_norm", each) for each in x]
        return x

    def sublayer(self, norm: str, side: str, x: list[Tensor], f: Any) -> list[Tensor]:
        """A residual with its norm before or after."""
        if self.args.get(f"{side}_normalize_before"):
            return [a + b for a, b in zip(x, f([self.norm(norm, each) for each in x]), strict=True)]
        return [self.norm(norm, a + b) for a, b in zip(x, f(x), strict=True)]

    def position(self, side: str, t: int) -> Tensor:
        """The encoding of position t; row 1 of the table is for padding."""
        if self.args.get(f"{side}_learned_pos"):
            return self.state[f"{side}.embed_positions.weight"][t + 2]
        rates = [math.exp(-i * math.log(10000) / (DIM // 2 - 1)) for i in range(DIM // 2)]
        waves = [wave((t + 2) * rate) for wave in (math.sin, math.cos) for rate in rates]
        return torch.tensor(waves)

    def norm(self, name: str, x: Tensor) -> Tensor:
        """A layer norm."""
        y = (x - x.mean()) / ((x - x.mean()).square().mean() + 1e-5).sqrt()
        return y * self.state[f"{name}.weight"] + self.state[f"{name}.bias"]

    def linear(self, name: str, x: Tensor) -> Tensor:
        """A linear layer."""
        return self.state[f"{name}.weight"] @ x + self.state[f"{name}.bias"]

    def feed(self, at: str, x: Tensor) -> Tensor:
        """The feed-forward of one position."""
        return self.linear(f"{at}.fc2", self.linear(f"{at}.fc1", x).clamp(min=0))

    def mix(self, at: str, side: str, x: list[Tensor]) -> list[Tensor]:
        """Attention or a convolution within the sequence."""
        causal = side == "decoder"
        if not self.conv:
            return self.attend(f"{at}.self_attn", x, x, causal=causal)
        z = [self.linear(f"{at}.linear1", each) for each in x]
        if len(z[0]) == 2 * DIM:
            z = [each[:DIM] * each[DIM:].sigmoid() for each in z]
        size = KERNELS[side][int(at.split(".")[2])]
        left = size - 1 if causal else size // 2
        outputs = []
        for t in range(len(z)):
            y = torch.zeros(DIM)
            for c in range(DIM):
                head = c // (DIM // HEADS)
                if self.conv == "dynamic":
                    rows = self.state[f"{at}.conv.weight_linear.weight"][head * size : (head + 1) * size]
                    kernel = (rows @ z[t]).softmax(0)
                else:
                    kernel = self.state[f"{at}.conv.weight"][head, 0].softmax(0)
                for k in range(size):
                    if 0 <= t + k - left < len(z):
                        y[c] += kernel[k] * z[t + k - left][c]
            outputs.append(self.linear(f"{at}.linear2", y))
        return outputs

    def attend(self, name: str, x: list[Tensor], memory: list[Tensor], *, causal: bool) -> list[Tensor]:
        """Multi-head attention."""
        size = DIM // HEADS
        keys = [self.linear(f"{name}.k_proj", each) for each in memory]
        values = [self.linear(f"{name}.v_proj", each) for each in memory]
        outputs = []
        for t, each in enumerate(x):
            seen = range(t + 1 if causal else len(memory))
            query = self.linear(f"{name}.q_proj", each)
            heads = []
            for h in range(HEADS):
                at = slice(h * size, (h + 1) * size)
                weights = torch.stack([query[at] @ keys[s][at] / math.sqrt(size) for s in seen]).softmax(0)
                heads.append(sum(weights[s] * values[s][at] for s in seen))
            outputs.append(self.linear(f"{name}.out_proj", torch.cat(heads)))
        return outputs
