"""Muon for matrices and AdamW for all other parameters, as one optimizer with one parameter group.

torch.optim.Muon makes the same updates with other coefficients (a test compares them), but it takes whole matrices one
by one, always in bf16, in five steps, and cannot skip an update on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from seq2seq.training.machine.hardware import has_bf16

# For each matrix, the sizes of its blocks of rows; each block is updated as a separate matrix.
Matrices = Mapping[Tensor, tuple[int, ...]]
# A matrix, and the first row and the end of one block.
Block = tuple[Tensor, int, int]
# a, b and c of each step of the quintic iteration. Three steps bring singular values between 0.005 and 1 as close to 1
# as possible: each polynomial p is the best one for the interval that the previous step maps to. Beyond that interval,
# which rounding may exceed, p rises steeply, so these are the coefficients of p(x / 1.02).
_COEFFICIENTS = ((8.1360, -23.0214, 16.3849), (3.8384, -2.7526, 0.5065), (3.1124, -2.2431, 0.4509))
# Most numbers in the blocks that are updated together; the limit saves memory, because blocks are copied several times.
_MOST = 2**24


class MuonWithAdam(torch.optim.Optimizer):
    """Muon for `matrices`, AdamW for the other parameters, with one learning rate, or a multiple of it for AdamW.

    B <- mu B + (1 - mu) G;  W <- W - lr 0.2 sqrt(max(m, n)) orthogonalize((1 - mu) G + mu B), with W (m, n). The root
    mean square of an update is about the same as AdamW's, so AdamW's rates fit. W also shrinks by lr weight_decay, and
    AdamW's parameters by adam_lr_scale lr weight_decay.

    If the tensor `found_inf` is not 0, `step` changes nothing, as in torch's fused AdamW.

    Args:
        parameters: All trained parameters.
        matrices: The parameters that Muon updates, with the sizes of their blocks.
        lr: Muon's rate; the schedule changes the rate of the parameter group.
        betas: AdamW's decay rates.
        eps: Added to AdamW's denominator.
        momentum: mu.
        adam_lr_scale: AdamW's rate as a multiple of `lr`.
        weight_decay: Decoupled, times the rate.

    Reference:
        Jordan et al. 2024, Muon: An optimizer for hidden layers in neural networks; Liu et al. 2025, Muon is scalable
        for LLM training (the factor 0.2 sqrt(max(m, n))).
    """

    found_inf: Tensor | None = None

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        matrices: Matrices,
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-9,
        momentum: float = 0.95,
        adam_lr_scale: float = 1.0,
        weight_decay: float = 0.0,
    ) -> None:
        # "fused" makes torch load AdamW's counters to the device of their parameter
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay, "fused": True})
        self._momentum = momentum
        self._adam_lr_scale = adam_lr_scale
        trained = self.param_groups[0]["params"]
        alike: dict[Any, list[Block]] = {}
        for matrix in (each for each in trained if each in matrices):
            end = 0
            for size in matrices[matrix]:
                kind = size, matrix.shape[1], matrix.dtype, matrix.device
                alike.setdefault(kind, []).append((matrix, end, end := end + size))
        # Each list is updated as one tensor
        self._blocks: list[list[Block]] = []
        for (rows, columns, *_), blocks in alike.items():
            count = max(1, _MOST // (rows * columns))
            self._blocks += [blocks[i : i + count] for i in range(0, len(blocks), count)]
        others = [each for each in trained if each not in matrices]
        self._adam = None
        if others:
            self._adam = torch.optim.AdamW(others, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add the only group of parameters; refuse another one."""
        if self.param_groups:
            raise ValueError("optim.name=muon has one group of parameters; use optim.name=adam for several")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient; the optional `closure` computes the loss and the gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        group = self.param_groups[0]
        for blocks in self._blocks:
            trained = [block for block in blocks if block[0].grad is not None]
            if trained:
                self._update(trained, group["lr"], group["weight_decay"])
        if self._adam is not None:
            self._adam.state = self.state  # loading a state replaces it
            rates = {"lr": group["lr"] * self._adam_lr_scale, "weight_decay": group["weight_decay"]}
            self._adam.param_groups[0] |= rates
            self._adam.found_inf = self.found_inf  # type: ignore[attr-defined]
            self._adam.step()
        return loss

    def _update(self, blocks: Sequence[Block], lr: float, decay: float) -> None:
        """Update blocks of one shape (m, n) as one tensor (blocks, m, n)."""
        for matrix, _, _ in blocks:
            if "momentum_buffer" not in self.state[matrix]:
                self.state[matrix]["momentum_buffer"] = torch.zeros_like(matrix)
        # Views of the matrices
        weights = [matrix[start:end] for matrix, start, end in blocks]
        buffers = [self.state[matrix]["momentum_buffer"][start:end] for matrix, start, end in blocks]
        gradient = torch.stack([matrix.grad[start:end] for matrix, start, end in blocks])  # type: ignore[index]
        weight, momentum = torch.stack(weights), torch.stack(buffers)
        new = momentum.lerp(gradient, 1 - self._momentum)
        direction = gradient.lerp(new, self._momentum)
        # A CPU that emulates bf16 would take tens of times as long
        dtype = torch.bfloat16 if has_bf16("cpu" if weight.device.type == "cpu" else "gpu") else torch.float32
        step = orthogonalize(direction.to(dtype)).to(weight.dtype)
        updated = weight * (1 - lr * decay) - step * (lr * 0.2 * max(step.shape[1:]) ** 0.5)
        if self.found_inf is not None:
            # A branch would wait for the device
            skipped = self.found_inf != 0
            new, updated = torch.where(skipped, momentum, new), torch.where(skipped, weight, updated)
        # One launch for all blocks: a launch for each would cost the host more than the copies cost a GPU
        copy: Any = torch._foreach_copy_  # type: ignore[reportPrivateImportUsage]
        copy([*buffers, *weights], [*new.unbind(), *updated.unbind()])


def orthogonalize(matrices: Tensor) -> Tensor:
    """Return approximately U V' for each matrix U S V': (blocks, m, n) -> (blocks, m, n).

    X <- a X + b (X X') X + c (X X')^2 X, three times from X = M / |M|. This moves singular values towards 1: values of
    at least 0.006 |M| end between 0.48 and 1.5.

    Reference:
        Jordan et al. 2024, Muon: An optimizer for hidden layers in neural networks; Amsel et al. 2025, The Polar
        Express (other coefficients for each step, the margin).
    """
    wide = matrices.shape[1] <= matrices.shape[2]
    x = matrices if wide else matrices.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    for a, b, c in _COEFFICIENTS:
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if wide else x.mT
