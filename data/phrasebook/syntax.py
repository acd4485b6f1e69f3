"""One abstract clause, said in German and in English: phrases, word order, and the English verb group."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import morphology as forms
from lexicon import Adjective, Noun, Verb

EN_CONTRACTED = {"can": "can't", "will": "won't", "am": "am not"}

# German modal in the present and the past | how English says it: an auxiliary, a verb with to, or be with a participle.
MODALS = {
    "können": ("können", "konnten", "auxiliary", "can could", ""),
    "werden": ("werden", "", "auxiliary", "will", ""),
    "sollten": ("sollten", "", "auxiliary", "should", ""),
    "möchten": ("möchten", "", "auxiliary", "would", "like to "),
    "müssen": ("müssen", "mussten", "verb", "have had", "to "),
    "wollen": ("wollen", "wollten", "verb", "want wanted", "to "),
    "dürfen": ("dürfen", "durften", "be", "", "allowed to "),
}


class Nominal(Protocol):
    """Subject or object of a clause: its gender, number and person, and its forms."""

    @property
    def gender(self) -> str: ...
    @property
    def person(self) -> int: ...
    @property
    def plural(self) -> bool: ...
    @property
    def pronominal(self) -> bool: ...
    def german(self, case: str) -> str: ...
    def german_tail(self) -> str: ...
    def english(self, case: str) -> str: ...


@dataclass(frozen=True)
class Pronoun:
    """A personal pronoun, or `wer`/`was` as a subject; four German cases and the two English ones."""

    de: str
    en: str
    person: int
    plural: bool
    gender: str = "m"
    pronominal: bool = True

    def german(self, case: str) -> str:
        """Return the German form in a case."""
        return self.de.split()[forms.CASES.index(case)]

    def german_tail(self) -> str:
        """Return nothing: pronouns carry no relative clause."""
        return ""

    def english(self, case: str) -> str:
        """Return the English subject or object form."""
        return self.en.split()[0 if case == "nom" else 1]


@dataclass(frozen=True)
class Name:
    """A name or another phrase that does not decline, except Herr (Herrn)."""

    de: str
    en: str
    gender: str
    plural: bool = False
    person: int = 3
    pronominal: bool = False

    def german(self, case: str) -> str:
        """Return the name in a case."""
        return self.de.replace("Herr ", "Herrn ") if case != "nom" else self.de

    def german_tail(self) -> str:
        """Return nothing: names carry no relative clause."""
        return ""

    def english(self, case: str) -> str:
        """Return the English name."""
        return self.en


GAP = Name("", "", "m")


@dataclass(frozen=True)
class Relative:
    """A relative clause whose gap has a case and perhaps a German preposition."""

    clause: Clause
    case: str
    preposition: str = ""


@dataclass(frozen=True)
class NounPhrase:
    """Determiner, number, adjectives, noun, possessor and relative clause; the noun's features decide agreement."""

    noun: Noun
    det: str
    plural: bool = False
    adjectives: tuple[Adjective, ...] = ()
    count: int = 0
    possessor: Nominal | None = None
    relative: Relative | None = None
    person: int = 3
    pronominal: bool = False

    @property
    def gender(self) -> str:
        """The gender of the German noun."""
        return self.noun.gender

    @property
    def _agreement(self) -> str:
        return "p" if self.plural else self.noun.gender

    def german(self, case: str) -> str:
        """Return the German phrase in a case, without its relative clause."""
        named = self.possessor is not None and self.det == ""
        words = [self.possessor.german("nom") + "s"] if self.possessor and named else []
        words.append(forms.determiner(self.det, self._agreement, case))
        words.append(forms.german_number(self.count) if self.count else "")
        words += [forms.declined(a, self.det, self._agreement, case) for a in self.adjectives]
        words.append(forms.noun_form(self.noun, self.plural, case))
        words.append(self.possessor.german("gen") if self.possessor and not named else "")
        return joined(*words)

    def german_tail(self) -> str:
        """Return the relative clause with its opening comma, or nothing."""
        if self.relative is None:
            return ""
        pronoun = forms.relative_pronoun(self._agreement, self.relative.case)
        return ", " + joined(self.relative.preposition, pronoun, german_clause(self.relative.clause, "final"))

    def english(self, case: str) -> str:
        """Return the English phrase with its relative clause."""
        words = [forms.english_number(self.count) if self.count else ""]
        words += [a.en for a in self.adjectives]
        words.append(self.noun.en_plural if self.plural else self.noun.en)
        phrase = joined(*words)
        tail = ""
        if self.relative is not None:
            tail = joined("who" if "person" in self.noun.tags else "that", english_clause(self.relative.clause, "main"))
        return joined(self._english_determiner(phrase), phrase, tail)

    def _english_determiner(self, following: str) -> str:
        if self.possessor is not None:
            return self.possessor.english("nom") + "'s"
        if self.det == "no" and (self.plural or self.noun.mass):
            return "any"
        if self.det in ("a", "no"):
            return forms.indefinite(following)
        return "these" if self.det == "this" and self.plural else self.det


