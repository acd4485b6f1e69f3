"""Read and check requests for translations; declare the answers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, get_type_hints

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import from_json, to_json
from starlette.exceptions import HTTPException

from seq2seq.inference.glossary import Glossary
from seq2seq.inference.mbr import Utility
from seq2seq.inference.service.settings import ServiceSettings
from seq2seq.settings.declare import keys
from seq2seq.settings.search import SamplingSettings, SearchSettings, chosen_search
from seq2seq.settings.values import shown, suggestion

# Headers of a refusal: it makes sense to ask again in a second; or the connection ends here, since the unread rest of
# a body would be taken for the next request.
LATER = {"retry-after": "1"}
CLOSE = {"connection": "close"}
# Settings for which the service has limits of its own.
_LIMITED = ("n_best", "beam_size", "min_len", "max_len_ratio", "max_len_extra")
Form = TypeVar("Form", bound=BaseModel)
# All settings that a request may choose, each with its class.
_OPTIONS = dict.fromkeys(keys(SearchSettings), SearchSettings) | dict.fromkeys(keys(SamplingSettings), SamplingSettings)


def _field(name: str) -> Any:
    """Declare an optional field with the type, the range and the help of a setting."""
    owner = _OPTIONS[name]
    metadata = keys(owner)[name].metadata
    text = f"{metadata['help'].split(' (seq2seq.')[0]} (default: the service's)"
    low = metadata.get("option_least", metadata.get("least"))
    # `_check_amounts` names the service's own limit
    most = None if name in _LIMITED else metadata.get("most")
    hint: Any = Literal[metadata["choices"]] if "choices" in metadata else get_type_hints(owner)[name]
    return hint | None, Field(None, ge=low, gt=metadata.get("above"), le=most, description=text)


# Lists whose check ends at the first wrong entry: a description of each wrong entry takes seconds.
_Texts = Annotated[list[str], Field(fail_fast=True)]
_Pairs = Annotated[list[Annotated[_Texts, Field(min_length=2, max_length=2)]], Field(fail_fast=True)]
_Terms = Annotated[
    _Pairs,
    BeforeValidator(
        lambda given: [list(term) for term in given.items()] if isinstance(given, dict) else given,
        json_schema_input_type=_Pairs | dict[str, str],
    ),
]
_Options = create_model("_Options", **{name: _field(name) for name in _OPTIONS})


class TranslateRequest(_Options):
    """Texts to translate, and options with the names that `python -m seq2seq.translate` has for them."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    text: str | _Texts = Field(description="one text or several, of any number of sentences and lines each")
    sentences: Literal["auto", "split", "keep"] | None = Field(
        None, description="how a text is divided into sentences (default: the service's)"
    )
    source: str | None = Field(
        None,
        validation_alias=AliasChoices("source", "src_lang"),
        description="source language, of a service that has several; auto for any (also: src_lang)",
    )
    target: str | None = Field(
        None,
        validation_alias=AliasChoices("target", "tgt_lang"),
        description="target language, of a service that has several (also: tgt_lang)",
    )
    model: str | None = Field(None, description="name of the model, of a service that has several (/health lists them)")
    stream: bool = Field(False, description="answer with server-sent events, one for each line of a text")
    alignment: bool = Field(False, description="align the words of each candidate with the words of the text")
    prefixes: _Texts | None = Field(None, description="beginning of the translation of each text")
    language: bool = Field(False, description="name the language of a text that is clearly in another one")
    phrases: Annotated[list[_Texts], Field(fail_fast=True)] | None = Field(
        None, description="phrases that the translation of each text must contain"
    )
    glossary: _Terms | None = Field(
        None,
        description="terms, [[source, target], ...] or {source: target, ...}: a translation must contain the target if "
        "its text has the source",
    )
    suppress: _Texts = Field(
        [], max_length=100, description="pieces of the target's vocabulary that no translation may contain"
    )
    samples: int | None = Field(None, ge=1, description="draw so many translations instead of searching")
    mbr: Utility | None = Field(None, description="rank samples by how well they agree, by this metric")

    def own(self, defaults: SearchSettings, limits: ServiceSettings) -> TranslateRequest:
        """Return the request in this service's form."""
        return self

    def answer(self, translations: list[Translation], src_lang: str) -> bytes:
        """Return the answer to a request in this form, as JSON."""
        return TranslateAnswer(translations=translations).model_dump_json(exclude_none=True).encode()


