"""Locate the settings and the embedded corpus: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def _find(installed: str, checkout: str) -> Path:
    # The wheel's copy first: in site-packages, beside the package, `data` may be anybody's
    for candidate in (_PACKAGE / installed, _PACKAGE.parent / checkout):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(
        f"neither {_PACKAGE / installed} nor {_PACKAGE.parent / checkout} exists; "
        "reinstall the package, or run from a complete checkout"
    )


def conf_dir() -> Path:
    """Return the folder of Hydra groups (`conf/` in a checkout, `seq2seq/_conf` in a wheel), absolute."""
    # Absolute, because hydra.main cannot resolve a relative path once its module is imported
    return _find("_conf", "conf")


def choices(group: str) -> list[str]:
    """List the names of the files in a group of `conf_dir`, sorted; none where there is no such group."""
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


def data_dir() -> Path:
    """Return the folder of the embedded corpus (`data/` in a checkout, `seq2seq/_data` in a wheel), absolute."""
    return _find("_data", "data")
