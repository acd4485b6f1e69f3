"""Check who may use a service: keys of clients, names of the service, origins of pages, and proxies."""

from __future__ import annotations

import hmac
import re
from pathlib import Path

from seq2seq.inference.service.messages import RefusedError
from seq2seq.inference.service.settings import ServiceSettings


class Access:
    """The settings that say who may use a service.

    Attributes:
        keys: Keys of clients; none serve everyone.
        origins: Origins whose pages may use the service.
        names: Names of the service.
        proxies: Addresses of proxies.

    Raises:
        ValueError: An entry has another form, or the file of keys cannot be used.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.read_keys()
        remedy = "is not an origin; write it like https://app.example.org, or * for any"
        self.origins = _listed("--cors", settings.cors, r"\*|[a-z][a-z0-9+.-]*://[^/?#\s]+", remedy)
        remedy = "is not a host name; write it like mt.example.org, or * for any"
        self.names = _listed("--allowed-hosts", settings.allowed_hosts, r"\*|[^*/?#@]+", remedy)
        remedy = "is not an address; write it like 172.30.0.2 or 10.0.0.0/8, or * for any"
        self.proxies = _listed("--proxy", settings.proxy, r"\*|(?=.*[.:])[0-9A-Fa-f.:]+(/\d+)?", remedy)

    def read_keys(self) -> None:
        """Read the keys of clients, also again; if that fails (ValueError), earlier keys stay."""
        self.keys = read_keys(self.settings.api_key_file)


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
        raise RefusedError(403, "this API key is unknown; ask the operator of this service for one")


def _listed(option: str, given: str | None, form: str, remedy: str) -> list[str]:
    """Read the entries of an option; raise ValueError for an entry that is not of the form, a regular expression."""
    entries = [each.rstrip("/") for each in (given or "").replace(",", " ").split()]
    for entry in entries:
        if not re.fullmatch(form, entry):
            raise ValueError(f"{option} {entry}: {remedy}")
    return entries
