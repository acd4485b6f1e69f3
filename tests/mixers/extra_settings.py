"""Settings that no file of conf/mixer chooses, by settings file: conformance tests them like the files' settings."""

from __future__ import annotations

import importlib.util
from typing import Any

from seq2seq.mixers.nonlocal_ import PAIRWISE

# Weights that the optional package entmax computes, if it is installed.
SPARSE = ("sparsemax", "entmax15") if importlib.util.find_spec("entmax") else ()
# {"slot": ...} restricts a line to one slot, cross among them; without it, both forms of a self mixer are tested.
EXTRA: dict[str, list[dict[str, Any]]] = {
    "aan": [{"gate": False}],
    "conv": [
        {"dilation": 3},
        {"groups": 4},
        {"groups": 4, "kernel_size": 1},
        {"hidden_dim": 6, "groups": 2, "dilation": 2},
        {"slot": "encoder", "circular": True, "dilation": 2},
        {"slot": "encoder", "circular": True, "hidden_dim": 3, "kernel_size": 4},
    ],
    "depthwise": [{"weight_dropout": 0.2}],
    "multiscale": [{"weight_dropout": 0.2}],
    "attention": [
        {"num_kv_heads": 1, "rotary": True},
        {"num_heads": 4, "num_kv_heads": 2, "bias": True},
        {"slot": "cross", "bias": True},
        *({"weights": weights} for weights in SPARSE),
        *({"slot": "cross", "weights": weights} for weights in SPARSE),
    ],
    "qk_norm": [{"num_kv_heads": 2}],
    "relu_attention": [
        {"slot": "decoder", "num_kv_heads": 1, "rotary": True},
        {"weights": "plain_relu"},
        {"slot": "cross", "weights": "plain_relu"},
    ],
    # Names of a self mixer and of a cross mixer
    "lightconv": [
        {"softmax": False},
        {"softmax": False, "glu": False, "per_layer": {"kernel_size": [5]}},
        {"slot": "cross", "kernel_size": 4, "rate": 0.7},
    ],
    "dynamicconv": [
        {"softmax": False},
        {"softmax": False, "glu": False, "per_layer": {"kernel_size": [5]}},
        {"slot": "cross", "kernel_size": 2, "rate": 1.5},
    ],
    "fixed_context": [
        {"slot": "cross", "summary": "mean", "reset": "before"},
        {"slot": "cross", "every_step": False},
    ],
    "luong_attention": [
        {"slot": "cross", "score": "dot", "scope": "local_m", "half_window": 2},
        {"slot": "cross", "score": "concat", "scope": "local_p", "half_window": 2},
        {"slot": "cross", "score": "location", "max_len": 150},
    ],
    "luong": [
        {"slot": "cross", "input_feeding": False, "scope": "local_m", "half_window": 1},
        {"slot": "cross", "input_feeding": False, "score": "concat", "coverage": True},
        {"slot": "cross", "score": "location", "max_len": 150, "scope": "local_p", "half_window": 10},
    ],
    "nonlocal": [{"pairwise": pairwise} for pairwise in PAIRWISE],
    "preconv_attention": [
        {"values": True, "kernel_size": 3},
        {"values": True, "kernel_size": 1},
        {"values": False, "kernel_size": 6},
        {"before": "depthwise"},
        {"before": "full"},
        {"before": "full", "kernel_size": 6, "batch_norm": True},
    ],
    "postconv_attention": [
        {"kernel_size": 1},
        {"kernel_size": 6},
        {"of": "scores"},
        {"of": "scores", "kernel_size": 6},
    ],
    "pyramid": [
        {"reduction": 1},
        {"reduction": 3},
        {"reduction": 8},
        {"learned": True, "reduction": 1},
        {"learned": True, "reduction": 3},
    ],
    "mlp": [{"start": "mlp_mixer"}, {"start": "resmlp"}],
    "separable": [{"start": "resmlp"}],
    "dynamic_depthwise": [{"batch_norm": True}],
    "lowrank": [{"rank": 2, "max_len": 150}, {"rank": 40, "max_len": 150}],
    "lowrank_mlp": [
        {"rank": 1},
        {"mix_channels": True},
        {"mix_channels": True, "rank": 1},
        {"nonlinear": True},
        {"nonlinear": True, "mix_channels": True},
    ],
    "local_mlp": [{"window": 4}],
    "resolutions": [
        {"slot": "encoder", "resolutions": [3]},
        {"slot": "encoder", "resolutions": [8, 1]},
        {"slot": "encoder", "resolutions": [1, 3], "widths": [8, 16]},
        {"slot": "encoder", "resolutions": [1, 2], "widths": [5, 9], "kernel_size": 3},
    ],
    "retention": [{"norm": False}, {"gate": False}, {"norm": False, "gate": False}],
    "conv2d": [
        {"slot": "encoder", "kernel_side": 2},
        {"slot": "encoder", "grid_width": 1},
        {"slot": "encoder", "kernel_side": 5, "grid_width": 3},
    ],
    "criss_cross": [{"grid_width": 1}, {"grid_width": 3}],
    "interlaced": [{"grid_width": 1}, {"grid_width": 3}],
    "gru": [{"slot": "decoder", "reset": "before"}],
    "gated_delta": [{"kernel_size": 1, "gate": False}, {"kernel_size": 6}],
    "relative": [
        {"encoding": "sinusoidal"},
        {"content": False, "max_offset": 4},
        {"biases": False},
        {"content": False, "encoding": "sinusoidal"},
        {"slot": "encoder", "grid_width": 4},
        {"slot": "encoder", "grid_width": 4, "encoding": "sinusoidal"},
        {"slot": "encoder", "grid_width": 4, "content": False},
    ],
    "relative_bias": [{"max_offset": 3}, {"multiplied": True}],
    "quadratic": [
        {"center_std": None},
        {"center_std": None, "dilation": 2, "padding": "zeros"},
        {"slot": "encoder", "grid_width": 4, "padding": "zeros"},
        {"content": True},
        {"head_dim": 3},
        {"slot": "encoder", "grid_width": 4, "content": True},
        {"slot": "encoder", "grid_width": 4, "head_dim": 3},
    ],
}
