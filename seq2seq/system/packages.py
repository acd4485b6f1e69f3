"""Import or look for packages that only some settings and commands need: the extras of this project."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

# The name of this project for pip, with which an extra can be added to whatever way it was installed.
_PROJECT = "seq2seq-mixers"
# Modules whose package has another name.
_PACKAGE_OF = {"PIL": "pillow", "sklearn": "scikit-learn", "prometheus_client": "prometheus-client"}


class MissingPackageError(ValueError):
    """Error of a package that is not installed; the message is one line and says how to install it."""


def require(module: str, purpose: str, *, extra: str) -> Any:
    """Import a module of an optional package.

    Args:
        module: Its dotted name.
        purpose: What needs it, for the message.
        extra: The extra of this project that installs it.

    Raises:
        MissingPackageError: It is not installed, or does not import.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        root = module.partition(".")[0]
        reason = "" if isinstance(error, ModuleNotFoundError) and error.name == root else f" ({error})"
        raise missing_package(f"{_PACKAGE_OF.get(root, root)}{reason}", purpose, extra=extra) from None


def require_installed(module: str, purpose: str, *, extra: str) -> None:
    """Check that an optional package is installed, without the time that its import takes; see `require`."""
    if importlib.util.find_spec(module) is None:
        raise missing_package(_PACKAGE_OF.get(module, module), purpose, extra=extra)


def missing_package(package: str, purpose: str, *, extra: str) -> MissingPackageError:
    """Return the error of an optional package that is not installed."""
    return MissingPackageError(f"{purpose} needs the package {package}: pip install '{_PROJECT}[{extra}]'")
