"""Read requests for translations, and write the answers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from seq2seq.config.names import suggestion
from seq2seq.config.search import SearchSettings
from seq2seq.config.service import ServiceSettings
from seq2seq.config.settings import keys
from seq2seq.config.values import shown
from seq2seq.inference.service.batcher import Options, RefusedError, Result

if TYPE_CHECKING:
    from seq2seq.inference.translator import Candidate


def _search_field(name: str, *, least: float | None = None) -> Any:
    """Declare an optional field with the range and the help of a search setting."""
    metadata = keys(SearchSettings)[name].metadata
    low = metadata["least"] if least is None else least
    text = f"{metadata['help'].split(' (')[0]} (default: the service's)"
    return Field(None, ge=low, le=metadata["most"], description=text)


class TranslateRequest(BaseModel):
    """Texts to translate, and options that are those of `python -m seq2seq.translate`."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    text: str | list[str] = Field(description="one text or several; each is translated as one line")
    n_best: int | None = _search_field("n_best")
    beam_size: int | None = _search_field("beam_size")
    length_penalty: float | None = _search_field("length_penalty", least=0)
    max_len_ratio: float | None = _search_field("max_len_ratio")
    max_len_extra: int | None = _search_field("max_len_extra")
    tgt_lang: str | None = Field(None, description="target language, of a checkpoint that has several")

    @property
    def texts(self) -> list[str]:
        """All texts."""
        return [self.text] if isinstance(self.text, str) else self.text


class Alignment(BaseModel):
    """Words of a text and of its translation, and which belong together.

    Attributes:
        links: Pairs of positions, from 0: of the source word, and of the target word.
        weights: For each target word, the share of every source word.
    """

    source: list[str]
    target: list[str]
    links: list[tuple[int, int]]
    weights: list[list[float]] | None = None


class AnswerCandidate(BaseModel):
    """Translation, with its length-normalized log-probability (natural logarithm)."""

    text: str
    score: float | None
    alignment: Alignment | None = None


class Translation(BaseModel):
    """Translation of one text: the best candidate's text, all candidates, a warning; or the reason of a failure."""

    text: str | None = None
    candidates: list[AnswerCandidate]
    warning: str | None = None
    error: str | None = None


class TranslateAnswer(BaseModel):
    """Translations of a request's texts, in their order."""

    translations: list[Translation]


class ErrorAnswer(BaseModel):
    """Answer to a request that is not served: one line that names the reason and the remedy."""

    error: str


def read_request(body: bytes) -> TranslateRequest:
    """Parse a request's body.

    Raises:
        RefusedError: 400 for what is no JSON, 422 for JSON that is no request.
    """
    try:
        return TranslateRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        raise RefusedError(
            400, f"the body is no JSON in UTF-8: {_lowered(first['msg']).removeprefix('invalid JSON: ')}"
        )
    raise RefusedError(422, _explained(first))


def _explained(error: Any) -> str:
    """Explain one of pydantic's errors in a line."""
    known = list(TranslateRequest.model_fields)
    where = [str(part) for part in error["loc"]]
    if not where:
        return 'the body must be an object such as {"text": "Guten Morgen."}'
    if error["type"] == "extra_forbidden":
        return f"unknown field '{shown(where[0])}'{suggestion(where[0], known)} (known: {', '.join(known)})"
    if error["type"] == "missing":
        return 'the field text is missing: {"text": "Guten Morgen."} or {"text": ["Guten Morgen.", "Danke!"]}'
    # pydantic has an error for each alternative of a union
    if where[0] == "text":
        return "text must be a string or a list of strings"
    return f"{where[0]}: {_lowered(error['msg'])}, not {_json(error['input'])}"


def _json(value: Any) -> str:
    return shown(json.dumps(value, ensure_ascii=True), most=60)


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:] if not text.startswith("Invalid JSON") else "invalid JSON" + text[12:]


def check_limits(texts: Sequence[str], limits: ServiceSettings) -> None:
    """Check the number and the size of a request's texts.

    Raises:
        RefusedError: 422 for no text at all, 413 for too many or too long ones.
    """
    if not texts:
        raise RefusedError(422, "text is an empty list; give one text or more")
    if len(texts) > limits.max_texts:
        raise RefusedError(413, f"{len(texts):,} texts are too many; send at most {limits.max_texts:,} in a request")
    characters = sum(map(len, texts))
    if characters > limits.max_characters:
        raise RefusedError(
            413, f"{characters:,} characters are too many; send at most {limits.max_characters:,} in a request"
        )


def chosen_options(
    request: TranslateRequest, defaults: SearchSettings, languages: Sequence[str], limits: ServiceSettings
) -> Options:
    """Complete a request's options with the service's own.

    Args:
        languages: Target languages, the default one first.

    Raises:
        RefusedError: 422 for an option that the model or the service does not allow.
    """
    fields = ("n_best", "beam_size", "length_penalty", "max_len_ratio", "max_len_extra")
    given = {name: getattr(request, name) for name in fields if getattr(request, name) is not None}
    # what the service itself uses is always allowed
    most = {
        "beam_size": max(limits.max_beam_size, defaults.beam_size),
        "max_len_ratio": max(limits.max_output_ratio, defaults.max_len_ratio),
        "max_len_extra": max(limits.max_output_extra, defaults.max_len_extra),
    }
    for name, limit in most.items():
        if name in given and given[name] > limit:
            raise RefusedError(
                422, f"{name} {given[name]:g} is more than this service allows: choose {limit:g} or less"
            )
    n_best = given.get("n_best", defaults.n_best)
    beam = given.get("beam_size", defaults.beam_size)
    if n_best > beam:
        raise RefusedError(422, f"n_best {n_best} needs at least as large a beam_size, not {beam}")
    language = languages[0] if request.tgt_lang is None else request.tgt_lang
    if language not in languages:
        raise RefusedError(
            422, f"this service does not translate to '{shown(language)}'; it translates to {', '.join(languages)}"
        )
    return Options(dataclasses.replace(defaults, **given), language)


def answer(results: Sequence[Result]) -> TranslateAnswer:
    """Write the results of a request."""
    return TranslateAnswer(translations=[_translation(result) for result in results])


def _translation(result: Result) -> Translation:
    candidates = [_candidate(each) for each in result.candidates]
    return Translation(
        text=candidates[0].text if candidates else None,
        candidates=candidates,
        warning=result.warning or None,
        error=result.error or None,
    )


def _candidate(candidate: Candidate) -> AnswerCandidate:
    # candidates of translators that align words have one
    found = getattr(candidate, "alignment", None)
    # a place of the beam that stayed empty has the score -inf, which JSON does not know
    score = candidate.score if candidate.score > float("-inf") else None
    alignment = None if found is None else Alignment.model_validate(found, from_attributes=True)
    return AnswerCandidate(text=candidate.text, score=score, alignment=alignment)
