"""Check the keys of a service's clients."""

from __future__ import annotations

import hmac
from pathlib import Path

from seq2seq.inference.service.messages import RefusedError


def read_keys(path: str | None) -> list[bytes]:
    """Read one key from each line, except blank lines and comments (#).

    Raises:
        ValueError: The file cannot be read, has no key, or has one that no header can carry.
    """
    if path is None:
        return []
    try:
        lines = [line.strip() for line in Path(path).read_text("utf-8-sig").split("\n")]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--api-key-file {path}: cannot be read ({getattr(error, 'strerror', 'not UTF-8')})") from None
    keys = {number: line for number, line in enumerate(lines, 1) if line and not line.startswith("#")}
    if not keys:
        raise ValueError(f"--api-key-file {path}: has no key; write a key a line, or leave the option out")
    for number, key in keys.items():
        if not (key.isascii() and key.isprintable()):
            raise ValueError(f"--api-key-file {path}: the key in line {number} is not printable ASCII; choose another")
    return [key.encode() for key in keys.values()]


def check_key(keys: list[bytes], key: object) -> None:
    """Raise RefusedError for a client without a key (401) or with an unknown one (403); no keys serve everyone."""
    if keys and not (isinstance(key, str) and key):
        remedy = "send the header 'Authorization: Bearer KEY', or the field api_key"
        raise RefusedError(401, f"this service needs an API key: {remedy}", {"www-authenticate": "Bearer"})
    # The time tells neither the key nor its place in the file
    if keys and not sum(hmac.compare_digest(each, str(key).encode()) for each in keys):
        raise RefusedError(403, "this API key is unknown; ask whoever runs the service for one")
