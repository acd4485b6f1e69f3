"""Draws the parts of a sentence: subjects, objects, times, places, and whole clauses whose words suit each other."""

from __future__ import annotations

from random import Random

import lexicon
import morphology as forms
from lexicon import Adjective, Noun, Place, Verb
from syntax import Clause, Name, Nominal, NounPhrase, Oblique, Phrase, Pronoun

ICH = Pronoun("ich mich mir -", "I me", 1, False)
DU = Pronoun("du dich dir -", "you you", 2, False)
ER = Pronoun("er ihn ihm -", "he him", 3, False, "m")
SIE = Pronoun("sie sie ihr -", "she her", 3, False, "f")
ES = Pronoun("es es ihm -", "it it", 3, False, "n")
WIR = Pronoun("wir uns uns -", "we us", 1, True)
THEY = Pronoun("sie sie ihnen -", "they them", 3, True)
WER = Pronoun("wer wen wem -", "who who", 3, False)
PERSONAL = (ICH, DU, ER, SIE, WIR, THEY)

DETERMINERS = {"d": "the", "i": "a", "t": "this"}
# Verbs that other constructions use in their own way.
SPECIAL = frozenset(
    [
        "sein",
        "haben",
        "gehören",
        "passen",
        "kosten",
        "wissen",
        "glauben",
        "sagen",
        "hoffen",
        "abfahren",
        "anfangen",
        "heißen",
        "dauern",
        "versuchen",
        "scheinen",
        "regnen",
        "schneien",
        "liegen",
        "stehen",
        "legen",
        "stellen",
        "ansehen",
        "interessieren",
        "abfliegen",
        "aufhören",
        "gefallen",
        "schmecken",
        "kommen",
    ]
)
UNWILLED = frozenset(
    [
        "verlieren",
        "vergessen",
        "verpassen",
        "bekommen",
        "weinen",
        "einschlafen",
        "aufwachen",
        "ankommen",
        "beeilen",
        "träumen",
        "denken",
        "finden",
    ]
)

OFTEN = [
    Phrase("immer", "always"),
    Phrase("oft", "often"),
    Phrase("manchmal", "sometimes"),
    Phrase("selten", "rarely"),
    Phrase("nie", "never"),
    Phrase("meistens", "usually"),
]
NOW = [Phrase("gerade", "right now"), Phrase("jetzt", "now")]
PAST = [
    Phrase("gestern", "yesterday"),
    Phrase("vorgestern", "the day before yesterday"),
    Phrase("heute", "today"),
    Phrase("gestern Abend", "yesterday evening"),
    Phrase("heute Morgen", "this morning"),
    Phrase("letzte Woche", "last week"),
    Phrase("nach dem Abendessen", "after dinner"),
    Phrase("vor dem Frühstück", "before breakfast"),
    Phrase("während des Konzerts", "during the concert"),
]
LONG_PAST = [Phrase("letzten Monat", "last month"), Phrase("letztes Jahr", "last year")]
LONG_FUTURE = [Phrase("nächsten Monat", "next month"), Phrase("nächstes Jahr", "next year")]
FUTURE = [
    Phrase("morgen", "tomorrow"),
    Phrase("übermorgen", "the day after tomorrow"),
    Phrase("heute", "today"),
    Phrase("heute Abend", "this evening"),
    Phrase("nächste Woche", "next week"),
    Phrase("bald", "soon"),
    Phrase("morgen Abend", "tomorrow evening"),
    Phrase("nach dem Mittagessen", "after lunch"),
    Phrase("vor dem Abendessen", "before dinner"),
]
HABIT = [
    Phrase("jeden Tag", "every day"),
    Phrase("jeden Morgen", "every morning"),
    Phrase("jeden Abend", "every evening"),
    Phrase("jedes Wochenende", "every weekend"),
    Phrase("jede Woche", "every week"),
]
MEANS = [
    Phrase("mit dem Auto", "by car"),
    Phrase("mit dem Zug", "by train"),
    Phrase("mit dem Bus", "by bus"),
    Phrase("mit dem Fahrrad", "by bicycle"),
]
MANNER = {
    "schnell": ("quickly", "essen laufen arbeiten schreiben aufräumen lernen"),
    "langsam": ("slowly", "essen lesen sprechen schreiben arbeiten schwimmen"),
    "leise": ("quietly", "sprechen singen weinen reden"),
    "laut": ("loudly", "singen lachen weinen sprechen"),
    "gut": ("well", "schlafen arbeiten kochen tanzen schwimmen"),
}
HOME = Phrase("zu Hause", "at home")
WEEKDAYS, MONTHS = lexicon.pairs(lexicon.WEEKDAYS), lexicon.pairs(lexicon.MONTHS)
DAILY = [Phrase("jeden Tag", "every day"), *(Phrase(f"jeden {de}", f"every {en}") for de, en in WEEKDAYS)]
CITIES, COUNTRIES = lexicon.pairs(lexicon.CITIES), lexicon.pairs(lexicon.COUNTRIES)
NAMES = [Name(n, n, "f") for n in lexicon.FEMALE_NAMES] + [Name(n, n, "m") for n in lexicon.MALE_NAMES]
TITLED = [
    Name(f"{de} {surname}", f"{en} {surname}", gender)
    for de, en, gender in (("Herr", "Mr", "m"), ("Frau", "Mrs", "f"))
    for surname in lexicon.SURNAMES
]


