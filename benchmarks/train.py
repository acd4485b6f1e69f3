"""Measure training speed on a CPU: target tokens per CPU-second of one core, ours, fairseq's and Hugging Face Marian's.

    python -m benchmarks.train
    python -m benchmarks.train --only base --steps 20 --peers fairseq --out benchmarks/results/train

Forward and backward pass of batches of 32 x (25 + 25) random tokens, with label smoothing 0.1 and every dropout, models
of the same sizes. The contestants are separate processes that take turns, since the speed of a shared machine drifts. A
peer takes part if it can be imported: fairseq and Marian with bf16 autocast over float32 weights and with bf16 weights;
fairseq's DynamicConv also unfolded. A step with bf16 weights includes the copies to and from float32 weights that an
update needs. "here" is bf16 autocast over float32 weights, with the environment and memory settings of
`seq2seq.train`; peers run as installed, or with the same settings (--same-memory). Each row has the ratio of our rate
to its rate. Run with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import functools
import importlib.util
import multiprocessing
import os
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import harness
from seq2seq.network.build import build_model
from seq2seq.settings.compose import resolved_settings
from seq2seq.system.memory import keep_freed_memory
from seq2seq.training.machine.environment import VARIABLES
from seq2seq.training.machine.flops import training_flops
from seq2seq.training.objective.loss import projected_cross_entropy

# Sentences in a batch, and tokens on each side of a pair.
ROWS, LENGTH = 32, 25
SMOOTHING = 0.1
# Source and target vocabularies, as published.
JOINT, IWSLT = (32768, 32768), (8848, 6632)
NO_GLU = ("mixer.encoder.glu=false", "mixer.decoder.glu=false")
# Settings, vocabularies, and fairseq's architecture and options
Model = tuple[tuple[str, ...], tuple[int, int], str, dict[str, Any]]
MODELS: dict[str, Model] = {
    "base": (
        ("mixer=transformer", "model=base"),
        JOINT,
        "transformer",
        {"share_all_embeddings": True, "share_decoder_input_output_embed": True},
    ),
    "transformer": (
        ("mixer=transformer", "model=small", "model.tie=target"),
        IWSLT,
        "transformer_iwslt_de_en",
        {"share_decoder_input_output_embed": True, "dropout": 0.3},
    ),
    **{
        name: (
            (f"mixer={name}", "model=small", "model.tie=target", *NO_GLU),
            IWSLT,
            "lightconv_iwslt_de_en",
            {
                "share_decoder_input_output_embed": True,
                "dropout": 0.3,
                "attention_dropout": 0.0,
                "encoder_conv_type": kind,
                "decoder_conv_type": kind,
                "weight_softmax": True,
            },
        )
        for name, kind in (("lightconv", "lightweight"), ("dynamicconv", "dynamic"))
    },
}
PEERS = {"fairseq": "fairseq", "marian": "transformers"}


class Batch:
    """Random ids of at least 4; the lower ids are padding, begin, end and unknown."""

    def __init__(self, vocabularies: tuple[int, int]) -> None:
        src, tgt = vocabularies
        self.src = torch.randint(4, src, (ROWS, LENGTH))
        self.tgt_in, self.tgt_out = torch.randint(4, tgt, (2, ROWS, LENGTH))
        self.mask = torch.ones(ROWS, LENGTH, dtype=torch.bool)
        self.lengths = torch.full((ROWS,), LENGTH)


class Contestant:
    """A model with its loss; a call makes a training step without the update: forward, loss, backward.

    Args:
        model: The model, with float32 weights.
        loss: Computes the loss.
        autocast: Use bf16 autocast; if False, use bf16 weights with float32 copies.
    """

    def __init__(self, model: nn.Module, loss: Callable[[], Tensor], *, autocast: bool) -> None:
        # float32 copies of weights and gradients
        self._masters = [] if autocast else [(p.detach().clone(), torch.empty_like(p)) for p in model.parameters()]
        self.model = (model if autocast else model.to(torch.bfloat16)).train()
        self._loss = loss
        self._autocast = autocast

    def __call__(self) -> None:
        """Run one step."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._autocast):
            loss = self._loss()
        loss.backward()
        if self._masters:
            self._copy()
        self.model.zero_grad(set_to_none=True)

    @torch.no_grad()
    def _copy(self) -> None:
        """Copy gradients to float32 and weights back, as an optimizer of float32 weights does around its update."""
        for parameter, (weight, gradient) in zip(self.model.parameters(), self._masters, strict=True):
            if parameter.grad is not None:
                gradient.copy_(parameter.grad)
                parameter.copy_(weight)


def settings(overrides: tuple[str, ...], vocabularies: tuple[int, int]) -> dict[str, Any]:
    """Return the settings of `build_model`."""
    config = resolved_settings(overrides)
    src, tgt = vocabularies
    sizes = {"src_vocab_size": src, "tgt_vocab_size": tgt, "pad_id": 0, "joint": src == tgt}
    return {"model": config["model"], "mixer": config["mixer"], **sizes}


