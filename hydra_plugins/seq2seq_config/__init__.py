"""Plugin that stores the schemas of all sections before Hydra composes. Hydra searches this namespace only."""

from __future__ import annotations

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.plugins.search_path_plugin import SearchPathPlugin

from seq2seq.settings.declare import defaults
from seq2seq.settings.run import SECTIONS


class SettingsSchema(SearchPathPlugin):
    """Plugin that stores the defaults of `seq2seq.settings`, which the files of conf/ name as `schema`."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Store the defaults; the search path stays as it is."""
        # Hydra runs plugins of this kind before it reads a file of conf/. The values are plain, not typed, so that
        # `read_settings` refuses wrong types, with messages that name a remedy.
        for section, cls in SECTIONS.items():
            node = defaults(cls)
            ConfigStore.instance().store(group=section or None, name="schema", node=node, provider="seq2seq")
