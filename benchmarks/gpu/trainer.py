"""Plain training loop: bf16 autocast, torch.compile, AdamW annealed over the time, rates by the clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from seq2seq.data.batching import Batch
from seq2seq.network.build import build_model
from seq2seq.network.model import Seq2Seq
from seq2seq.settings.optim import OptimSettings
from seq2seq.training.machine.compilation import CompiledGraphs, compile_parts, count_graphs, unrolled
from seq2seq.training.machine.throughput import Meter
from seq2seq.training.objective.loss import projected_cross_entropy
from seq2seq.training.objective.optim import build_optimizer, learning_rate, scale_and_clip

# Batches before the clock starts, which absorb compilation, autotuning and the caching allocator's growth.
_WARM = 8


class Trainer:
    """One model in training.

    Recurrent mixers stay eager, since compilation unrolls them anew for every length.

    Args:
        config: Settings of the model, the mixer and the optimizer.
        compile: Compile the model, unless the mixer is recurrent; graphs of earlier models are dropped.
    """

    def __init__(self, config: dict[str, Any], *, device: torch.device, compile: bool, seed: int = 1) -> None:
        torch.manual_seed(seed)
        self.config, self.device = config, device
        self.model: Seq2Seq = build_model(config).to(device).train()
        self.settings = OptimSettings(
            lr=float(config["optim"]["peak_lr"]), schedule="anneal", weight_decay=1e-4, clip_norm=1.0
        )
        self.optimizer = build_optimizer(self.model.parameters(), self.settings)
        self.compiled = compile and not unrolled(self.model)
        if self.compiled:
            compile_parts(self.model)

    def warm_up(self, batches: Iterator[Batch]) -> float:
        """Run some batches without updating the weights, and return the seconds taken."""
        began = time.perf_counter()
        for _ in range(_WARM):
            self._backward(next(batches))
            # The gradients of the warm-up are dropped
            self.optimizer.zero_grad(set_to_none=True)
        self._wait()
        return time.perf_counter() - began

    def run(self, batches: Iterator[Batch], *, seconds: float) -> dict[str, Any]:
        """Train for `seconds`, and return the measurements."""
        meter = Meter(self.config, device=self.device, dtype=torch.bfloat16)
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)  # loss, target tokens
        steps, queued = 0, None
        began, passed = time.perf_counter(), 0.0
        # This is the host's clock; `_catch_up` keeps the host at most some twenty steps ahead of the device
        while passed < seconds:
            batch = next(batches)
            sums += self._step(batch, share=passed / seconds)
            meter.add(batch)
            steps += 1
            if steps % 10 == 0:
                queued = self._catch_up(queued)
            passed = time.perf_counter() - began
        # Queued steps count, so their time counts as well
        self._wait()
        passed = time.perf_counter() - began
        loss, tokens = sums.tolist()
        return {
            "parameters": sum(p.numel() for p in self.model.parameters()),
            **self._compilation(),
            "steps": steps,
            "seconds": round(passed, 2),
            "target_tokens": int(tokens),
            "target_tokens_per_second": round(tokens / passed, 1),
            "mean_loss": round(loss / max(tokens, 1), 4),
            **meter.report(passed),
        }

    def _compilation(self) -> dict[str, Any]:
        """Return whether all calls ran compiled, and the numbers of graphs and of uncompiled calls."""
        graphs = count_graphs() if self.compiled else CompiledGraphs(0, 0)
        return {"compiled": graphs.whole, "graphs": graphs.compiled, "eager_calls": graphs.eager}

    def _backward(self, batch: Batch) -> Any:
        # Features (B, T, D); the loss projects them to the vocabulary in chunks
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            features = self.model.features(batch.src, batch.src_mask, batch.tgt_in, batch.tgt_mask)
            summed = projected_cross_entropy(
                features, self.model.output, batch.tgt_out, batch.tgt_mask, smoothing=self.settings.label_smoothing
            )
        summed.loss.backward()
        return summed

    def _step(self, batch: Batch, *, share: float) -> torch.Tensor:
        summed = self._backward(batch)
        # The loss is a sum over tokens; scaling turns its gradient into the gradient of the mean
        scale = 1 / summed.tokens.clamp(min=1).float()
        scale_and_clip(self.model.parameters(), scale, clip_norm=self.settings.clip_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(1, self.settings, share)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return torch.stack([summed.loss.detach().double(), summed.tokens.double()])

    def _catch_up(self, earlier: Any) -> Any:
        """Wait for the event of ten steps ago and record a new one, so that the host stays only slightly ahead."""
        if self.device.type != "cuda":
            return None
        if earlier is not None:
            earlier.synchronize()
        mark = torch.cuda.Event()
        mark.record()
        return mark

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