def own(subject: Nominal) -> str:
    """Return the possessive that refers to the subject, or nothing for a neuter noun, whose sein English cannot say."""
    if getattr(subject, "det", "") == "every":
        return ""
    if subject.person == 1:
        return "our" if subject.plural else "my"
    if subject.person == 2:
        return "your"
    return "their" if subject.plural else {"m": "his", "f": "her"}.get(subject.gender, "")


def pronoun_for(subject: Nominal) -> Pronoun:
    """Return the pronoun that takes up a subject in the next clause."""
    if subject.person < 3:
        return subject if isinstance(subject, Pronoun) else ICH
    return THEY if subject.plural else {"m": ER, "f": SIE, "n": ES}[subject.gender]


def at_place(place: Place) -> Phrase:
    """Say where: im Garten, in the garden."""
    return Phrase(
        forms.contracted(place.rest, f"{forms.determiner('the', place.gender, 'dat')} {place.de}"), place.en_rest
    )


def to_place(place: Place) -> Phrase:
    """Say where to: in den Garten, into the garden."""
    case = "dat" if place.motion == "zu" else "acc"
    return Phrase(
        forms.contracted(place.motion, f"{forms.determiner('the', place.gender, case)} {place.de}"), place.en_motion
    )


class Phrases:
    """Draws phrases from one random stream."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng

    def chance(self, probability: float) -> bool:
        """Return True with a probability."""
        return self.rng.random() < probability

    def number(self, low: int = 2, high: int = 99) -> int:
        """Return a number, small ones as often as large ones."""
        return self.rng.randint(low, min(12, high)) if self.chance(0.4) else self.rng.randint(low, high)

    def name(self) -> Name:
        """Return a first name, or now and then Herr or Frau with a surname."""
        return self.rng.choice(TITLED) if self.chance(0.12) else self.rng.choice(NAMES)

    def subject(self, *, third: bool = False, neuter: bool = True, tags: str = "person") -> Nominal:
        """Return a human subject: pronoun, name, two names, or noun; `third` leaves out ich, du and wir."""
        roll = self.rng.random()
        if roll < 0.32:
            return self.rng.choice((ER, SIE, THEY) if third else PERSONAL)
        if roll < 0.58:
            return self.name()
        if roll < 0.64:
            first, second = self.rng.sample(NAMES, 2)
            return Name(f"{first.de} und {second.de}", f"{first.en} and {second.en}", "m", plural=True)
        found = self.person_noun(neuter=neuter, tags=tags)
        single = not found.plural and not found.adjectives and "stranger" in found.noun.tags
        return NounPhrase(found.noun, "every") if single and self.chance(0.08) else found

    def person_noun(self, *, neuter: bool = True, tags: str = "person", possessive: str = "") -> NounPhrase:
        """Return a human noun phrase, singular or plural."""
        people = [n for n in lexicon.tagged(tags) if "person" in n.tags]
        noun = self.rng.choice([n for n in people if neuter or n.gender != "n"])
        det = self.determiner(noun, possessive)
        kin = bool(noun.tags & {"kin"}) and not noun.tags & {"sib", "child"}
        plural = not kin and det != "a" and self.chance(0.25)
        if noun.gender == "n" and not neuter:
            plural = True
        return NounPhrase(noun, det, plural, self.adjectives(noun) if noun.tags & {"stranger", "famous"} else ())

    def determiner(self, noun: Noun, possessive: str = "") -> str:
        """Return a singular determiner that the noun takes; `possessive` is the one that refers to the subject."""
        choices = [c for c in noun.dets if c in "dipt"] or ["d"]
        letter = self.rng.choices(
            choices, [{"d": 4, "i": 1 if "person" in noun.tags else 4, "p": 3, "t": 1}[c] for c in choices]
        )[0]
        if letter == "p":
            return possessive if possessive and self.chance(0.75) else self.rng.choice(("my", "your", "our"))
        return DETERMINERS[letter]

    def adjectives(self, noun: Noun, probability: float = 0.35) -> tuple[Adjective, ...]:
        """Return no adjective, one that suits the noun, or a size and a colour."""
        if not self.chance(probability):
            return ()
        suited = [a for a in lexicon.adjectives if a.tags & noun.tags and a.de != "sauber"]
        sizes = [a for a in suited if a.tags & {"siz"}]
        colours = [a for a in suited if a.tags & {"col", "animalcol"}]
        if sizes and colours and self.chance(0.25):
            return self.rng.choice(sizes), self.rng.choice(colours)
        return (self.rng.choice(suited),) if suited else ()

    def thing(self, noun: Noun, subject: Nominal, negated: bool = False) -> NounPhrase:
        """Return a noun phrase for an object, with kein under negation where the noun would be indefinite."""
        adjectives = self.adjectives(noun)
        if noun.mass:
            det = "the" if self.chance(0.3) else "no" if negated else ""
            return NounPhrase(noun, det, False, adjectives)
        if "n" in noun.dets and (self.chance(0.3) or noun.dets == "n"):
            return self._plural_thing(noun, subject, negated, adjectives)
        # Without this, kein would be rare.
        indefinite = negated and "i" in noun.dets and self.chance(0.35)
        det = "a" if indefinite else self.determiner(noun, own(subject))
        possessor = self.rng.choice(NAMES[:16]) if "p" in noun.dets and det == "the" and self.chance(0.12) else None
        if possessor is not None and not same(subject, possessor):
            return NounPhrase(noun, "", False, adjectives, possessor=possessor)
        return NounPhrase(noun, "no" if negated and det == "a" else det, False, adjectives)

    def _plural_thing(
        self, noun: Noun, subject: Nominal, negated: bool, adjectives: tuple[Adjective, ...]
    ) -> NounPhrase:
        choices = ["the", "no", "this"] if negated else ["the", "", "", "many", "count", "count", "own"]
        det = self.rng.choice(choices)
        if det == "count":
            return NounPhrase(noun, "", True, adjectives, count=self.rng.randint(2, 12))
        if det == "own":
            det = (own(subject) if "p" in noun.dets else "") or "the"
        return NounPhrase(noun, det, True, adjectives)

    def person_object(self, tags: str, subject: Nominal, negated: bool = False) -> Nominal:
        """Return a person or an animal as an object: pronoun, name or noun, never the subject itself."""
        while True:
            roll = self.rng.random()
            if "person" in tags and roll < 0.2:
                found: Nominal = self.rng.choice([p for p in PERSONAL[:5] if not clashes(subject, p)])
            elif "person" in tags and roll < 0.4:
                found = self.name()
            else:
                noun = self.rng.choice(lexicon.tagged(tags))
                found = (
                    self.thing(noun, subject, negated)
                    if "person" not in noun.tags
                    else self.person_noun(tags=tags, possessive=own(subject))
                )
            if same(subject, found) or (negated and _det(found) == "a") or _parental(subject, found):
                continue
            return found

    def object(self, tags: str, subject: Nominal, negated: bool = False) -> Nominal:
        """Return an object from the comma-separated classes."""
        noun = self.rng.choice(lexicon.tagged(tags))
        if noun.tags & {"person", "animal"}:
            return self.person_object(tags, subject, negated)
        return self.thing(noun, subject, negated)

    def definite(self, tags: str, subject: Nominal) -> Nominal:
        """Return an object that is not indefinite, as prepositional objects and nicht need it."""
        while True:
            found = self.object(tags, subject)
            if getattr(found, "det", "the") not in ("a", "", "many") or getattr(found, "possessor", None):
                return found

    def city(self, motion: bool = False) -> Phrase:
        """Say in or to a city."""
        de, en = self.rng.choice(CITIES)
        return Phrase(f"nach {de}", f"to {en}") if motion else Phrase(f"in {de}", f"in {en}")

    def location(self, tags: str) -> Phrase:
        """Say where, from the comma-separated classes of places."""
        if "city" in tags and (self.chance(0.6) or not lexicon.places_tagged(tags)):
            de, en = self.rng.choice(CITIES + COUNTRIES if "country" in tags else CITIES)
            return Phrase(f"in {de}", f"in {en}")
        return at_place(self.rng.choice(lexicon.places_tagged(tags)))

    def direction(self, tags: str) -> Phrase:
        """Say where to."""
        if tags == "far":
            de, en = self.rng.choice(CITIES + COUNTRIES)
            return Phrase(f"nach {de}", f"to {en}")
        if tags == "near" and self.chance(0.15):
            return Phrase("nach Hause", "home")
        return to_place(self.rng.choice(lexicon.places_tagged(tags)))

    def clock(self, minutes: tuple[int, ...] = tuple(range(0, 60, 5))) -> Phrase:
        """Say at what time: um halb vier, at half past three."""
        hour, minute = self.rng.randint(1, 12), self.rng.choice(minutes)
        return Phrase(f"um {forms.german_clock(hour, minute)}", f"at {forms.english_clock(hour, minute)}")

    def time(self, kind: str, lasting: bool = False) -> Phrase:
        """Return a time adverbial for the past, the future or a habit; `lasting` allows months and years."""
        de, en = self.rng.choice(WEEKDAYS)
        roll = self.rng.random()
        if kind == "habit":
            return Phrase(f"jeden {de}", f"every {en}") if roll < 0.2 else self.rng.choice(HABIT)
        if roll < 0.12:
            return Phrase(
                f"{'letzten' if kind == 'past' else 'nächsten'} {de}", f"{'last' if kind == 'past' else 'next'} {en}"
            )
        if roll < 0.24:
            return Phrase(f"am {de}", f"on {en}")
        if roll < 0.34 and lasting:
            month, english = self.rng.choice(MONTHS)
            return Phrase(f"im {month}", f"in {english}")
        if roll < 0.44:
            return self._distance(kind, lasting)
        if roll < 0.52:
            clock = self.clock()
            return Phrase(f"am {de} {clock.de}", f"on {en} {clock.en}")
        return self.rng.choice(
            (PAST if kind == "past" else FUTURE) + ((LONG_PAST if kind == "past" else LONG_FUTURE) * lasting)
        )

    def _distance(self, kind: str, lasting: bool) -> Phrase:
        units = [
            ("Stunden", "hours"),
            ("Tagen", "days"),
            ("Wochen", "weeks"),
            ("Monaten", "months"),
            ("Jahren", "years"),
        ]
        de, en = self.rng.choice(units[1:] if lasting else units[:2])
        n = self.rng.randint(2, 9)
        if kind == "past":
            return Phrase(f"vor {forms.german_number(n)} {de}", f"{forms.english_number(n)} {en} ago")
        return Phrase(f"in {forms.german_number(n)} {de}", f"in {forms.english_number(n)} {en}")

    def verb(self, kinds: str, *, willed: bool = False) -> Verb:
        """Return a verb with a human subject, separable ones more often than their number."""
        open_verbs = [
            v for v in lexicon.verbs if v.kind in kinds and v.particle + v.de not in SPECIAL and "fix" not in v.frame
        ]
        if willed:
            open_verbs = [v for v in open_verbs if v.particle + v.de not in UNWILLED]
        separable = [v for v in open_verbs if v.particle]
        return self.rng.choice(separable if separable and self.chance(0.2) else open_verbs)

    def action(self, verb: Verb, subject: Nominal, *, negated: bool = False, loc: float = 0.25) -> Clause:
        """Return a present clause in which the verb has the objects and perhaps the place that it takes."""
        frame = verb.frame
        clause = Clause(subject, verb, negated=negated, reflexive=verb.de in REFLEXIVE)
        if "dat" in frame:
            clause = clause.having(dative=self.definite(frame["dat"], subject))
        if "acc" in frame:
            clause = clause.having(accusative=self.accusative(verb, subject, negated))
        if "obl" in frame:
            preposition, case, english, tags = frame["obl"].split(":")
            clause = clause.having(oblique=Oblique(preposition, case, english, self.definite(tags, subject)))
        if "dir" in frame:
            clause = clause.having(complement=self.direction(frame["dir"]))
        if verb.de == "fahren":
            clause = clause.having(means=self.rng.choice(MEANS))
        elif _name(verb) in PLACED or ("loc" in frame and not negated and self.chance(loc)):
            clause = clause.having(complement=self.location(frame["loc"]))
        return self._with_manner(clause)

    def accusative(self, verb: Verb, subject: Nominal, negated: bool = False, tags: str = "") -> Nominal:
        """Return an accusative object that suits the verb and its subject."""
        frame = verb.frame
        while True:
            found = self.object(tags or frame["acc"], subject, negated)
            noun = getattr(found, "noun", None)
            if "cloth" in frame["acc"] and noun and noun.de in FEMININE and subject.gender != "f":
                continue
            if (_name(verb) in OBTAINING and owned(found)) or (_name(verb) in WORN and found.plural):
                continue
            if not (found.pronominal and "dat" in frame):
                return found

    def _with_manner(self, clause: Clause) -> Clause:
        words = [Phrase(de, en) for de, (en, suited) in MANNER.items() if clause.verb.de in suited.split()]
        definite = getattr(clause.accusative, "det", "the") not in ("a", "", "no", "many")
        if words and not clause.complement and not clause.oblique and definite and self.chance(0.3):
            return clause.having(manner=self.rng.choice(words))
        return clause

    def suited_subject(self, verb: Verb, **options: bool) -> Nominal:
        """Return a subject that the verb accepts: children for playing, otherwise anyone."""
        return self.subject(tags=verb.frame.get("subj", "person"), **options)  # type: ignore[arg-type]

    def front(self, clause: Clause, probability: float = 0.45) -> Clause:
        """Perhaps move the time to the front, which inverts the German subject and verb."""
        return clause.having(front="time") if clause.time and self.chance(probability) else clause

    def statement(self, mode: str, *, negation: float = 0.15, **options: bool) -> Clause:
        """Return a clause: now, habit, past, future, modal or modal-past."""
        kinds = {"now": "as", "habit": "ae", "past": "aes"}.get(mode, "ae")
        verb = self.verb(kinds, willed=mode in ("future", "modal", "modal-past"))
        negated = mode != "habit" and self.chance(negation)
        clause = self.action(verb, self.suited_subject(verb, **options), negated=negated)
        if mode == "habit" and (_name(verb) in ONCE or "this" in (_det(clause.accusative), _det(clause.dative))):
            return self.statement(mode, negation=negation, **options)
        if mode == "habit" and (getattr(clause.accusative, "count", 0) or _det(clause.accusative) == "many"):
            return self.statement(mode, negation=negation, **options)
        return self._in_mode(clause, mode)

    def _in_mode(self, clause: Clause, mode: str) -> Clause:
        if mode == "now":
            active = clause.verb.kind == "a" and not clause.negated and self.chance(0.25)
            return clause.having(time=self.rng.choice(NOW)) if active else clause
        if mode == "habit":
            if _name(clause.verb) in SCHEDULED:
                day, clock = self.rng.choice(DAILY), self.clock()
                return clause.having(habitual=True, time=Phrase(f"{day.de} {clock.de}", f"{day.en} {clock.en}"))
            if self.chance(0.5):
                return clause.having(habitual=True, often=self.rng.choice(OFTEN))
            return clause.having(habitual=True, time=self.time("habit"))
        time = (
            self.time("past" if "past" in mode else "future", _name(clause.verb) in LASTING)
            if self.chance(0.6)
            else None
        )
        if mode == "past":
            return clause.having(tense="past", time=time)
        if mode == "future":
            return clause.having(modal="werden", time=time)
        clause = clause.having(manner=None)
        modals = ["können", "müssen", "wollen", "dürfen"]
        if mode == "modal" and not clause.negated:
            modals += ["möchten", "sollten"]
        return clause.having(
            modal=self.rng.choice(modals), tense="past" if mode == "modal-past" else "present", time=time
        )


# What one does not yet own when one does this to it.
OBTAINING = frozenset(
    [
        "kaufen",
        "bestellen",
        "backen",
        "kochen",
        "bauen",
        "schreiben",
        "aussuchen",
        "ausleihen",
        "bekommen",
        "mitbringen",
        "pflanzen",
        "malen",
        "erzählen",
        "probieren",
        "lesen",
        "essen",
        "trinken",
        "geben",
        "verkaufen",
    ]
)
ONCE = frozenset(["verkaufen", "bauen", "umziehen", "finden"])
WORN = frozenset(["anziehen", "ausziehen", "tragen", "ausfüllen"])
PLACED = frozenset(["bleiben", "wohnen", "sitzen", "ankommen", "aussteigen", "umsteigen", "schlafen"])
# What one plans months ahead, or tells of months later.
LASTING = frozenset(
    [
        "kaufen",
        "verkaufen",
        "besuchen",
        "fahren",
        "fliegen",
        "reisen",
        "umziehen",
        "bauen",
        "malen",
        "treffen",
        "tanzen",
        "wandern",
        "kennen",
    ]
)
SCHEDULED = frozenset(["aufstehen", "aufwachen", "ankommen", "frühstücken"])
FEMININE = frozenset(["Kleid", "Rock", "Bluse"])
REFLEXIVE = frozenset(["freuen", "interessieren", "erinnern", "kümmern", "beeilen"])


def _name(verb: Verb) -> str:
    return verb.particle + verb.de


def _parental(subject: Nominal, found: Nominal) -> bool:
    """Return whether a child would have a child of its own (der Junge, sein Sohn)."""
    young = [isinstance(p, NounPhrase) and "child" in p.noun.tags for p in (subject, found)]
    return all(young) and _det(found) in ("his", "her", "their")


def _det(phrase: Nominal | None) -> str:
    return getattr(phrase, "det", "")


def clashes(subject: Nominal, pronoun: Pronoun) -> bool:
    """Return whether an object pronoun would repeat the subject or need a reflexive (I see me, she sees her)."""
    if subject.person < 3:
        return pronoun.person == subject.person
    if subject.plural:
        return pronoun.plural and pronoun.person == 3
    return pronoun.person == 3 and pronoun.gender == subject.gender


def owned(found: Nominal) -> bool:
    """Return whether a phrase has a possessive or a possessor."""
    return (
        getattr(found, "det", "") in forms.EIN_WORDS.keys() - {"a", "no"}
        or getattr(found, "possessor", None) is not None
    )


def ambiguous(head: Nominal, other: Nominal | None) -> bool:
    """Return whether a relative clause would not show who does what: die Frau, die Maria besucht."""
    if other is None or (head.gender == "m" and not head.plural):
        return False
    return other.german("nom") == other.german("acc") and other.plural == head.plural


def same(subject: Nominal, other: Nominal) -> bool:
    """Return whether two phrases share a noun or a name."""
    first, second = subject.german("nom"), other.german("nom")
    nouns = getattr(subject, "noun", None), getattr(other, "noun", None)
    return (
        (nouns[0] is not None and nouns[0] is nouns[1])
        or first in second.split(" und ")
        or second in first.split(" und ")
    )
