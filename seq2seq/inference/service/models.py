"""Hold the models of a service by name, load them within a limit of memory, and choose one for a request."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from seq2seq.data.languages import other_subtags, primary_subtag
from seq2seq.inference.service.batch_translator import BatchTranslator
from seq2seq.inference.service.messages import RefusedError
from seq2seq.settings.values import shown, suggestion

if TYPE_CHECKING:
    from seq2seq.inference.translator import Translator


def _code(wanted: str | None, known: list[str], exact: bool) -> str:
    """Return a model's code of a language, the default one for None; "" if it has none."""
    if wanted is None:
        return known[0]
    if wanted in known or exact:
        return wanted if wanted in known else ""
    same = [code for code in known if primary_subtag(code) == primary_subtag(wanted)]
    # zh-Hant is zho_Hant, though zho_Hans may be the first one
    return max(same, key=lambda code: len(other_subtags(code) & other_subtags(wanted)), default="")


class Models:
    """Models by name. All are loaded at first, one after the other, so that their languages are known.

    Args:
        loaders: For each name a function that loads the translator.
        most: Bytes of loaded models; beyond, the least recently used ones leave memory. One model always fits.

    Raises:
        ValueError: A model cannot be loaded.
    """

    def __init__(self, loaders: Mapping[str, Callable[[], Translator]], *, most: float = float("inf")) -> None:
        self._loaders = loaders
        self._most = most
        # Names by use, the last one used at the end
        self._used: list[str] = []
        self.by_name: dict[str, BatchTranslator] = {}
        for name in loaders:
            self.load(name)

    def load(self, name: str) -> None:
        """Load a model, in place of an earlier one, which keeps its requests; after a ValueError that one stays."""
        self.by_name[name] = BatchTranslator(self._loaders[name], name=name, make_room=self._make_room)

    def bytes_of(self, name: str) -> int:
        """Return the bytes of a model in memory."""
        model = self.by_name[name]
        return model.nbytes if model.translator else 0

    def choose(
        self, name: str | None, source: str | None, target: str | None
    ) -> tuple[BatchTranslator, tuple[str, str]]:
        """Return the first model with a name and languages (None: any) and its codes of them, or raise RefusedError."""
        if name is not None and name not in self.by_name:
            hint = suggestion(shown(name), list(self.by_name))
            raise RefusedError(422, f"there is no model '{shown(name)}'{hint}; there are {', '.join(self.by_name)}")
        models = [self.by_name[name]] if name is not None else list(self.by_name.values())
        source = None if source == "auto" else source
        # A model with exactly these codes comes before one with other codes of the same languages
        for exact in (True, False):
            for model in models:
                codes = _code(source, model.sources, exact), _code(target, model.languages, exact)
                if all(codes):
                    self._used = [*(each for each in self._used if each != model.name), model.name]
                    return model, codes
        asked = " ".join(f"{word} '{shown(each)}'" for word, each in (("from", source), ("to", target)) if each)
        known = "; ".join(f"from {', '.join(each.sources)} to {', '.join(each.languages)}" for each in models)
        raise RefusedError(422, f"this service does not translate {asked}; it translates {known}")

    def _make_room(self, model: BatchTranslator) -> None:
        """Drop the least recently used models, as far as they and `model` need more than the limit."""
        others = [each for each in self.by_name.values() if each.translator and each.name != model.name]
        others.sort(key=lambda each: self._used.index(each.name) if each.name in self._used else -1)
        while others and model.nbytes + sum(each.nbytes for each in others) > self._most:
            others.pop(0).translator = None
            gc.collect()
