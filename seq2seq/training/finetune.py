"""`init_from=<checkpoint>`: a new run that starts from a checkpoint's weights and tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seq2seq.config.dicts import UNSET, differences

if TYPE_CHECKING:
    from seq2seq.data.tokenizer import Tokenizer

# Settings of model and mixer, by their last name, that do not change the function that the weights compute.
_FREE = ("dropout", "activation_dropout", "attention_dropout", "weight_dropout", "peak_lr")


def require_same_model(given: Mapping[str, Any], config: Mapping[str, Any], origin: str) -> None:
    """ValueError unless the sections model and mixer of `config` are those `given` by the checkpoint `origin`.

    Dropout and the learning rate may differ.
    """
    sections = [{key: each[key] for key in ("model", "mixer")} for each in (given, config)]
    for key, there, here in differences(*sections):
        if key.split(".")[-1] not in _FREE:
            raise ValueError(f"init_from={origin}: {key} is {there} there and {here} here; {_remedy(key, there, here)}")


def _remedy(key: str, there: Any, here: Any) -> str:
    if key.endswith("_target_"):
        return "choose the mixer=... that the checkpoint was trained with"
    if there == UNSET:
        return f"add ~{key}"
    value = there if isinstance(there, str) else json.dumps(there)
    word = f"{'+' if here == UNSET else ''}{key}={value}"
    return f"add {word}" if " " not in word else f"add '{word}'"


def ready_models(tokenizer: Tokenizer, cache: Path) -> dict[str, Any]:
    """The tokenizer settings that use a checkpoint's SentencePiece models, written to `cache`."""
    state = tokenizer.to_state()
    folder = cache / f"init-{tokenizer.fingerprint}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for side in ("src_model", "tgt_model"):
        if side in state:
            paths[side] = folder / f"{side}.model"
            paths[side].write_bytes(state[side])
    if tokenizer.patches:
        return {"model": None, "src_model": None, "tgt_model": str(paths["tgt_model"]), "patches": state["patches"]}
    if tokenizer.joint:
        return {"model": str(paths["src_model"]), "src_model": None, "tgt_model": None}
    return {"model": None} | {side: str(path) for side, path in paths.items()}
