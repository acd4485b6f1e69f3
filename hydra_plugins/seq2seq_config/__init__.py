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
        """Store them; the search path stays as it is."""
        # A search path plugin, since Hydra runs these before it reads any file of conf/
        # Plain values, not typed: `read_settings` checks types, and its messages say what to write instead
        for section, cls in SECTIONS.items():
            node = defaults(cls)
            ConfigStore.instance().store(group=section or None, name="schema", node=node, provider="seq2seq")
