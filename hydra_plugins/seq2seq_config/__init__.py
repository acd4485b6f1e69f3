"""Plugin that stores the schemas of all sections before Hydra composes. Hydra searches this namespace only."""

from __future__ import annotations

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from seq2seq.config.store import store_schemas


class SettingsSchema(SearchPathPlugin):
    """Plugin that stores the defaults of `seq2seq.config`, which the files of conf/ name as `schema`."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Store them; the search path stays as it is."""
        # A search path plugin, since Hydra runs these before it reads any file of conf/
        store_schemas()
