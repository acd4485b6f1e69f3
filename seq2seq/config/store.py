"""Store the settings classes for Hydra: keys and defaults of each section, as `schema` of its group."""

from __future__ import annotations

from hydra.core.config_store import ConfigStore

from seq2seq.config.sections import SECTIONS
from seq2seq.config.settings import defaults


def store_schemas() -> None:
    """Store every section's defaults.

    The values are plain, not typed: `settings.read_section` checks types, also of files of old runs and of what Python
    callers pass, and its messages say what to write instead.
    """
    for section, cls in SECTIONS.items():
        ConfigStore.instance().store(group=section or None, name="schema", node=defaults(cls), provider="seq2seq")