@dataclass(frozen=True)
class Phrase:
    """Words that mean each other and do not change."""

    de: str
    en: str


@dataclass(frozen=True)
class Oblique:
    """A prepositional object: the German preposition and case, the English preposition, and the phrase they govern."""

    preposition: str
    case: str
    en_preposition: str
    object: Nominal

    def german(self) -> str:
        """Return the German prepositional phrase (an + das Konzert -> ans Konzert); nothing for a gap."""
        phrase = self.object.german(self.case)
        return forms.contracted(self.preposition, phrase) if phrase else ""

    def english(self) -> str:
        """Return the English prepositional phrase; the preposition stays behind when the object is a gap."""
        return joined(self.en_preposition, self.object.english("acc"))


@dataclass(frozen=True)
class Clause:
    """Who does what to whom, when and where: everything that both languages need to say it.

    `tense` is present, past (German perfect, or preterite for the verbs that use it), pluperfect or since (German
    present, English perfect). `often` stands in the middle in English, `time` at the end; `front` names the field that
    comes first.
    """

    subject: Nominal
    verb: Verb
    tense: str = "present"
    modal: str = ""
    habitual: bool = False
    negated: bool = False
    accusative: Nominal | None = None
    dative: Nominal | None = None
    oblique: Oblique | None = None
    complement: Phrase | None = None
    means: Phrase | None = None
    manner: Phrase | None = None
    time: Phrase | None = None
    often: Phrase | None = None
    gern: bool = False
    reflexive: bool = False
    front: str = ""

    def having(self, **changes: object) -> Clause:
        """Return a copy with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]


def joined(*words: str) -> str:
    """Join the words that are not empty with single spaces."""
    return " ".join(word for word in words if word)


def _german_finite(clause: Clause) -> tuple[str, str]:
    """Return the finite verb and what closes the clause (particle, participle or infinitive)."""
    verb, person, plural = clause.verb, clause.subject.person, clause.subject.plural
    if clause.modal:
        name = MODALS[clause.modal][1 if clause.tense == "past" else 0]
        return forms.auxiliary(name, person, plural), verb.particle + verb.de
    if clause.tense == "past" and not verb.preterite:
        return forms.auxiliary("haben" if verb.aux == "h" else "sein", person, plural), verb.participle
    if clause.tense == "pluperfect":
        return forms.auxiliary("hatten" if verb.aux == "h" else "waren", person, plural), verb.participle
    inflect = forms.preterite if clause.tense == "past" else forms.present
    return inflect(verb, person, plural), verb.particle


def _has_kein(clause: Clause) -> bool:
    phrases = (clause.accusative, clause.dative, clause.subject)
    complement = clause.complement.de if clause.complement else ""
    return complement.startswith("kein") or any(getattr(phrase, "det", "") == "no" for phrase in phrases)


def _reflexive(clause: Clause) -> str:
    singular = ("mich", "dich", "sich")[clause.subject.person - 1]
    return ("uns" if clause.subject.person == 1 else "sich") if clause.subject.plural else singular


def _german_middle(clause: Clause) -> str:
    """Return what stands between the finite verb and the end: pronouns, time, objects, nicht, manner, place."""
    objects = [(clause.accusative, "acc"), (clause.dative, "dat")]
    pronouns = [o.german(case) for o, case in objects if o is not None and o.pronominal]
    nouns = [o.german(case) for o, case in reversed(objects) if o is not None and not o.pronominal]
    at = {name: getattr(clause, name) for name in ("time", "often", "manner", "means", "complement")}
    said = {name: phrase.de if phrase and clause.front != name else "" for name, phrase in at.items()}
    negation = "nicht" if clause.negated and not _has_kein(clause) else ""
    oblique = clause.oblique.german() if clause.oblique else ""
    # Nicht comes before the owner (gehört nicht meinem Vater), a place before a prepositional object (im Park auf ihn).
    objects_and_negation = [negation, *nouns] if clause.verb.de == "gehören" else [*nouns, negation]
    return joined(
        _reflexive(clause) if clause.reflexive else "",
        *pronouns,
        said["time"],
        said["often"],
        "gern" if clause.gern else "",
        *objects_and_negation,
        said["manner"],
        said["means"],
        said["complement"],
        oblique,
    )


def _german_tails(clause: Clause) -> str:
    objects = [clause.dative, clause.accusative, clause.oblique.object if clause.oblique else None]
    return "".join(phrase.german_tail() for phrase in objects if phrase is not None)


def _hoisted(clause: Clause) -> tuple[str, Clause]:
    """Return the pronoun that comes before a noun subject after the verb (Freut sich Anna? Schmeckt ihr der Käse?)."""
    if clause.subject.pronominal:
        return "", clause
    if clause.reflexive:
        return "sich", clause.having(reflexive=False)
    if (
        clause.dative is not None
        and clause.dative.pronominal
        and clause.verb.de in ("schmecken", "gefallen", "gehören")
    ):
        return clause.dative.german("dat"), clause.having(dative=None)
    return "", clause


def german_clause(clause: Clause, order: str) -> str:
    """Return the German clause; `order` is main (verb second), first (verb first), final (verb last) or zu."""
    finite, closing = _german_finite(clause)
    inverted = order == "first" or (order == "main" and bool(clause.front))
    hoisted, rest = _hoisted(clause) if inverted else ("", clause)
    middle, tail = _german_middle(rest), _german_tails(clause)
    relative = clause.subject.german_tail()
    subject = clause.subject.german("nom") + (relative + "," if relative else "")
    if order == "zu":
        return joined(middle, forms.zu_infinitive(clause.verb)) + tail
    if order == "final":
        separable = closing == clause.verb.particle
        return joined(subject, middle, closing + finite if separable else joined(closing, finite)) + tail
    if order == "first":
        return joined(finite, hoisted, subject, middle, closing) + tail
    if clause.front:
        front = getattr(clause, clause.front).de
        return joined(front, finite, hoisted, subject, middle, closing) + tail
    return joined(subject, finite, middle, closing) + tail


@dataclass(frozen=True)
class VerbGroup:
    """An English verb group: an auxiliary and the rest, or a lexical verb that needs do-support."""

    auxiliary: str
    finite: str
    base: str
    rest: str


def _english_lexical(base: str, past: str, rest: str, clause: Clause) -> VerbGroup:
    third = clause.subject.person == 3 and not clause.subject.plural
    finite = past if clause.tense == "past" else forms.third_person(base) if third else base
    return VerbGroup("", finite, base, rest)


def _english_modal(clause: Clause) -> VerbGroup:
    _, _, kind, words, link = MODALS[clause.modal]
    past = clause.tense == "past"
    rest = link + joined(clause.verb.en, clause.verb.en_tail)
    if kind == "be":
        return VerbGroup(forms.be(clause.subject.person, clause.subject.plural, past), "", "", rest)
    if clause.modal == "können" and past and not clause.negated:
        # Ability on one occasion: was able to, but couldn't.
        return VerbGroup(forms.be(clause.subject.person, clause.subject.plural, past), "", "", f"able to {rest}")
    said = words.split()
    if kind == "auxiliary":
        return VerbGroup(said[1 if past else 0], "", "", rest)
    return _english_lexical(said[0], said[1], rest, clause)


def english_verb_group(clause: Clause) -> VerbGroup:
    """Return the English verb group: progressive for activities now, simple for states, habits and the past."""
    verb, subject = clause.verb, clause.subject
    if clause.modal:
        return _english_modal(clause)
    if clause.tense == "pluperfect":
        return VerbGroup("had", "", "", joined(verb.en_participle, verb.en_tail))
    if clause.tense == "since":
        has = "has" if subject.person == 3 and not subject.plural else "have"
        done = verb.en_participle if verb.kind == "s" else "been " + forms.gerund(verb.en)
        return VerbGroup(has, "", "", joined(done, verb.en_tail))
    if verb.en == "be":
        return VerbGroup(forms.be(subject.person, subject.plural, clause.tense == "past"), "", "", verb.en_tail)
    if clause.tense == "past" and verb.preterite and verb.kind == "a":
        return VerbGroup(forms.be(subject.person, subject.plural, past=True), "", "", forms.gerund(verb.en))
    if clause.gern:
        return _english_lexical("like", "liked", joined(forms.gerund(verb.en), verb.en_tail), clause)
    if clause.tense == "present" and verb.kind == "a" and not clause.habitual:
        return VerbGroup(forms.be(subject.person, subject.plural), "", "", joined(forms.gerund(verb.en), verb.en_tail))
    return _english_lexical(verb.en, verb.en_past, verb.en_tail, clause)


def _english_objects(clause: Clause) -> str:
    verb = clause.verb
    dative = clause.dative.english("acc") if clause.dative else ""
    if clause.accusative is None:
        return joined(verb.en_particle, verb.en_preposition, dative)
    accusative = clause.accusative.english("acc")
    if clause.dative and (verb.en_dative or not dative):
        return joined(accusative, "to", dative)
    if clause.accusative.pronominal:
        return joined(dative, verb.en_preposition, accusative, verb.en_particle)
    return joined(dative, verb.en_particle, verb.en_preposition, accusative)


def _english_after_verb(clause: Clause) -> str:
    at = {name: getattr(clause, name) for name in ("manner", "complement", "means", "time")}
    said = {name: phrase.en if phrase and clause.front != name else "" for name, phrase in at.items()}
    oblique = clause.oblique.english() if clause.oblique else ""
    return joined(_english_objects(clause), oblique, said["complement"], said["manner"], said["means"], said["time"])


def english_clause(clause: Clause, order: str) -> str:
    """Return the English clause; `order` is main, question (auxiliary first) or to (infinitive)."""
    group, after, subject = english_verb_group(clause), _english_after_verb(clause), clause.subject.english("nom")
    often = clause.often.en if clause.often and clause.front != "often" else ""
    if order == "to":
        return joined("to", clause.verb.en, clause.verb.en_tail, after)
    auxiliary, verb = group.auxiliary, group.finite
    if not auxiliary and (clause.negated or order == "question"):
        third = clause.subject.person == 3 and not clause.subject.plural
        auxiliary, verb = "did" if clause.tense == "past" else "does" if third else "do", group.base
    if clause.negated:
        auxiliary = EN_CONTRACTED.get(auxiliary, auxiliary + "n't")
    if order == "question":
        return joined(auxiliary, subject, often, verb, group.rest, after)
    front = getattr(clause, clause.front).en if clause.front else ""
    return joined(front, subject, auxiliary, often, verb, group.rest, after)


def sentence(text: str, end: str = ".") -> str:
    """Return a clause as a sentence: capital letter, final mark, and no comma before a comma or the mark."""
    text = text.rstrip(",").replace(",,", ",")
    return text[0].upper() + text[1:] + end
