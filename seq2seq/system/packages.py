"""Import optional packages, which only some settings and commands need."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

# The name of this project for pip.
_PROJECT = "seq2seq-mixers"
# Names of packages by module, where the two names differ.
_PACKAGE_OF = {
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "prometheus_client": "prometheus-client",
    "markdown_it": "markdown-it-py",
}


class MissingPackageError(ValueError):
    """Error of a package that is not installed; the message, one line, says how to install it."""


def require(module: str, purpose: str, *, extra: str) -> Any:
    """Import a module of an optional package.

    Args:
        module: Dotted name of the module.
        purpose: The feature that needs the package, for the message.
        extra: The extra of this project that installs the package.

    Raises:
        MissingPackageError: The package is not installed, or its import fails.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        root = module.partition(".")[0]
        reason = "" if isinstance(error, ModuleNotFoundError) and error.name == root else f" ({error})"
        raise missing_package(f"{_PACKAGE_OF.get(root, root)}{reason}", purpose, extra=extra) from None


def require_installed(module: str, purpose: str, *, extra: str) -> None:
    """Check that an optional package is installed, without importing it; see `require`."""
    if importlib.util.find_spec(module) is None:
        raise missing_package(_PACKAGE_OF.get(module, module), purpose, extra=extra)


def missing_package(package: str, purpose: str, *, extra: str) -> MissingPackageError:
    """Return the error of an optional package that is not installed."""
    return MissingPackageError(f"{purpose} needs the package {package}: pip install '{_PROJECT}[{extra}]'")
