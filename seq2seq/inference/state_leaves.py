"""Take a decoder's state or context apart into tensors and caches, and put it together again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from seq2seq.state import Cache


def leaves(tree: Any) -> list[Tensor | Cache]:
    """Return the tensors and caches of a state or a context, in order."""
    if tree is None:  # the state of an empty slot
        return []
    if _is_leaf(tree):
        return [tree]
    return [leaf for part in tree for leaf in leaves(part)]


def rebuild(tree: Any, parts: Iterable[Any]) -> Any:
    """Return a state or a context of the form of `tree` with other leaves."""
    return _rebuild(tree, iter(parts))


def shared(parts: Iterable[Tensor | Cache]) -> tuple[list[Any], list[int]]:
    """Return the ancestries of the caches among `parts`, each once, and for each cache the number of its own."""
    found: list[Any] = []
    numbers = []
    for cache in parts:
        if isinstance(cache, Tensor):
            continue
        if not any(cache.ancestry is known for known in found):
            found.append(cache.ancestry)
        numbers.append(next(i for i, known in enumerate(found) if known is cache.ancestry))
    return found, numbers


def _rebuild(tree: Any, parts: Iterator[Any]) -> Any:
    if tree is None:
        return None
    if _is_leaf(tree):
        return next(parts)
    inner = [_rebuild(part, parts) for part in tree]
    # NamedTuples are rebuilt as their own type, by position
    return inner if isinstance(tree, list) else type(tree)(*inner)


def _is_leaf(part: Any) -> bool:
    # a cache is told by what mixers do with it: a traced one is not a `Cache`
    return isinstance(part, Tensor) or hasattr(part, "read")
