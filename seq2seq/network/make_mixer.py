"""Make one layer's mixer from its settings: find the class, check the arguments, construct it."""

from __future__ import annotations

import functools
import importlib
import inspect
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch import nn

from seq2seq.network.mixer import CrossMixer, SelfMixer
from seq2seq.settings.classes import MixerSettings, mixers_of, packages_of
from seq2seq.settings.declare import defaults, join
from seq2seq.settings.dicts import differences, flat
from seq2seq.settings.run import present_settings
from seq2seq.settings.values import check_value, shown, suggestion

# The contract of each slot of the section `mixer`.
CONTRACTS: dict[str, type[nn.Module]] = {"encoder": SelfMixer, "decoder": SelfMixer, "cross": CrossMixer}
# Arguments that the model sets.
_SIZES = ("dim", "causal", "memory_dim")
# Settings of model and mixer, by their last name, that do not change the function that the weights compute.
_FREE = ("dropout", "activation_dropout", "attention_dropout", "weight_dropout", "backend", "packed")
# The largest value of a numeric argument, since larger values overflow.
_LARGEST = 2**20


class TargetError(ValueError):
    """A `_target_` is not a mixer of this package or of a package that the user trusts."""


def mixer_class(target: str, contract: type[nn.Module], *, trust: Sequence[str] = ()) -> type[Any]:
    """Return the class named by dotted path `target`.

    Args:
        target: `_target_` of a mixer's settings.
        contract: The base class that the slot requires.
        trust: Packages, besides this one, whose classes are allowed.

    Raises:
        TargetError: The class does not subclass `contract`, or is not defined in a trusted package.
    """
    # Before the import, which runs the module's code
    require_trusted(target, trust)
    module_name, _, name = str(target).rpartition(".")
    try:
        result = getattr(importlib.import_module(module_name), name, None)
    except ImportError as error:
        raise TargetError(f"_target_ {target!r} cannot be imported: {error}") from None
    if not isinstance(result, type):
        raise TargetError(f"_target_ {target!r}: {module_name} has no class {name}")
    # A trusted module may import a class of another package, which is not trusted
    require_trusted(f"{result.__module__}.{name}", trust)
    if not issubclass(result, contract) or result is contract:
        base = f"{contract.__module__}.{contract.__name__}"
        raise TargetError(f"_target_ {target!r} is not a mixer for this slot: it must be a subclass of {base}")
    return result


def require_trusted(target: str, trust: Sequence[str]) -> None:
    """Raise TargetError if `target` is not in a trusted package."""
    module_name, _, _ = str(target).rpartition(".")
    if not module_name:
        raise TargetError(f"_target_ {target!r} names no module: write package.module.Class")
    trusted = tuple(dict.fromkeys(("seq2seq", *trust)))
    if module_name.split(".")[0] not in trusted:
        raise TargetError(
            f"_target_ {target!r} is not trusted; allowed are mixers of {', '.join(trusted)}: a checkpoint with "
            "mixers of another package needs --trust PACKAGE, its top name (trust= in Python)"
        )


def layer_slot(slot: Mapping[str, Any], layer: int, num_layers: int, path: str = "") -> tuple[str, Mapping[str, Any]]:
    """Return the settings key and the settings of one layer's mixer: the slot, or an entry of its `kinds`.

    A `pattern` names the entry of `kinds` for each layer, from the bottom, and is repeated.

    Args:
        layer: Index from the bottom, 0 to num_layers - 1.
        path: The slot's settings key.
    """
    while "kinds" in slot:
        if wrong := [key for key in slot if key not in ("kinds", "pattern")]:
            key = join(path, wrong[0])
            raise ValueError(f"{key} has no effect next to kinds: leave it out, or set it for one of the kinds")
        name = join(path, "pattern")
        kind, kinds = _entry(slot.get("pattern"), layer, num_layers, name, cycle=True), slot["kinds"]
        if not isinstance(kinds, Mapping):
            raise ValueError(f"{join(path, 'kinds')}={shown(kinds)} is not a mapping {{name: mixer}}")
        if kind not in kinds:
            raise ValueError(f"{name}={shown(slot['pattern'])} is not a list of the kinds {', '.join(map(str, kinds))}")
        path, slot = join(path, f"kinds.{kind}"), kinds[kind]
    return path, slot


def layer_values(slot: Mapping[str, Any], layer: int, num_layers: int, path: str = "") -> dict[str, Any]:
    """Return the target and arguments of one layer from a slot of the mixer section.

    `per_layer` lists give one value per layer, and their last entry is repeated. A list longer than the stack is a
    ValueError.

    Args:
        layer: See `layer_slot`, also for `path`.
    """
    path, slot = layer_slot(slot, layer, num_layers, path)
    values = {key: value for key, value in slot.items() if key != "per_layer"}
    listed, name = slot.get("per_layer") or {}, join(path, "per_layer")
    if not isinstance(listed, Mapping):
        raise ValueError(f"{name}={shown(listed)} is not a mapping {{argument: [a value for each layer]}}")
    for key, entries in listed.items():
        values[key] = _entry(entries, layer, num_layers, f"{name}.{key}")
    return values


