"""Import packages that only some commands need."""

from __future__ import annotations

import importlib
from typing import Any


class MissingPackageError(ValueError):
    """Error of a package that is not installed; the message is one line and says how to install it."""


def require(module: str, purpose: str, *, extra: str = "export") -> Any:
    """Import a module of a package that is optional.

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
        package = module.partition(".")[0]
        reason = "" if isinstance(error, ModuleNotFoundError) and error.name == package else f" ({error})"
        raise MissingPackageError(
            f"{purpose} needs the package {package}{reason}: pip install 'seq2seq-mixers[{extra}]'"
        ) from None
