"""Import optional packages, which only some settings and commands need."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

# The name of this project for pip.
_PROJECT = "seq2seq-mixers"
# Names of packages by module, where the two names differ.
_PACKAGE_OF = {
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "prometheus_client": "prometheus-client",
    "hydra": "hydra-core",
    "markdown_it": "markdown-it-py",
}
# Modules of the extra `train`, which training needs and translating does not.
_OF_TRAINING = ("hydra", "omegaconf", "lightning", "datasets", "pyarrow", "rich", "tensorboard")


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


@contextlib.contextmanager
def naming_training(purpose: str) -> Iterator[None]:
    """Turn the failed import of a package of the extra `train` into MissingPackageError."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _OF_TRAINING:
            raise
        raise missing_package(_PACKAGE_OF.get(error.name, error.name), purpose, extra="train") from None


def require_training(purpose: str) -> None:
    """Check that the extra `train` is installed and runs on this Python, without importing it.

    Raises:
        MissingPackageError: A package is not installed.
        ValueError: Hydra is older than Python.
    """
    for module in _OF_TRAINING:
        require_installed(module, purpose, extra="train")
    hydra = importlib.metadata.version("hydra-core")
    # From Python 3.14 on, argparse checks the help texts of options; it refuses the ones of Hydra 1.3
    if sys.version_info >= (3, 14) and hydra.startswith(("1.0", "1.1", "1.2", "1.3")):
        raise ValueError(
            f"{purpose} does not run on Python {sys.version.split()[0]} with Hydra {hydra}: use Python 3.11 to 3.13, "
            "and translate here with the checkpoint"
        )


def missing_package(package: str, purpose: str, *, extra: str) -> MissingPackageError:
    """Return the error of an optional package that is not installed."""
    return MissingPackageError(f"{purpose} needs the package {package}: pip install '{_PROJECT}[{extra}]'")
