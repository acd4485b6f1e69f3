"""`init_from=<checkpoint>`: a new run that starts from a checkpoint's weights and tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seq2seq.tokenizer import Tokenizer


def model_weights(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """The model's own weights, by its own names, from a checkpoint's `state_dict`."""
    return {name.removeprefix("model."): weight for name, weight in state_dict.items() if name.startswith("model.")}


def require_same_shapes(model: Any, state_dict: Mapping[str, Any], origin: str) -> None:
    """ValueError unless the checkpoint's weights are this model's, by name and shape."""
    wanted = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    given = {name: tuple(weight.shape) for name, weight in model_weights(state_dict).items()}
    for name in sorted(wanted.keys() | given.keys()):
        if wanted.get(name) != given.get(name):
            raise ValueError(
                f"init_from={origin}: weight '{name}' has shape {given.get(name)} there and {wanted.get(name)} in this "
                "model; choose the model and mixer settings that the checkpoint was trained with"
            )


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
    if tokenizer.joint:
        return {"model": str(paths["src_model"]), "src_model": None, "tgt_model": None}
    return {"model": None} | {side: str(path) for side, path in paths.items()}
