"""Write and read last.ckpt: Lightning's own dictionary, with all that a run needs to resume."""

from __future__ import annotations

import logging
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from seq2seq import checkpoint
from seq2seq.metadata import KEY
from seq2seq.network.build import build_model, on_meta_device
from seq2seq.network.low_rank import merged
from seq2seq.runs.folder import ORIGIN, RunFolder
from seq2seq.settings.classes import packages_of
from seq2seq.system.files import atomic_file, regular_file, require_stored
from seq2seq.system.model_path import LAST, PREVIOUS

log = logging.getLogger(__name__)

# Prefix of the names of the model's weights in Lightning's dictionary.
PREFIX = "model."
# The entries that a run resumes from.
_PARTS = (KEY, ORIGIN, "state_dict", "optimizer_states", "lr_schedulers", "loops", "callbacks", "global_step")


def save_state(path: Path, payload: Mapping[str, Any]) -> None:
    """Write the state of a training atomically; a run's last.ckpt becomes its previous.ckpt.

    Raises:
        NotFiniteWeightsError: It holds a weight that is nan or inf.
        ValueError: A callback keeps more than plain values and tensors.
    """
    checkpoint.require_finite(model_weights(payload), path)
    with atomic_file(path, keep=PREVIOUS.name if path.parts[-2:] == LAST.parts else None) as file:
        torch.save(dict(payload), file)
        # Check that the file can be read before it replaces the last one; with mmap, this reads no tensors
        file.flush()
        try:
            torch.load(file.name, map_location="cpu", weights_only=True, mmap=True)
        except pickle.UnpicklingError as error:
            reason = next((line for line in str(error).splitlines() if "GLOBAL" in line), "")[:200]
            raise ValueError(
                f"{path} was not written: a callback keeps more than plain values and tensors ({reason.strip()})"
            ) from None


def read_state(path: Path, *, mmap: bool = False) -> dict[str, Any]:
    """Read the state of a training to the CPU; `mmap` leaves tensors on the disk until they are used.

    Raises:
        ValueError: The file is damaged, or not the state of a run.
    """
    try:
        regular_file(path).close()
        payload = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror or error})") from None
    except Exception as error:  # torch raises many types for a damaged file
        raise ValueError(f"{path}: is damaged, or not the state of a run ({type(error).__name__})") from None
    missing = [part for part in _PARTS if not isinstance(payload, dict) or part not in payload]
    if missing:
        raise ValueError(f"{path}: is not the state of a run: it has no '{missing[0]}'")
    return payload


def newest_state(folder: RunFolder) -> Path | None:
    """Return the newest whole state of a run, None if the run has no state; warn if it is the previous one.

    Raises:
        ValueError: The run has states, but all are damaged.
    """
    faults = []
    for path in folder.states:
        try:
            step = _read_whole(path)["global_step"]
        except ValueError as error:
            faults.append(str(error))
            continue
        if path != folder.last:
            reason = faults[0] if faults else f"{folder.last} is missing"
            log.warning("%s: continuing from %s, of update %s", reason, path, f"{step:,}")
        return path
    if not faults:
        return None
    weights = f"start a new run from its weights with init_from={folder.path} run=<name>"
    rest = weights if folder.best.exists() else "delete the folder to start over"
    raise ValueError(f"{'; '.join(faults)}; no whole state is left: {rest}")


def _read_whole(path: Path) -> dict[str, Any]:
    """Read a state; raise ValueError if its checksums do not fit its content, or the file is not a state."""
    payload = read_state(path, mmap=True)
    try:
        with zipfile.ZipFile(path) as archive:
            require_stored(archive)
            whole = archive.testzip() is None
    except Exception:  # zipfile raises many types for a damaged file
        whole = False
    if not whole:
        raise ValueError(f"{path}: is damaged")
    return payload


def updates(path: Path) -> int | None:
    """Return the number of updates of a state; None if it is damaged or missing."""
    try:
        return _read_whole(path)["global_step"]
    except ValueError:
        return None


def model_weights(payload: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the weights of the model under its own names, with low-rank updates added."""
    weights = payload["state_dict"].items()
    return merged({name.removeprefix(PREFIX): weight for name, weight in weights if name.startswith(PREFIX)})


def require_fit(payload: Mapping[str, Any], config: Mapping[str, Any], path: Path) -> None:
    """Raise ValueError if the model or the optimizer of `config` cannot load a state, not even with force=true."""
    settings = payload[ORIGIN]["settings"]["optim"]
    for key, default in (("name", None), ("freeze", []), ("lora", None)):
        before, now = settings.get(key, default), config["optim"][key]
        if before != now:
            raise ValueError(
                f"resume={path}: optim.{key} was {before} and is now {now}, which cannot continue from its state; "
                f"start a new run from its weights with init_from={path.parents[1]} run=<name>"
            )
    with on_meta_device():
        settings = {**payload[KEY]["model"], "model": config["model"], "mixer": config["mixer"]}
        model = build_model(settings, trust=packages_of(config["mixer"]))
    checkpoint.check_weights(model, checkpoint.stored_once(model_weights(payload)), path)
