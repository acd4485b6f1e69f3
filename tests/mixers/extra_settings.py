"""Settings that no file of conf/mixer chooses, by settings file: conformance runs on them as on the files' own."""

from __future__ import annotations

from typing import Any

from seq2seq.mixers.nonlocal_ import PAIRWISE

# {"slot": ...} restricts a line to one slot; without it, both forms of a self mixer are tested.
EXTRA: dict[str, list[dict[str, Any]]] = {
    "aan": [{"gate": False}],
    "depthwise": [{"weight_dropout": 0.2}],
    "lightconv": [{"softmax": False}, {"softmax": False, "glu": False, "kernel_size": 5}],
    "dynamicconv": [{"softmax": False}, {"softmax": False, "glu": False, "kernel_size": 5}],
    "attention": [{"num_kv_heads": 1, "rotary": True}],
    "nonlocal": [{"pairwise": pairwise} for pairwise in PAIRWISE],
    "preconv_attention": [
        {"values": True, "kernel_size": 3},
        {"values": True, "kernel_size": 1},
        {"values": False, "kernel_size": 6},
    ],
    "postconv_attention": [{"kernel_size": 1}, {"kernel_size": 6}],
    "pyramid": [{"reduction": 1}, {"reduction": 3}, {"reduction": 8}],
    "lowrank": [{"rank": 2, "max_len": 150}, {"rank": 40, "max_len": 150}],
    "lowrank_mlp": [{"rank": 1}],
    "local_mlp": [{"window": 4}],
    "resolutions": [{"slot": "encoder", "resolutions": [3]}, {"slot": "encoder", "resolutions": [8, 1]}],
    "retention": [{"norm": False}, {"gate": False}, {"norm": False, "gate": False}],
    "criss_cross": [{"grid_width": 1}, {"grid_width": 3}],
    "interlaced": [{"grid_width": 1}, {"grid_width": 3}],
    "gated_delta": [{"kernel_size": 1, "gate": False}, {"kernel_size": 6}],
    "relative": [
        {"encoding": "sinusoidal"},
        {"content": False, "max_offset": 4},
        {"content": False, "encoding": "sinusoidal"},
        {"slot": "encoder", "grid_width": 4},
        {"slot": "encoder", "grid_width": 4, "encoding": "sinusoidal"},
        {"slot": "encoder", "grid_width": 4, "content": False},
    ],
    "relative_bias": [{"max_offset": 3}],
    "quadratic": [
        {"centre_std": None},
        {"content": True},
        {"head_dim": 3},
        {"slot": "encoder", "grid_width": 4, "content": True},
        {"slot": "encoder", "grid_width": 4, "head_dim": 3},
    ],
}
