"""Start a new run from a checkpoint's weights and tokenizer (`init_from=<checkpoint>`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seq2seq.config.dicts import UNSET, differences
from seq2seq.config.sections import present_settings
from seq2seq.data.cache_folder import cached

if TYPE_CHECKING:
    from seq2seq.data.tokenizer import Tokenizer

# Settings of model and mixer, by their last name, that do not change the function that the weights compute.
_FREE = ("dropout", "activation_dropout", "attention_dropout", "weight_dropout")


def require_same_model(before: Mapping[str, Any], config: Mapping[str, Any], origin: str) -> None:
    """Raise ValueError unless the sections model and mixer of `config` are those `before`, of the checkpoint `origin`.

    Dropout may differ. The message names the first difference and the override that removes it.
    """
    # An older checkpoint lacks settings that are newer: both sides get their defaults.
    old, new = present_settings(before), present_settings(config)
    sections = [{key: each[key] for key in ("model", "mixer")} for each in (old, new)]
    for key, there, here in differences(*sections):
        if key.split(".")[-1] not in _FREE:
            raise ValueError(f"init_from={origin}: {key} is {there} there and {here} here; {_remedy(key, there, here)}")


def _remedy(key: str, there: Any, here: Any) -> str:
    if key.endswith("_target_"):
        return "choose the mixer=... that the checkpoint was trained with"
    if there == UNSET:
        return f"add ~{key}"
    # As the command line spells it; + adds a key that is absent here, quotes keep blanks together.
    value = there if isinstance(there, str) else json.dumps(there)
    word = f"{'+' if here == UNSET else ''}{key}={value}"
    return f"add {word}" if " " not in word else f"add '{word}'"


def ready_models(tokenizer: Tokenizer, cache: Path) -> dict[str, Any]:
    """Write a checkpoint's SentencePiece models to `cache`; return the tokenizer settings that use them."""
    state = tokenizer.to_state()
    # Named by content: runs from one checkpoint share the files.
    folder = cache / f"init-{tokenizer.fingerprint}"
    paths = {side: folder / f"{side}.model" for side in ("src_model", "tgt_model") if side in state}

    def build(building: Path) -> None:
        for side, path in paths.items():
            (building / path.name).write_bytes(state[side])

    def read(whole: Path) -> None:
        for side, path in paths.items():
            if (whole / path.name).read_bytes() != state[side]:
                raise ValueError(f"{path.name} is not the checkpoint's")

    cached(folder, "the checkpoint's tokenizer", build=build, read=read)
    # Pictures have no model on the source's side; a joint tokenizer has one model, stored as the source's.
    if tokenizer.patches:
        return {"model": None, "src_model": None, "tgt_model": str(paths["tgt_model"]), "patches": state["patches"]}
    if tokenizer.joint:
        return {"model": str(paths["src_model"]), "src_model": None, "tgt_model": None}
    return {"model": None} | {side: str(path) for side, path in paths.items()}