class LibreRequest(BaseModel):
    """Texts to translate, in the form of LibreTranslate's clients, JSON or a form; unknown fields are ignored."""

    model: ClassVar[None] = None

    q: str | _Texts = Field(description="one text or several")
    source: str = Field("auto", description="source language, or auto")
    target: str | None = Field(None, description="target language")
    format: Literal["text"] = Field("text", description="html is not translated")
    alternatives: int = Field(0, ge=0, description="further translations of each text")

    @model_validator(mode="before")
    @classmethod
    def _given(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Leave out empty fields, which some clients send for what they do not choose."""
        ours = TranslateRequest.model_fields.keys() - cls.model_fields.keys()
        if lost := next((name for name in fields if name in ours), None):
            raise RefusedError(422, f"{lost} belongs to requests with the field text: write text in place of q")
        return {name: value for name, value in fields.items() if name == "q" or value not in (None, "")}

    def own(self, defaults: SearchSettings, limits: ServiceSettings) -> TranslateRequest:
        """Return the request in this service's form, with as many alternatives as its limits allow."""
        options = {}
        if self.alternatives:
            # A beam is a multiple of its groups
            groups = defaults.beam_groups
            most = max(limits.max_beam_size, defaults.beam_size) // groups * groups
            n_best = min(1 + self.alternatives, most)
            options = {"n_best": n_best, "beam_size": math.ceil(max(n_best, defaults.beam_size) / groups) * groups}
        return TranslateRequest.model_validate({"text": self.q, **options})

    def answer(self, translations: list[Translation], src_lang: str) -> bytes:
        """Return translations in LibreTranslate's form, as JSON, which has no place for a text that failed."""
        failed = [each for each in translations if each.error]
        if failed:
            raise RefusedError(status_of(failed), f"a text could not be translated: {failed[0].error}")
        rows = [[candidate.text for candidate in each.candidates] for each in translations]
        answer: dict[str, Any] = {"translatedText": [row[0] for row in rows]}
        if self.alternatives:
            answer["alternatives"] = [row[1:] for row in rows]
        if self.source == "auto":
            answer["detectedLanguage"] = [{"confidence": 100, "language": src_lang}] * len(rows)
        if isinstance(self.q, str):
            answer = {name: values[0] for name, values in answer.items()}
        return to_json(answer)


class WordAlignment(BaseModel):
    """Word alignment of a text and its translation.

    Attributes:
        links: Pairs of positions, from 0: source word, target word.
        weights: For each target word, the share of every source word; left out for long texts.
    """

    source: list[str]
    target: list[str]
    links: list[tuple[int, int]]
    weights: list[list[float]] | None = None


class AnswerPart(BaseModel):
    """Part of a text that was translated by itself, with its translation."""

    source: str
    target: str
    alignment: WordAlignment | None = None


class AnswerCandidate(BaseModel):
    """Translation, with its length-normalized log-probability (natural logarithm).

    Attributes:
        probability: Average probability of a token (geometric mean), the end included.
        parts: Parts of the text, if it was translated in several.
    """

    text: str
    score: float | None
    probability: float | None = None
    parts: list[AnswerPart] | None = None
    alignment: WordAlignment | None = None


class TermAnswer(BaseModel):
    """Term of the glossary in a text; `found` is true if the best translation has its target."""

    source: str
    target: str
    found: bool


class Translation(BaseModel):
    """Translation of one text: the best text, all candidates and a warning, or the reason of a failure.

    Attributes:
        language: Language of the text, if it is almost certainly not the one that the model translates from.
        glossary: Terms of the glossary that the text has.
        by_input: The failure has its cause in the request.
    """

    text: str | None = None
    candidates: list[AnswerCandidate]
    language: str | None = None
    glossary: list[TermAnswer] | None = None
    warning: str | None = None
    error: str | None = None
    by_input: SkipJsonSchema[bool] = Field(default=False, exclude=True)


def status_of(failed: Sequence[Translation]) -> int:
    """Return the status of an answer for texts that failed: 422 if the request is the cause, else 500."""
    return 422 if all(each.by_input for each in failed) else 500


class TranslateAnswer(BaseModel):
    """Translations of a request's texts, in their order."""

    translations: list[Translation]


class ErrorAnswer(BaseModel):
    """Answer to a request that is refused: one line that names the reason and the remedy."""

    error: str


class RefusedError(HTTPException):
    """Refusal of a request: its status, a line with the reason and the remedy, and headers, such as LATER or CLOSE."""


class Text(NamedTuple):
    """Text to translate, the beginning of its translation, and phrases that the translation must contain."""

    text: str
    prefix: str = ""
    phrases: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Number of characters, prefix and phrases included."""
        return len(self.text) + len(self.prefix) + sum(map(len, self.phrases))


class Options(NamedTuple):
    """Options of a request; texts with equal options can share a batch.

    Attributes:
        constrained: There are phrases that translations must contain.
        how: Further arguments of `Translator.translate`.
    """

    settings: SearchSettings
    src_lang: str
    tgt_lang: str
    constrained: bool = False
    alignment: bool = False
    language: bool = False
    how: Mapping[str, Any] = MappingProxyType({})


def parsed(body: bytes) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        RefusedError: 400 if the body is not JSON, 422 if the JSON is not an object.
    """
    try:
        given = from_json(body)
    except ValueError as error:
        raise RefusedError(400, f"the body is not JSON in UTF-8: {error}") from None
    if not isinstance(given, dict):
        raise RefusedError(422, 'the body must be an object such as {"text": "Guten Morgen."}')
    return given


def checked(form: type[Form], given: dict[str, Any]) -> Form:
    """Check the fields of a request.

    Raises:
        RefusedError: 422 if they are no request of this form.
    """
    known = [*form.model_fields, "src_lang", "tgt_lang"]
    for name in given:
        if name not in known and form.model_config.get("extra") == "forbid":
            raise RefusedError(
                422, f"unknown field '{shown(name)}'{suggestion(shown(name), known)} (known: {', '.join(known)})"
            )
    try:
        return form.model_validate(given)
    except ValidationError as error:
        raise RefusedError(422, _explained(error.errors(include_url=False, include_context=False)[0])) from None


_EXPECTED = {
    **dict.fromkeys(("text", "q"), "a string or a list of strings"),
    "prefixes": 'a list with a string for each text: ["The"]',
    "phrases": 'a list with a list of strings for each text: [["green", "tea"]]',
    "glossary": 'a list of pairs, [["Haus", "house"]], or an object, {"Haus": "house"}',
    "suppress": 'a list of 100 pieces at most: ["\u2581the"]',
}


def _explained(error: Any) -> str:
    """Explain one of pydantic's errors in a line."""
    where = [str(part) for part in error["loc"]]
    if error["type"] == "missing":
        return 'the field text is missing: {"text": "Guten Morgen."} or {"text": ["Guten Morgen.", "Danke!"]}'
    # pydantic has an error for each alternative of a union
    if where[0] in _EXPECTED:
        return f"{where[0]} must be {_EXPECTED[where[0]]}"
    return f"{where[0]}: {error['msg'][:1].lower()}{error['msg'][1:]}, not {_json(error['input'])}"


def _json(value: Any) -> str:
    return shown(json.dumps(value, ensure_ascii=True), most=60)


def texts_of(request: TranslateRequest, limits: ServiceSettings) -> list[Text]:
    """Return the texts of a request, each with its prefix and its phrases.

    Raises:
        RefusedError: 422 for no text at all, or unless there is a prefix and a list of phrases for each text; 413 for
            too many texts, or if they are too long.
    """
    texts = [request.text] if isinstance(request.text, str) else request.text
    if request.stream and (request.prefixes or request.phrases):
        raise RefusedError(422, "stream: prefixes and phrases belong to whole texts; leave them or stream out")
    if not texts:
        raise RefusedError(422, "text is an empty list; give one text or more")
    if len(texts) > limits.max_texts:
        raise RefusedError(413, f"{len(texts):,} texts are too many; send at most {limits.max_texts:,} in a request")
    prefixes = [""] * len(texts) if request.prefixes is None else request.prefixes
    phrases = [[]] * len(texts) if request.phrases is None else request.phrases
    for name, values in (("prefixes", prefixes), ("phrases", phrases)):
        if len(values) != len(texts):
            raise RefusedError(422, f"{name} has {len(values)} entries for {len(texts)} texts; give one for each")
    found = [Text(text, prefix, tuple(own)) for text, prefix, own in zip(texts, prefixes, phrases, strict=True)]
    terms = request.glossary or []
    characters = sum(each.size for each in found) + sum(len(side) for term in terms for side in term)
    amounts = [
        (max(len(each.prefix) for each in found), limits.max_prefix, "characters of a prefix"),
        (max(len(each.phrases) for each in found), limits.max_phrases, "phrases of a text"),
        (max(sum(map(len, each.phrases)) for each in found), limits.max_prefix, "characters of a text's phrases"),
        (len(terms), limits.max_terms, "terms of a glossary"),
        (characters, limits.max_characters, "characters of a request"),
    ]
    for amount, most, what in amounts:
        if amount > most:
            raise RefusedError(413, f"{amount:,} {what} are too many; send at most {most:,}")
    return found


def chosen_options(
    request: TranslateRequest, defaults: SearchSettings, languages: tuple[str, str], limits: ServiceSettings
) -> Options:
    """Complete a request's options with the service's own, and check them.

    Raises:
        RefusedError: 422 for options that the model or the service does not allow, or that cannot be combined.
    """
    names = (*_OPTIONS, "samples", "mbr")
    given = {name: getattr(request, name) for name in names if getattr(request, name) is not None}
    constrained = any(request.phrases or ())
    _check_amounts(given, defaults, limits)
    how: dict[str, Any] = {"suppress": request.suppress, "sentences": request.sentences, "mbr": request.mbr}
    try:
        asked = {"phrases": constrained, "glossary": request.glossary}
        settings, how["sampling"] = chosen_search(defaults, given | asked)
        # Otherwise, the service has terms of its own
        if request.glossary is not None:
            how["glossary"] = tuple(Glossary((source, target) for source, target in request.glossary).terms.items())
    except ValueError as error:
        raise RefusedError(422, str(error)) from None
    return Options(settings, *languages, constrained, request.alignment, request.language, how)


def _check_amounts(given: Mapping[str, Any], defaults: SearchSettings, limits: ServiceSettings) -> None:
    """Refuse amounts beyond the service's limits; its own defaults are always allowed."""
    largest_beam = max(limits.max_beam_size, defaults.beam_size)
    most = {
        "samples": largest_beam,
        "beam_size": largest_beam,
        "n_best": largest_beam,
        "max_len_ratio": max(limits.max_output_ratio, defaults.max_len_ratio),
        "max_len_extra": max(limits.max_output_extra, defaults.max_len_extra),
        "min_len": max(limits.max_output_extra, defaults.min_len),
    }
    for name, limit in most.items():
        if name in given and given[name] > limit:
            # An integer of JSON may be larger than any float
            value = _json(given[name]).removesuffix(".0")
            raise RefusedError(422, f"{name} {value} is more than this service allows: choose {limit:g} or less")
