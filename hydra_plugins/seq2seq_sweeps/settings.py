"""Defaults of `hydra/launcher=basic`, `submitit_local` and `hydra/sweeper=optuna` that replace those of the packages.

They cannot be YAML files: Hydra refuses a file with the name of a schema that a package has stored.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from hydra._internal.core_plugins.basic_launcher import BasicLauncherConf
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.plugins.search_path_plugin import SearchPathPlugin


class SweepSettings(SearchPathPlugin):
    """Plugin that stores other defaults under the packages' names, after the packages have stored theirs."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Store the settings; the search path stays as it is."""
        target = "hydra_plugins.seq2seq_sweeps.launchers.SequentialLauncher"
        _store("hydra/launcher", "basic", BasicLauncherConf, {"_target_": target})
        # Both packages are optional
        with contextlib.suppress(ImportError):
            self._store_local()
        with contextlib.suppress(ImportError):
            self._store_optuna()

    def _store_local(self) -> None:
        """Run each job in a process of this machine, all at the same time by default, for at most a week."""
        from hydra_plugins.hydra_submitit_launcher.config import LocalQueueConf

        target = "hydra_plugins.seq2seq_sweeps.launchers.LocalLauncher"
        settings = {"_target_": target, "timeout_min": 10080, "stderr_to_stdout": True, "array_parallelism": None}
        _store("hydra/launcher", "submitit_local", LocalQueueConf, settings)

    def _store_optuna(self) -> None:
        """Maximize what a run returns, its best validation BLEU; a failed trial ends no search."""
        from hydra_plugins.hydra_optuna_sweeper.config import Direction, OptunaSweeperConf

        settings = {"direction": Direction.maximize, "n_jobs": 1, "max_failure_rate": 1.0}
        _store("hydra/sweeper", "optuna", OptunaSweeperConf, settings)


def _store(group: str, name: str, base: Any, settings: dict[str, Any]) -> None:
    """Store the schema `base` with other defaults under Hydra's name for it."""
    # A subclass with new defaults keeps every other setting of the package
    fields = [(key, Any, dataclasses.field(default=value)) for key, value in settings.items()]
    node = dataclasses.make_dataclass(base.__name__, fields, bases=(base,))
    # Hydra uses the last schema of a name
    ConfigStore.instance().store(group=group, name=name, node=node, provider="seq2seq")
