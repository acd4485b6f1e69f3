"""Check the section `mixer` against the constructors of the mixers that it names, without importing them (or torch)."""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import seq2seq
from seq2seq.config.names import suggestion
from seq2seq.config.settings import Section, read_section, setting
from seq2seq.config.values import check_value, shown

# The slots of the section.
SLOTS = ("encoder", "decoder", "cross")
# Keys of a slot of several kinds of layers.
_STACK = ("kinds", "pattern")
# Arguments that the model sets.
_SIZES = ("dim", "causal", "memory_dim")
# The types of settings among the annotations of constructors; an argument of another type is left to its class.
_TYPES = {
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "Sequence[int]": tuple[int, ...],
    "int | None": int | None,
    "float | None": float | None,
    "str | None": str | None,
    "Sequence[int] | None": tuple[int, ...] | None,
}
# Ranges and choices of arguments that mean the same in every mixer.
_PROBABILITY = {"least": 0, "below": 1}
_SIZE = {"least": 1, "most": 2**20}
LIMITS: dict[str, dict[str, Any]] = {
    "dropout": _PROBABILITY,
    "weight_dropout": _PROBABILITY,
    "num_heads": _SIZE,
    "num_kv_heads": _SIZE,
    "head_dim": _SIZE,
    "out_dim": _SIZE,
    "hidden_dim": _SIZE,
    "ffn_dim": _SIZE,
    "score_dim": _SIZE,
    "kernel_size": _SIZE,
    "kernel_sizes": _SIZE,
    "window": _SIZE,
    "half_window": _SIZE,
    "max_offset": _SIZE,
    "max_len": _SIZE,
    "reduction": _SIZE,
    "rank": _SIZE,
    "grid_width": _SIZE,
    "backend": {"choices": ("auto", "triton", "torch")},
    "reset": {"choices": ("before", "after")},
    "weights": {"choices": ("softmax", "relu", "sparsemax", "entmax15")},
    "encoding": {"choices": ("learned", "sinusoidal")},
    "readout": {"choices": ("linear", "maxout")},
    "initial": {"choices": ("mean", "backward")},
    "summary": {"choices": ("ends", "mean")},
    "score": {"choices": ("dot", "general", "concat", "location")},
    "scope": {"choices": ("global", "local_m", "local_p")},
    "pairwise": {"choices": ("gaussian", "embedded_gaussian", "dot_product", "concatenation", "additive")},
}


@dataclasses.dataclass(frozen=True)
class MixerSettings(Section):
    """Settings of the section `mixer`: its slots, whose settings are arguments of mixers, and further layers."""

    section: ClassVar[str] = "mixer"

    encoder: Mapping[str, Any] = setting({}, "self mixers of the encoder")
    decoder: Mapping[str, Any] = setting({}, "self mixers of the decoder")
    cross: Mapping[str, Any] = setting({}, "cross mixers of the decoder")
    extra_encoder_layers: int = setting(
        0, "encoder layers beside model.encoder_layers, for mixers of few parameters", least=-1000, most=1000
    )


