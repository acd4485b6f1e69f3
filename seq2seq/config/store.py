"""Store the settings classes for Hydra: keys and defaults of each section, as `schema` of its group."""

from __future__ import annotations

from hydra.core.config_store import ConfigStore

from seq2seq.config.data import DataSettings
from seq2seq.config.model import ModelSettings
from seq2seq.config.optim import OptimSettings
from seq2seq.config.run import RunSettings
from seq2seq.config.search import SearchSettings
from seq2seq.config.settings import defaults
from seq2seq.config.tokenizer import TokenizerSettings
from seq2seq.config.trainer import TrainerSettings

# The settings class of every section; "" is the top level.
SECTIONS: dict[str, type] = {
    "": RunSettings,
    "data": DataSettings,
    "tokenizer": TokenizerSettings,
    "model": ModelSettings,
    "optim": OptimSettings,
    "search": SearchSettings,
    "trainer": TrainerSettings,
}


def store_schemas() -> None:
    """Store every section's defaults.

    The values are plain, not typed: `settings.read_section` checks types, also of files of old runs and of what Python
    callers pass, and its messages say what to write instead.
    """
    for section, cls in SECTIONS.items():
        ConfigStore.instance().store(group=section or None, name="schema", node=defaults(cls), provider="seq2seq")