def ours(config: dict[str, Any], batch: Batch) -> Contestant:
    """Build the model of this project."""
    model = build_model(config)

    def loss() -> Tensor:
        features = model.features(batch.src, batch.mask, batch.tgt_in, batch.mask)
        return projected_cross_entropy(features, model.output, batch.tgt_out, batch.mask, smoothing=SMOOTHING).loss

    return Contestant(model, loss, autocast=True)


def fairseq_model(model: Model) -> nn.Module:
    """Build fairseq's model of the same size."""
    from fairseq.data import Dictionary
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
    from fairseq.models import lightconv as _lightconv  # noqa: F401 registers its architectures
    from fairseq.models import transformer as _transformer  # noqa: F401

    _, vocabularies, architecture, values = model
    dictionaries = []
    for size in vocabularies:
        dictionary = Dictionary()
        for index in range(size - len(dictionary)):
            dictionary.add_symbol(f"piece{index}")
        dictionaries.append(dictionary)
    if vocabularies[0] == vocabularies[1]:
        dictionaries[1] = dictionaries[0]
    args = Namespace(**values, max_source_positions=1024, max_target_positions=1024)
    ARCH_CONFIG_REGISTRY[architecture](args)
    task = Namespace(source_dictionary=dictionaries[0], target_dictionary=dictionaries[1])
    return ARCH_MODEL_REGISTRY[architecture].build_model(args, task)


def fairseq_contestant(sizes: Model, batch: Batch, *, autocast: bool, unfold: bool = False) -> Contestant:
    """Build fairseq's model with its own smoothed loss.

    Args:
        unfold: Compute dynamic convolution over unfolded windows, as fairseq does by default from 513 positions on.
    """
    from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss

    model: Any = fairseq_model(sizes)
    if unfold:
        from fairseq.modules.dynamic_convolution import DynamicConv1dTBC

        for module in model.modules():
            if isinstance(module, DynamicConv1dTBC):
                module.forward = functools.partial(module.forward, unfold=True)

    def loss() -> Tensor:
        output = model(batch.src, batch.lengths, batch.tgt_in)
        log_probabilities = model.get_normalized_probs(output, log_probs=True).flatten(0, 1)
        return label_smoothed_nll_loss(
            log_probabilities, batch.tgt_out.flatten()[:, None], SMOOTHING, ignore_index=1, reduce=True
        )[0]

    return Contestant(model, loss, autocast=autocast)


def marian_model(**values: Any) -> nn.Module:
    """Build Hugging Face's Marian at the base size.

    Args:
        values: Vocabulary and ids of the configuration, and values that replace its defaults.
    """
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        **{
            "d_model": 512,
            "encoder_layers": 6,
            "decoder_layers": 6,
            "encoder_attention_heads": 8,
            "decoder_attention_heads": 8,
            "encoder_ffn_dim": 2048,
            "decoder_ffn_dim": 2048,
            "activation_function": "relu",
            "dropout": 0.1,
            "scale_embedding": True,
            **values,
        }
    )
    return MarianMTModel(config)


def marian_contestant(batch: Batch, *, autocast: bool) -> Contestant:
    """Build Hugging Face's Marian at the base size, with its loss."""
    model = marian_model(vocab_size=JOINT[0], pad_token_id=0, eos_token_id=2, decoder_start_token_id=1)

    def loss() -> Tensor:
        mask = batch.mask.long()
        logits = model(input_ids=batch.src, attention_mask=mask, decoder_input_ids=batch.tgt_in).logits
        return F.cross_entropy(
            logits.float().flatten(0, 1), batch.tgt_out.flatten(), label_smoothing=SMOOTHING, reduction="sum"
        )

    return Contestant(model, loss, autocast=autocast)


def ways(name: str, peers: list[str]) -> list[str]:
    """Return the names of all contestants of a model; "here" is the first."""
    found = ["here"]
    for weights in ("autocast", "bf16 weights"):
        if "fairseq" in peers:
            found += [f"fairseq, {weights}"]
            found += [f"fairseq, {weights}, unfolded"] if name == "dynamicconv" else []
        if "marian" in peers and name == "base":
            found += [f"marian, {weights}"]
    return found


def contestant(model: Model, way: str) -> Contestant:
    """Build the contestant with this name, which is one of `ways`."""
    overrides, vocabularies, *_ = model
    batch = Batch(vocabularies)
    if way == "here":
        return ours(settings(overrides, vocabularies), batch)
    autocast = "autocast" in way
    if way.startswith("marian"):
        return marian_contestant(batch, autocast=autocast)
    return fairseq_contestant(model, batch, autocast=autocast, unfold=way.endswith("unfolded"))


