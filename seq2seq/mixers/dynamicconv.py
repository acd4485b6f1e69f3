"""DynamicConv: a light convolution whose kernel is predicted at every position (Wu et al. 2019)."""

from __future__ import annotations

from torch import Tensor, nn

from seq2seq.kernels.dispatch import require_backend
from seq2seq.kernels.dropconnect import keep_probability, keep_words_or_none
from seq2seq.kernels.dynamicconv import dynamicconv
from seq2seq.mixers.past import Past
from seq2seq.mixers.projections import gated, glu_input, initialize
from seq2seq.network.introspection import MixingProperties, mark_mixing
from seq2seq.network.mixer import SelfMixer, real_positions, require_divisible, require_positive, require_probability
from seq2seq.network.state import Cache, Device, DType
from seq2seq.network.weight_blocks import in_blocks


class DynamicConv(SelfMixer[Past]):
    """Depthwise convolution whose normalized kernels are predicted at every position.

    y = W_o DynamicConv(z), z = GLU(W_i x).

    DynamicConv(z)_{t,c} = sum_k softmax((W z_t)_h)_k z_{t+k-left,c}, h = c // (D / H), left = K - 1
    (causal) or K // 2: W predicts H kernels of K taps from the position alone. The softmax is over
    all K taps, then taps outside the sequence meet zeros.

    Args:
        num_heads: H groups of channels that share a kernel; must divide dim.
        kernel_size: K taps.
        glu: Gate the input.
        softmax: Normalize the kernels; without it training diverged in the paper, and the Triton kernel is only for
            decoding.
        weight_dropout: DropConnect on the normalized kernels, per (b, t, h, k).

    Cost:
        3 D^2 + 3 D + D H K parameters (2 D^2 + 2 D + D H K without GLU), O(T K D + T D H K + T D^2)
        time, the last K inputs of the convolution as state, which stay where they are when beams
        are reordered.

    Reference:
        Wu et al. 2019, 'Pay Less Attention with Lightweight and Dynamic Convolutions', section 4.
    """

    state_growth = "constant"

    def __init__(
        self,
        *,
        dim: int,
        causal: bool,
        num_heads: int,
        kernel_size: int,
        glu: bool = True,
        softmax: bool = True,
        weight_dropout: float = 0.0,
        backend: str = "auto",
    ) -> None:
        super().__init__(dim=dim, causal=causal)
        require_divisible(dim, num_heads)
        self.glu = glu
        self.softmax = softmax
        self.num_heads = num_heads
        self.kernel_size = require_positive(kernel_size, "kernel_size")
        self.weight_dropout = require_probability(weight_dropout, "weight_dropout")
        self.backend = require_backend(backend)
        self.properties = MixingProperties(sparse=True, shares_channels=True, dynamic=True, linear=not glu)
        self.inner = glu_input(dim, glu=glu)
        self.out = nn.Linear(dim, dim)
        taps = num_heads * kernel_size
        self.kernel = in_blocks(nn.Linear(dim, taps, bias=False), taps, gates=0)  # predicts H kernels of K taps
        initialize(self.inner, self.kernel, self.out)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Convolve x (B, T, D); padding counts as zero where positions mix, after the biases."""
        mask = real_positions(x, mask)
        z = gated(self.inner(x), self.glu)  # (B, T, D)
        logits = mark_mixing(self._logits(z))  # (B, T, H, K)
        # DropConnect: a mask for every predicted kernel, drawn here so that all backends drop the same taps
        drop = self.weight_dropout if self.training else 0.0
        keep = keep_words_or_none(logits.shape[:3], self.kernel_size, drop, device=x.device, backend=self.backend)
        y = dynamicconv(
            z,
            logits,
            causal=self.causal,
            keep=keep,
            keep_prob=keep_probability(self.weight_dropout),
            end=mask.sum(1),  # the convolution zeroes padding itself
            softmax=self.softmax,
            backend=self.backend,
        )
        return self.out(y)

    def introspect(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Return the kernels that x (B, T, D) predicts, (B, T, H, K)."""
        logits = self._logits(gated(self.inner(x), self.glu))
        return {"predicted kernels": logits.softmax(-1) if self.softmax else logits}

    def empty_state(self, batch_size: int, max_len: int, *, device: Device = None, dtype: DType = None) -> Past:
        """Return an empty cache of gated inputs."""
        past = Cache.empty(batch_size, self.kernel_size, self.dim, heads=self.num_heads, device=device, dtype=dtype)
        return Past(past)

    def step(self, x: Tensor, state: Past, position: Tensor) -> tuple[Tensor, Past]:
        """Append this position's input, then convolve the last K with the kernel it predicts."""
        z = gated(self.inner(x), self.glu)  # (N, D)
        state.past.append(z, position)
        y = state.past.convolve(self._logits(z), position, softmax=self.softmax, backend=self.backend)  # (N, D)
        return self.out(y), state

    def _logits(self, z: Tensor) -> Tensor:
        return self.kernel(z).unflatten(-1, (self.num_heads, self.kernel_size))  # (..., H, K)
