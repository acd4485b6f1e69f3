"""Renamed settings: new runs are refused under an old name, files of older runs are read under the new one."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from seq2seq.settings.dicts import put

# Old and new keys. `*` stands for any number of parts, which stay as they are.
MOVED = (
    ("model.peak_lr", "optim.peak_lr"),
    ("mixer.*.kernel", "mixer.*.backend"),
    ("mixer.kernel", "mixer.backend"),
    ("mixer.*.centre_std", "mixer.*.center_std"),
)


def new_key(key: str) -> str | None:
    """Return the present key of a renamed setting; None if `key` was never renamed."""
    for old, new in MOVED:
        # Greedy: `*` may stand for several nested sections.
        pattern = re.escape(old).replace(r"\*", "(.+)")
        if match := re.fullmatch(pattern, key):
            return new.replace("*", match[1]) if "*" in new else new
    return None


def modernize(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of an older run's nested settings under the present names.

    Settings of a mixer are renamed where its class is one of this package: another package's are its own.
    """
    result = copy.deepcopy(dict(config))
    _rename(result, result, prefix="", ours=True, seen=set())
    return result


def _rename(root: dict[str, Any], node: dict[str, Any], *, prefix: str, ours: bool, seen: set[int]) -> None:
    # Once each: a checkpoint that anybody wrote may contain a section in itself, or many times over.
    if id(node) in seen:
        return
    seen.add(id(node))
    # Decided by the nearest class above a key.
    if "_target_" in node:
        ours = str(node["_target_"]).startswith("seq2seq.")
    # A copy of the keys: renaming changes the node.
    for key in list(node):
        path = f"{prefix}{key}"
        if isinstance(node[key], dict):
            _rename(root, node[key], prefix=f"{path}.", ours=ours, seen=seen)
        elif ours and (new := new_key(path)):
            # A file that has the new key keeps its value.
            put(root, new, node.pop(key), replace=False)