class Entrant:
    """A contestant in a separate process, which makes a step on request.

    Args:
        memory: Run with the environment and memory settings of `seq2seq.train`.
    """

    def __init__(self, model: Model, way: str, *, memory: bool) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        with mock.patch.dict(os.environ, VARIABLES if memory else {}):
            # Spawned, not forked, so that it reads the environment when it imports torch
            process = multiprocessing.get_context("spawn").Process(
                target=_take_turns, args=(model, way, memory, theirs), daemon=True
            )
            process.start()
        theirs.close()
        self.parameters: int = self._pipe.recv()

    def step(self) -> float:
        """Do one step, and return its CPU seconds."""
        self._pipe.send("step")
        return self._pipe.recv()

    def close(self) -> None:
        """End the process."""
        self._pipe.close()


def _take_turns(model: Model, way: str, memory: bool, pipe: Connection) -> None:
    torch.set_num_threads(1)
    if memory:
        keep_freed_memory()
    running = contestant(model, way)
    pipe.send(sum(p.numel() for p in running.model.parameters()))
    while True:
        try:
            pipe.recv()
        except EOFError:
            return
        start = time.process_time()
        running()
        pipe.send(time.process_time() - start)


def matrix_gflops(size: int = 1024, repeats: int = 10) -> float:
    """Measure this core's GFLOP/s in bf16 matrix products, by CPU time."""
    a, b = (torch.randn(size, size).bfloat16() for _ in range(2))
    # Warm-up
    a @ b
    start = time.process_time()
    for _ in range(repeats):
        a @ b
    return 2e-9 * size**3 * repeats / (time.process_time() - start)


def measure(name: str, peers: list[str], *, steps: int, same_memory: bool) -> list[dict[str, Any]]:
    """Measure the steps of all contestants of one model, which take turns."""
    model = MODELS[name]
    running = {way: Entrant(model, way, memory=same_memory or way == "here") for way in ways(name, peers)}
    seconds: dict[str, list[float]] = {way: [] for way in running}
    rates = []
    for turn in range(steps + 2):
        rates.append(matrix_gflops())
        for way, entrant in running.items():
            taken = entrant.step()
            # The first two steps are a warm-up
            if turn > 1:
                seconds[way].append(taken)
    for entrant in running.values():
        entrant.close()
    overrides, vocabularies, *_ = model
    flops = training_flops(settings(overrides, vocabularies))
    assert flops is not None
    here = statistics.median(seconds["here"])
    return [
        {
            "model": name,
            "way": way,
            "same_memory": same_memory,
            "parameters": running[way].parameters,
            "tokens_per_cpu_second": round(ROWS * LENGTH / statistics.median(times), 1),
            "best": round(ROWS * LENGTH / min(times), 1),
            "ratio": round(statistics.median(times) / here, 2),
            "ratio_of_best": round(min(times) / min(seconds["here"]), 2),
            "matrix_gflops": round(statistics.median(rates), 1),
            "model_gflops": round(1e-9 * flops(ROWS, LENGTH, LENGTH) / statistics.median(times), 1),
        }
        for way, times in seconds.items()
    ]


def main() -> int:
    """Print the table; with --out also write train.json."""
    parser = harness.parser_for("train", __doc__)
    parser.add_argument("--only", nargs="+", choices=tuple(MODELS), default=list(MODELS), help="which models (all)")
    parser.add_argument("--steps", type=int, default=10, help="steps to take the median of (10)")
    installed = [peer for peer, module in PEERS.items() if importlib.util.find_spec(module) is not None]
    parser.add_argument(
        "--peers", nargs="*", choices=tuple(PEERS), default=installed, help="to compare with (those installed)"
    )
    parser.add_argument(
        "--same-memory",
        action="store_true",
        help="give peers the environment and memory settings of seq2seq.train",
    )
    options = parser.parse_args()
    for peer in options.peers:
        if peer not in installed:
            parser.error(f"--peers {peer}: {PEERS[peer]} cannot be imported; install it or leave the peer out")
    torch.set_num_threads(1)
    results = []
    print(
        f"{'model':<13}{'way':<34}{'parameters':>11}{'tokens/CPU-s':>13}{'best':>8}{'ours to it':>11}{'of best':>8}"
        f"{'product GFLOP/s':>17}"
    )
    for name in options.only:
        for result in measure(name, options.peers, steps=options.steps, same_memory=options.same_memory):
            results.append(result)
            print(
                f"{name:<13}{result['way']:<34}{result['parameters'] / 1e6:>10.1f}M"
                f"{result['tokens_per_cpu_second']:>13}{result['best']:>8}{result['ratio']:>11}"
                f"{result['ratio_of_best']:>8}{result['matrix_gflops']:>17}",
                flush=True,
            )
    harness.write(options.out, "train", {"machine": harness.machine(), "results": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
