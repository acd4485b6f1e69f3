"""Settings that have another name now: new runs are refused with it, old files are read under it."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

# Old and new keys. `*` stands for any number of parts, which stay as they are.
MOVED = (
    ("model.peak_lr", "optim.peak_lr"),
    ("mixer.*.kernel", "mixer.*.backend"),
    ("mixer.kernel", "mixer.backend"),
)


def new_key(key: str) -> str | None:
    """Return the key that a moved setting has now, or None if there never was a setting `key`."""
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
    _rename(result, result, prefix="", ours=True)
    return result


def _rename(root: dict[str, Any], node: dict[str, Any], *, prefix: str, ours: bool) -> None:
    # Decided by the nearest class above a key.
    if "_target_" in node:
        ours = str(node["_target_"]).startswith("seq2seq.")
    # A copy of the keys: renaming changes the node.
    for key in list(node):
        path = f"{prefix}{key}"
        if isinstance(node[key], dict):
            _rename(root, node[key], prefix=f"{path}.", ours=ours)
        elif ours and (new := new_key(path)):
            _put(root, new, node.pop(key))


def _put(root: dict[str, Any], path: str, value: Any) -> None:
    *parents, leaf = path.split(".")
    for parent in parents:
        root = root.setdefault(parent, {})
    # A file that has the new key keeps its value.
    root.setdefault(leaf, value)