def _entry(entries: Any, layer: int, num_layers: int, name: str, *, cycle: bool = False) -> Any:
    """Return a layer's entry of a list; a short list repeats its last entry or, with `cycle`, all entries."""
    if not isinstance(entries, list | tuple) or not entries:
        raise ValueError(f"{name}={shown(entries)} is not a list of one value for each layer")
    # A list that is too long is probably a mistake in the number of layers
    if len(entries) > num_layers:
        raise ValueError(
            f"{name} lists {len(entries)} values for {num_layers} layers: {list(entries)}; "
            f"shorten it to at most {num_layers} (a shorter list is continued), or add layers"
        )
    return entries[layer % len(entries) if cycle else min(layer, len(entries) - 1)]


def class_of(values: Mapping[str, Any], slot: str, trust: Sequence[str]) -> type[Any]:
    """Return the class of a mixer's settings, see `mixer_class`; ValueError if they name none."""
    if "_target_" not in values:
        raise ValueError(f"mixer.{slot} has no _target_, the dotted name of a mixer's class: {dict(values)}")
    return mixer_class(values["_target_"], CONTRACTS[slot], trust=trust)


def checked_values(
    mixer: type[Any], values: Mapping[str, Any], path: str, listed: Collection[str] = ()
) -> dict[str, Any]:
    """Check the names and types of a mixer's arguments; the constructor checks their values.

    Args:
        path: The mixer's settings key, for messages.
        listed: Arguments that `per_layer` sets.
    """
    hints = _hints(mixer)
    known = [name for name in inspect.signature(mixer).parameters if name not in _SIZES]
    result = dict(values)
    for name, value in values.items():
        key = f"{path}.per_layer.{name}" if name in listed else f"{path}.{name}"
        if name != "_target_" and name not in known:
            raise ValueError(
                f"unknown setting {key}{suggestion(str(name), known)} (known: {', '.join(known) or 'none'})"
            )
        result[name] = check_value(value, hints.get(name, Any), {"most": _LARGEST}, key)
    return result


def make_mixer(mixer: type[Any], values: Mapping[str, Any], path: str, **sizes: Any) -> Any:
    """Construct a mixer; errors begin with its settings key."""
    arguments = {key: value for key, value in values.items() if key != "_target_"}
    for name, each in inspect.signature(mixer).parameters.items():
        required = each.default is each.empty and each.kind is each.KEYWORD_ONLY
        if required and name not in sizes and name not in arguments:
            raise ValueError(f"{path}.{name} is missing: set it by +{path}.{name}=...")
    try:
        made = mixer(**sizes, **arguments)
    except TypeError as error:
        raise ValueError(f"{path}: {values['_target_']} does not take these settings: {error}") from error
    # torch refuses sizes by RuntimeError
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"{path}: {error}") from error
    if not hasattr(made, "out_dim"):
        raise ValueError(f"{path}: {mixer.__name__} has no out_dim, the width of its output: set it in __init__")
    return made


@functools.cache
def _hints(mixer: type[Any]) -> dict[str, Any]:
    """Return the types of a constructor's arguments; {} if they cannot be resolved."""
    try:
        return typing.get_type_hints(mixer.__init__)
    except NameError:
        return {}


def default_arguments(section: Mapping[str, Any], trust: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the default arguments of a section's mixers by settings keys; `trust=None` trusts all that it names."""
    trust = packages_of(section) if trust is None else trust
    found: dict[str, Any] = {}
    for slot, path, values in mixers_of(section):
        mixer = class_of(values, slot, trust)
        for name, each in inspect.signature(mixer).parameters.items():
            if each.default is not each.empty:
                found[f"{path}.{name}"] = each.default
    return found


def model_differences(
    one: Mapping[str, Any], other: Mapping[str, Any], *, trust: Sequence[str] = ()
) -> Iterator[tuple[str, Any, Any]]:
    """Yield each setting by which equal weights of two models would compute different functions, with both values.

    What the sections `model` and `mixer` of an earlier version lack has its default. Arguments of mixers that `trust`
    does not allow (see `mixer_class`) are compared as they are written.
    """
    for key, mine, theirs in differences(_complete(one, trust), _complete(other, trust)):
        if key.rpartition(".")[2] not in _FREE:
            yield key, mine, theirs


def _complete(config: Mapping[str, Any], trust: Sequence[str]) -> dict[str, Any]:
    """Return the sections `model` and `mixer` with all defaults."""
    mixer = {**defaults(MixerSettings), **config["mixer"]}
    written = flat({"model": present_settings(config)["model"], "mixer": mixer})
    with suppress(TargetError):
        # Written settings first, since the first difference is reported
        return {**written, **default_arguments(mixer, trust), **written}
    return written
