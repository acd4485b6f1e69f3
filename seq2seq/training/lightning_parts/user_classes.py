"""Make the callbacks and loggers that a user's settings name by their class."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import lightning as L
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from lightning.pytorch.callbacks import GradientAccumulationScheduler, StochasticWeightAveraging, WeightAveraging
from lightning.pytorch.utilities.model_helpers import is_overridden

from seq2seq.settings.classes import entries
from seq2seq.settings.values import suggestion

Made = TypeVar("Made")

# Callbacks of Lightning that a setting replaces, because they do not fit the validations, checkpoints and resumption of
# a run: averages would be scored but not saved, and a resumed run would have another number of micro-batches.
_SETTINGS_INSTEAD: dict[type[L.Callback], str] = {
    WeightAveraging: "trainer.ema",
    StochasticWeightAveraging: "trainer.ema, or trainer.keep_last with python -m seq2seq.average,",
    GradientAccumulationScheduler: "trainer.accumulate_start with trainer.accumulate_share",
}


def user_callbacks(section: Mapping[str, Any] | None, *, taken: set[str]) -> list[L.Callback]:
    """Make the callbacks of the section `callbacks`, in its order.

    Args:
        taken: Names under which the run's own callbacks save their states.

    Raises:
        ValueError: A class is missing, refuses its arguments, is not a callback, is replaced by a setting, or saves its
            state under the same name as another one.
    """
    made = []
    owners = dict.fromkeys(taken, "a callback of every run")
    for name, node in entries(section).items():
        key = f"callbacks.{name}"
        require_call(key, node)
        callback = make(key, node, L.Callback)
        for refused, instead in _SETTINGS_INSTEAD.items():
            if isinstance(callback, refused):
                raise ValueError(f"{key}: a run cannot use {type(callback).__name__}; set {instead} instead")
        # Lightning would refuse this, but only after the corpus was prepared.
        if is_overridden("state_dict", callback, parent=L.Callback):
            if callback.state_key in owners:
                raise ValueError(
                    f"{key} saves its state as '{callback.state_key}', as does {owners[callback.state_key]}: give its "
                    "class another state_key"
                )
            owners[callback.state_key] = key
        made.append(callback)
    return made


def require_call(key: str, node: Mapping[str, Any], base: type | None = None) -> Callable[..., Any]:
    """Import the class or function of an entry, and check that it takes the entry's arguments.

    Args:
        key: The entry, for messages.
        base: Class that a class must derive from; None leaves this check to `make`.

    Returns:
        The class or function.

    Raises:
        ValueError: The import fails, or an argument is unknown.
    """
    target = _call(key, node, {"_target_": node["_target_"], "_partial_": True}).func
    if base and isinstance(target, type) and not issubclass(target, base):
        raise _wrong_type(key, node, target, base)
    parameters = _parameters(target)
    # Hydra's own arguments: _target_, _args_, _partial_, _recursive_, _convert_
    arguments = [name for name in map(str, node) if not (name.startswith("_") and name.endswith("_"))]
    unknown = [name for name in arguments if name not in parameters]
    if unknown and not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        hint = suggestion(unknown[0], list(parameters)) or f"; it takes {', '.join(parameters) or 'none'}"
        raise ValueError(f"{key}.{unknown[0]} is not an argument of {node['_target_']}{hint}")
    return target


def make(key: str, node: Mapping[str, Any], base: type[Made], **given: Any) -> Made:
    """Make the object of an entry.

    Args:
        given: Default arguments, which the entry may override.

    Raises:
        ValueError: The class refuses the arguments, or the object is not a `base`.
    """
    made = _call(key, node, {**given, **node})
    if not isinstance(made, base):
        raise _wrong_type(key, node, type(made), base)
    return made


def accepted(target: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `given` arguments for which a class or function has a parameter."""
    parameters = _parameters(target)
    return {name: value for name, value in given.items() if name in parameters}


def _call(key: str, node: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
    try:
        return instantiate(arguments, _convert_="all")
    except InstantiationException as error:
        # Hydra's message has several lines; its cause is the error of the class or of its import.
        cause = error.__cause__ or error
        text = " ".join(str(cause).split()) or type(cause).__name__
        raise ValueError(f"{key}: {node['_target_']} cannot be made: {text}") from error


def _wrong_type(key: str, node: Mapping[str, Any], found: type, base: type) -> ValueError:
    wanted = f"{base.__module__}.{base.__qualname__}"
    problem = f"{key}._target_={node['_target_']} makes a {found.__qualname__}, not a {base.__name__} of Lightning"
    # lightning and pytorch_lightning have the same classes, but each package refuses the classes of the other.
    if any(each.__module__.startswith("pytorch_lightning.") for each in found.__mro__):
        return ValueError(f"{problem}, but one of pytorch_lightning: derive it from {wanted}")
    return ValueError(f"{problem} ({wanted})")


def _parameters(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        found = inspect.signature(target).parameters
    except (TypeError, ValueError):
        # Without a signature any argument may be right.
        return {"arguments": inspect.Parameter("arguments", inspect.Parameter.VAR_KEYWORD)}
    return {name: each for name, each in found.items() if each.kind is not inspect.Parameter.VAR_POSITIONAL}
