"""Locate conf/ and data/, which are next to the package in a checkout and inside it in a wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def _find(installed: str, checkout: str) -> Path:
    # The wheel's copy first: site-packages may hold a folder `data` of another package
    for candidate in (_PACKAGE / installed, _PACKAGE.parent / checkout):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(
        f"neither {_PACKAGE / installed} nor {_PACKAGE.parent / checkout} exists; "
        "reinstall the package, or run from a complete checkout"
    )


def conf_dir() -> Path:
    """Return the folder of Hydra groups (`conf/` in a checkout, `seq2seq/_conf` in a wheel), absolute."""
    # hydra.main cannot resolve a relative path once its module is imported
    return _find("_conf", "conf")


def choices(group: str) -> list[str]:
    """List the names of the files in a group of `conf_dir`, sorted; the list is empty for an unknown group."""
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


def data_dir() -> Path:
    """Return the folder of the embedded corpus (`data/` in a checkout, `seq2seq/_data` in a wheel), absolute."""
    return _find("_data", "data")