def check_mixer(mixer: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """Check the keys, the types and the common ranges of a plain section `mixer`; constructors check the rest.

    Args:
        model: The section `model`.

    Returns:
        The section, with whole numbers written as such.

    Raises:
        ValueError: A key or a value is wrong.
    """
    settings = read_section(MixerSettings, mixer, "mixer")
    result = dict(mixer)
    if "extra_encoder_layers" in mixer:
        result["extra_encoder_layers"] = settings.extra_encoder_layers
    for slot in SLOTS:
        if mixer.get(slot):
            result[slot] = _check_slot(mixer[slot], f"mixer.{slot}")
    _check_heads(result, model)
    return result


def mixers_of(section: Mapping[str, Any], *, used: bool = False) -> Iterator[tuple[str, str, Any]]:
    """Yield the slot, the dotted path and the settings of every mixer that a section `mixer` names, in their order.

    Args:
        used: Leave out kinds that no layer uses.
    """
    for slot in SLOTS:
        for path, values in _mixers(section.get(slot), f"mixer.{slot}", used=used):
            yield slot, path, values


def _mixers(values: Any, path: str, *, used: bool) -> Iterator[tuple[str, Any]]:
    """Yield path and settings of one mixer, or of those of all `kinds`, each of which may have kinds again."""
    if not isinstance(values, Mapping):
        return
    if "kinds" in values:
        for name, kind in values["kinds"].items():
            if not used or name in values["pattern"]:
                yield from _mixers(kind, f"{path}.kinds.{name}", used=used)
    elif "_target_" in values:
        yield path, values


def class_names(section: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return for each slot of a section `mixer` the names of its mixers' classes, "none" for an empty one."""
    names: dict[str, list[str]] = {slot: [] for slot in SLOTS}
    for slot, _, values in mixers_of(section):
        names[slot].append(str(values["_target_"]).rpartition(".")[2])
    return {slot: found or ["none"] for slot, found in names.items()}


def targets_of(mixer: Any) -> list[str]:
    """Return every `_target_` that a section `mixer` names, also of kinds that no layer uses."""
    found: list[str] = []
    nodes = [mixer]
    # Once each: a checkpoint that anybody wrote may contain a section in itself
    seen: set[int] = set()
    for node in nodes:
        if isinstance(node, Mapping) and id(node) not in seen:
            seen.add(id(node))
            found += [str(value) for key, value in node.items() if key == "_target_"]
            nodes += [value for key, value in node.items() if key != "_target_"]
    return found


def packages_of(mixer: Any) -> tuple[str, ...]:
    """Return the packages of all classes that a section `mixer` names, sorted: a run trusts those of its settings."""
    return tuple(sorted({target.partition(".")[0] for target in targets_of(mixer)}))


def _check_slot(values: Any, path: str) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        raise ValueError(f"{path}={shown(values)} is not a section; choose a file, as in mixer/self@{path}=attention")
    if "kinds" not in values:
        return _check_arguments(values, path)
    kinds, pattern = values["kinds"], values.get("pattern")
    if not isinstance(kinds, Mapping):
        raise ValueError(f"{path}.kinds={shown(kinds)} is not a mapping {{name: mixer}}")
    if wrong := [key for key in values if key not in _STACK]:
        raise ValueError(f"unknown setting {path}.{shown(wrong[0])} (known: {', '.join(_STACK)})")
    if not isinstance(pattern, list | tuple) or not pattern or not all(kind in kinds for kind in map(str, pattern)):
        raise ValueError(f"{path}.pattern={shown(pattern)} is not a list of the kinds {', '.join(map(str, kinds))}")
    return {**values, "kinds": {name: _check_slot(kind, f"{path}.kinds.{name}") for name, kind in kinds.items()}}


def _check_arguments(values: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Check the arguments of one mixer, and those that `per_layer` lists."""
    known = _constructor(str(values.get("_target_")))
    # Another package's mixer, or none: `build` says what is allowed.
    if known is None:
        return dict(values)
    per_layer = values.get("per_layer") or {}
    if not isinstance(per_layer, Mapping):
        raise ValueError(f"{path}.per_layer={shown(per_layer)} is not a mapping {{argument: [a value for each layer]}}")
    result: dict[str, Any] = {}
    for key, value in values.items():
        if key == "per_layer" and per_layer:
            result[key] = {name: _check_list(each, known, name, f"{path}.{key}") for name, each in value.items()}
        elif key not in ("_target_", "per_layer"):
            result[key] = _check_argument(value, known, key, path)
        else:
            result[key] = value
    return result


def _check_list(values: Any, known: Mapping[str, str], name: str, path: str) -> list[Any]:
    if not isinstance(values, list | tuple) or not values:
        raise ValueError(f"{path}.{name}={shown(values)} is not a list of one value for each layer")
    return [_check_argument(value, known, name, path) for value in values]


def _check_argument(value: Any, known: Mapping[str, str], name: Any, path: str) -> Any:
    key = f"{path}.{shown(name)}"
    if name not in known:
        near = suggestion(str(name), list(known))
        raise ValueError(f"unknown setting {key}{near} (known: {', '.join(known) or 'none'})")
    hint = _TYPES.get(known[name])
    if hint is None:
        return value
    checked = check_value(value, hint, LIMITS.get(name, {}), key)
    if isinstance(checked, tuple) and not isinstance(value, list | tuple):
        return list(checked)  # one number is a list of one
    # As YAML and checkpoints have it: other values stay as they were written.
    return checked if isinstance(value, float) and type(checked) is int else value


@functools.cache
def _constructor(target: str) -> dict[str, str] | None:
    """Return the arguments of a mixer's constructor and their annotations; None if it is none of this package's."""
    module, _, name = target.rpartition(".")
    parts = module.split(".")
    # No path but a module's: the target may come from anywhere.
    if parts[:2] != ["seq2seq", "mixers"] or len(parts) != 3 or not parts[2].isidentifier():
        return None
    file = Path(seq2seq.__file__).parent / "mixers" / f"{parts[2]}.py"
    if not file.is_file():
        return None
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _arguments(node)
    return None


def _arguments(node: ast.ClassDef) -> dict[str, str] | None:
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            # Constructors are keyword-only.
            return {
                argument.arg: ast.unparse(argument.annotation) if argument.annotation else ""
                for argument in each.args.kwonlyargs
                if argument.arg not in _SIZES
            }
    return None


def _check_heads(mixer: Mapping[str, Any], model: Mapping[str, Any]) -> None:
    """Check that heads divide the model's width, where nothing changes the width of a layer."""
    mixers = list(mixers_of(mixer))
    if any(values.get("out_dim") for _, _, values in mixers) or not isinstance(model.get("dim"), int):
        return
    for _, path, values in mixers:
        per_layer = values.get("per_layer") or {}
        if values.get("head_dim") or "head_dim" in per_layer:
            continue
        for each in [values.get("num_heads"), *(per_layer.get("num_heads") or ())]:
            if isinstance(each, int):
                try:
                    require_divisible(model["dim"], each)
                except ValueError as error:
                    raise ValueError(f"{path}: {error}") from None


def require_divisible(dim: int, num_heads: int) -> int:
    """Return dim / num_heads.

    Raises:
        ValueError: `num_heads` does not divide `dim`; the message lists what does.
    """
    if num_heads < 1 or dim % num_heads:
        # Short enough to print.
        good = [n for n in range(1, min(dim, 64) + 1) if dim % n == 0]
        raise ValueError(f"dim {dim} is not divisible by num_heads {num_heads}; choose num_heads from {good}")
    return dim // num_heads
