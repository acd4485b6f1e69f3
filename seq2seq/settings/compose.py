"""Compose settings with Hydra, and find those that a user chose among all that have values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from seq2seq.settings.dicts import differences
from seq2seq.settings.values import shown
from seq2seq.system.resources import choices, conf_dir

# Hydra's advice in its messages, which would lead away from the mistake.
_ADVICE = (
    *("See https", "To append", "Set the environment", "Available", "Config search path"),
    *("full_key", "object_type", "reference_type"),
)


def presets() -> list[str]:
    """List the presets: the files of conf/mixer."""
    return choices("mixer")


def self_mixers() -> list[str]:
    """List the self mixers: the files of conf/mixer/self but for the empty slot's."""
    return [name for name in choices("mixer/self") if name != "none"]


def compose_settings(overrides: Sequence[str] = ()) -> DictConfig:
    """Compose the settings of `python -m seq2seq.train` with these overrides; interpolations stay.

    Raises:
        ValueError: Hydra refuses the overrides; says why in one line.
    """
    try:
        # Explaining composes again, so only where Hydra has refused.
        return compose_or_raise(overrides)
    except (HydraException, OmegaConfBaseException) as error:
        from seq2seq.settings.explain import explain

        # from None: Hydra's trace of its own files helps nobody.
        raise ValueError(explain(overrides) or one_line(error)) from None


def resolved_settings(overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Compose settings as plain values, interpolations resolved.

    Raises:
        ValueError: Hydra refuses the overrides, or an interpolation has no value.
    """
    return plain_settings(compose_settings(overrides))


def compose_or_raise(overrides: Sequence[str], **options: Any) -> DictConfig:
    """Compose settings; what Hydra and OmegaConf raise is theirs."""
    # Within a command that Hydra runs, as where `train` asks what an experiment sets: --config-dir counts, too.
    if GlobalHydra.instance().is_initialized():
        return compose("train", list(overrides), **options)
    # An absolute path, which also works from console scripts and launchers.
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose("train", list(overrides), **options)


def plain_settings(config: DictConfig) -> dict[str, Any]:
    """Return composed settings as plain values, interpolations resolved.

    Raises:
        ValueError: an interpolation has no value, or is its own.
    """
    try:
        return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        raise ValueError(one_line(error)) from None
    except RecursionError:
        raise ValueError("settings: an interpolation ${...} leads back to itself") from None


def one_line(error: Exception) -> str:
    """Return what Hydra says, on one line, without its advice and its place in Hydra's own files."""
    lines = [" ".join(line.split()) for line in str(error).splitlines()]
    kept = [line for line in lines if line and not line.startswith(_ADVICE)]
    return f"settings: {shown('; '.join(kept[:2]), most=300)}"


# Sections that an experiment file means as a whole: settings of it that equal the defaults belong to its choice.
_WHOLE = ("model", "mixer", "optim")


def chosen_settings(words: Sequence[str]) -> frozenset[str]:
    """Return the keys that the overrides `words` set; a section stands for all its keys, as in `mixer`.

    A choice of files, as in mixer=gru, sets its section. An experiment sets what it changes, and each of the sections
    model, mixer and optim as a whole if it changes anything in it.
    """
    found: set[str] = set()
    for word in words:
        key, _, value = word.lstrip("+~").partition("=")
        if key == "experiment":
            if value not in ("", "null"):
                found |= _changed_by(word)
        else:
            # mixer/self@mixer.encoder and mixer/cross: the section that the file is put in
            found.add(key.partition("@")[2] or key.replace("/", "."))
    return frozenset(found)


def typed_settings(words: Sequence[str]) -> frozenset[str]:
    """Return the keys of single settings that the overrides `words` set, without what a file or an experiment sets."""
    keys = (word.lstrip("+~").partition("=")[0] for word in words)
    return frozenset(key for key in keys if "." in key and "@" not in key)


def is_chosen(key: str, chosen: Iterable[str]) -> bool:
    """Return True if `chosen` has a key, a section that it is in, or one of its own keys."""
    return any(f"{key}.".startswith(f"{each}.") or each.startswith(f"{key}.") for each in chosen)


def _changed_by(word: str) -> set[str]:
    keys = {key for key, _, _ in differences(resolved_settings(), resolved_settings([word]))}
    return {section if (section := key.partition(".")[0]) in _WHOLE else key for key in keys}
