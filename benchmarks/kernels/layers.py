"""Time whole mixer layers as in training, from short to long sentences, and attention."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.kernels.session import Row, Session, guarded, reason
from benchmarks.kernels.shapes import Shape
from benchmarks.kernels.timing import measure
from seq2seq.kernels import attention
from seq2seq.mixers.attention import Attention
from seq2seq.mixers.dynamicconv import DynamicConv
from seq2seq.mixers.lightconv import LightConv
from seq2seq.network.mixer import SelfMixer

# seq2seq.kernels.attention excludes SDPA's cuDNN backend and explains why; the second row is torch's own choice
ATTENTION, WITH_CUDNN = "attention", "attention, cuDNN allowed"


def layers_section(session: Session) -> None:
    """Time every mixer at every length, with the same number of tokens at each."""
    whole = session.sizes.layer
    for length in session.sizes.layer_lengths:
        # Equal numbers of tokens make the times of different lengths comparable
        shape = whole._replace(batch=max(1, whole.tokens // length), length=length)
        for name, build in mixers(shape, session.sizes.attention_up_to).items():
            for direction in ("causal", "same"):
                if session.late(f"layers: {name}, T {length}, {direction}"):
                    continue
                row = Row(name, direction, "ours", shape)
                with _unrestricted() if name == WITH_CUDNN else nullcontext():
                    session.rows.append(time_layer(row, build, session))


@contextmanager
def _unrestricted() -> Iterator[None]:
    """Let SDPA choose any backend, even one that seq2seq.kernels.attention excludes."""
    with (
        sdpa_kernel(list(SDPBackend.__members__.values())),
        mock.patch.object(attention, "without_cudnn", return_value=nullcontext()),
    ):
        yield


def mixers(shape: Shape, longest_attention: int) -> dict[str, functools.partial[SelfMixer]]:
    """Return the mixers of one length as constructors, by name."""
    wide = {"dim": shape.channels, "num_heads": shape.heads}
    conv = wide | {"kernel_size": shape.taps}
    found: dict[str, functools.partial[SelfMixer]] = {
        "dynamicconv": functools.partial(DynamicConv, **conv),
        "lightconv": functools.partial(LightConv, **conv),
    }
    # DropConnect is timed at one length; with the tiny shapes of --device cpu, at every length
    if shape.length == 1024 or shape.channels < 64:
        found |= {f"{name}, drop 0.1": functools.partial(build, weight_dropout=0.1) for name, build in found.items()}
    if shape.length <= longest_attention:
        found |= dict.fromkeys((ATTENTION, WITH_CUDNN), functools.partial(Attention, **wide))
    return found


@guarded
def time_layer(row: Row, build: functools.partial[SelfMixer], session: Session) -> Row:
    """Time one mixer, and record an error if a gradient is not finite."""
    mixer = build(causal=row.direction == "causal").to(session.device).train()
    mask = torch.ones(row.shape[:2], dtype=torch.bool, device=session.device)  # (B, T)
    draws = [torch.randn(row.shape[:3], device=session.device, dtype=torch.bfloat16) for _ in range(4)]  # (B, T, C)
    # Two buffers, each with an input and an upstream gradient, take turns
    pairs = (draws[:2], draws[2:])
    calls = [functools.partial(layer_call, mixer, x.requires_grad_(), mask, dy) for x, dy in pairs]
    # Checked before timing, since a layer that returns NaN may be faster
    finite = all(bool(part.isfinite().all()) for part in calls[0]())
    backend = sdpa_backend(row, session.device) if isinstance(mixer, Attention) else ""
    error = "" if finite else "a gradient is not finite"
    return row._replace(**measure(calls, session), detail=backend, error=error)


def layer_call(mixer: nn.Module, x: Tensor, mask: Tensor, dy: Tensor) -> Sequence[Tensor]:
    """Run forward and backward as in training: bf16 autocast over float32 parameters."""
    with torch.autocast(x.device.type, torch.bfloat16):
        y = mixer(x, mask)
    return torch.autograd.grad(y, [x, *mixer.parameters()], dy.to(y.dtype))


def sdpa_backend(row: Row, device: torch.device) -> str:
    """Name the backend that SDPA chooses: causal without a mask (decoder), or with a mask (B, 1, 1, S) (encoder)."""
    (batch, length, channels, heads), causal = row.shape[:4], row.direction == "causal"
    qkv = torch.empty(batch, length, 3 * channels, device=device, dtype=torch.bfloat16, requires_grad=True)
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv.chunk(3, -1))  # (B, H, T, C / H)
    mask = None if causal else torch.ones(batch, 1, 1, length, dtype=torch.bool, device=device)
    try:  # torch's function is private, so it may disappear
        with attention.without_cudnn(q.is_cuda):
            choice = torch._fused_sdp_choice(q, k, v, mask, 0.0, causal)  # pyright: ignore[reportPrivateImportUsage]
        return SDPBackend(choice).name
    except Exception as error:
        return f"unknown ({reason(error)})"
