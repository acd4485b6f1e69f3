"""The constructions of the phrasebook; each method returns one sentence in German and in English."""

from __future__ import annotations

import re
from collections.abc import Callable

import lexicon
import morphology as forms
from lexicon import verb
from phrases import (
    CITIES,
    COUNTRIES,
    DAILY,
    DU,
    ER,
    ES,
    ICH,
    MONTHS,
    NAMES,
    SIE,
    THEY,
    WER,
    WIR,
    Phrases,
    ambiguous,
    pronoun_for,
    same,
    to_place,
)
from syntax import (
    GAP,
    Clause,
    Name,
    Nominal,
    NounPhrase,
    Oblique,
    Phrase,
    Relative,
    english_clause,
    german_clause,
    sentence,
)

Pair = tuple[str, str]

MOODS = [
    ("müde", "tired"),
    ("krank", "ill"),
    ("glücklich", "happy"),
    ("traurig", "sad"),
    ("nervös", "nervous"),
    ("fertig", "ready"),
    ("wütend", "angry"),
    ("gesund", "healthy"),
    ("beschäftigt", "busy"),
    ("pünktlich", "on time"),
    ("allein", "alone"),
]
IDIOMS = [("Hunger", "hungry"), ("Durst", "thirsty"), ("Angst", "afraid"), ("Heimweh", "homesick")]
PROFESSIONS = [
    ("Lehrer", "Lehrerin", "teacher"),
    ("Arzt", "Ärztin", "doctor"),
    ("Koch", "Köchin", "cook"),
    ("Maler", "Malerin", "painter"),
    ("Polizist", "Polizistin", "police officer"),
    ("Verkäufer", "Verkäuferin", "shop assistant"),
    ("Sänger", "Sängerin", "singer"),
    ("Bäcker", "Bäckerin", "baker"),
    ("Student", "Studentin", "student"),
    ("Pilot", "Pilotin", "pilot"),
    ("Anwalt", "Anwältin", "lawyer"),
    ("Ingenieur", "Ingenieurin", "engineer"),
]
COUNTED = {
    "kaufen": "fruit,read,plant,dish,bake",
    "lesen": "read",
    "schreiben": "mail",
    "verkaufen": "fruit,read,toy,cloth",
    "bestellen": "food",
    "sehen": "animal",
    "fotografieren": "animal",
    "finden": "toy,dish",
    "backen": "bake",
    "schicken": "write",
    "bekommen": "get",
    "abtrocknen": "dish",
    "pflanzen": "plant",
    "auspacken": "pack",
}
SHORT_MONTHS = ("April", "June", "September", "November")
SPOTS = [
    ("auf", "Tisch", "on"),
    ("auf", "Sofa", "on"),
    ("auf", "Bett", "on"),
    ("unter", "Bett", "under"),
    ("unter", "Tisch", "under"),
    ("neben", "Lampe", "next to"),
    ("neben", "Bett", "next to"),
    ("hinter", "Tür", "behind"),
    ("hinter", "Sofa", "behind"),
    ("vor", "Schrank", "in front of"),
    ("vor", "Tür", "in front of"),
    ("in", "Schrank", "in"),
    ("in", "Küche", "in"),
    ("in", "Keller", "in"),
    ("auf", "Stuhl", "on"),
    ("neben", "Sofa", "next to"),
]
LYING = "Buch Brief Zeitung Schlüssel Handy Brieftasche Messer Gabel Löffel Zeitschrift"
STANDING = "Flasche Vase Lampe Teller Tasse Glas Koffer Kiste Tasche"
PURPOSES = {
    "Supermarkt": "kaufen:food",
    "Markt": "kaufen:food",
    "Bäckerei": "kaufen:bake",
    "Küche": "kochen:cook",
    "Garten": "pflanzen:plant",
    "Bibliothek": "ausleihen:read",
    "Bahnhof": "abholen:kin",
    "Flughafen": "abholen:kin",
    "Park": "treffen:person",
    "Café": "treffen:person",
    "Krankenhaus": "besuchen:kin",
    "Wald": "fotografieren:animal",
    "Schwimmbad": "schwimmen:",
    "See": "schwimmen:",
    "Schule": "lernen:",
    "Universität": "lernen:",
}
# Reason | what follows from it | what does not. Verb:object class, @place, or a phrase.
ACTS = {
    "hungry": ["essen:food", "kochen:cook", "bestellen:food", "gehen:@in die Küche=into the kitchen"],
    "thirsty": ["trinken:drink", "bestellen:drink", "holen:drink"],
    "tired": ["bleiben:@zu Hause=at home", "gehen:@ins Bett=to bed", "gehen:@nach Hause=home"],
    "ill": ["bleiben:@im Bett=in bed", "bleiben:@zu Hause=at home", "gehen:@zum Arzt=to the doctor's"],
    "wet": ["bleiben:@zu Hause=at home", "zumachen:opening", "anziehen:warm", "fahren:@mit dem Bus=by bus"],
    "busy": ["aufräumen:room", "vorbereiten:plan", "beantworten:answer", "schreiben:mail"],
    "free": [
        "besuchen:kin",
        "lesen:read",
        "anrufen:kin",
        "malen:paint",
        "backen:bake",
        "schreiben:mail",
        "gehen:@ins Kino=to the cinema",
    ],
    "party": ["backen:bake", "einkaufen:", "kaufen:plant", "aufräumen:room", "kochen:cook"],
    "exam": ["lernen:", "gehen:@in die Bibliothek=to the library", "ausleihen:read", "bleiben:@zu Hause=at home"],
    "work": [
        "arbeiten:",
        "putzen:clean",
        "reparieren:repair",
        "aufräumen:room",
        "lernen:",
        "einkaufen:",
        "kochen:cook",
    ],
    "outdoor": [
        "schwimmen:@im See=in the lake",
        "sitzen:@im Garten=in the garden",
        "gehen:@in den Park=to the park",
        "arbeiten:@im Garten=in the garden",
        "wandern:",
        "fahren:@mit dem Fahrrad=by bicycle",
    ],
    "save": ["bleiben:@zu Hause=at home", "fahren:@mit dem Bus=by bus", "verkaufen:sale", "reparieren:repair"],
    "spend": ["kaufen:goods", "kaufen:want", "bestellen:food", "kaufen:cloth"],
}


class Constructions(Phrases):
    """Draws whole sentences, one method for each construction."""

    def told(self, clause: Clause, end: str = ".") -> Pair:
        """Say a clause as a main clause in both languages."""
        return sentence(german_clause(clause, "main"), end), sentence(english_clause(clause, "main"), end)

    def now(self) -> Pair:
        """Present: Anna liest gerade ein Buch."""
        return self.told(self.front(self.statement("now")))

    def habit(self) -> Pair:
        """Habit: Sie steht jeden Tag um sechs Uhr auf."""
        return self.told(self.front(self.statement("habit")))

    def past(self) -> Pair:
        """Perfect tense: Gestern ist er nach Berlin gefahren."""
        return self.told(self.front(self.statement("past")))

    def future(self) -> Pair:
        """Future: Morgen werde ich dich anrufen."""
        return self.told(self.front(self.statement("future")))

    def modal(self) -> Pair:
        """Modal verbs: Er will das Fenster aufmachen."""
        return self.told(self.front(self.statement("modal")))

    def modal_past(self) -> Pair:
        """Modal verbs in the past: Gestern musste ich arbeiten."""
        return self.told(self.front(self.statement("modal-past")))

    def negation(self) -> Pair:
        """Negation with kein or nicht: Er hat kein Auto gekauft."""
        return self.told(
            self.front(self.statement(self.rng.choice(("now", "past", "modal", "future")), negation=1.0), 0.25)
        )

    def gern(self) -> Pair:
        """The adverb gern for to like: Er liest gern Romane."""
        while True:
            kind = self.verb("a", willed=True)
            clause = self.action(kind, self.subject())
            generic = clause.accusative is None or (
                getattr(clause.accusative, "det", "the") == "" and not getattr(clause.accusative, "count", 0)
            )
            if generic and not clause.manner and kind.de not in UNPLEASANT and not clause.dative and not kind.particle:
                return self.told(clause.having(gern=True, negated=False))

    def yes_no(self) -> Pair:
        """Yes-no question: Hast du das Buch gelesen?"""
        mode = self.rng.choice(("now", "past", "past", "modal", "future", "habit"))
        clause = self.statement(mode, negation=0.0)
        while getattr(clause.subject, "det", "") in ("a", "every") or (
            clause.subject.person == 1 and clause.modal not in ("dürfen", "müssen", "können", "sollten")
        ):
            clause = self.statement(mode, negation=0.0)
        if clause.modal == "dürfen" and clause.subject.person == 1:
            clause = clause.having(time=None)
            english = english_clause(clause.having(modal="können"), "question").replace("can ", "may ", 1)
        else:
            english = english_clause(clause, "question")
        return sentence(german_clause(clause, "first"), "?"), sentence(english, "?")

    def request(self) -> Pair:
        """Request: Kannst du bitte die Tür zumachen?"""
        kind = self._ordered_verb()
        clause = self._order(kind)
        closing = kind.particle + kind.de
        german = f"{german_clause(clause.having(time=Phrase('bitte', '')), 'final')}".rsplit(" ", 1)[0]
        german = german.removeprefix("du ")
        english = english_clause(clause, "to").removeprefix("to ")
        return sentence(f"kannst du {german} {closing}", "?"), sentence(f"can you please {english}", "?")

    def _order(self, kind: lexicon.Verb) -> Clause:
        """Return what one tells others to do: bare plurals only for food."""
        while True:
            clause = self.action(kind, DU, loc=0.0)
            thing = clause.accusative
            vague = isinstance(thing, NounPhrase) and thing.plural and thing.det in ("", "many") and not thing.count
            if not (
                vague
                and isinstance(thing, NounPhrase)
                and "food" not in thing.noun.tags
                and "plant" not in thing.noun.tags
            ):
                return clause

    def _ordered_verb(self) -> lexicon.Verb:
        able = [v for v in lexicon.verbs if v.imperative and v.kind == "a" and {"acc", "dat"} & set(v.frame)]
        skipped = ["hören", "ansehen", "legen", "stellen", "folgen", "treffen", "denken", "verkaufen", "bauen"]
        return self.rng.choice([v for v in able if v.particle + v.de not in skipped])

    def imperative(self) -> Pair:
        """Imperative: Mach bitte das Fenster auf!"""
        kind = self._ordered_verb()
        clause = self._order(kind)
        polite = self.chance(0.5)
        finite = german_clause(clause.having(time=Phrase("bitte", "")) if polite else clause, "first")
        german = kind.imperative + finite.split(" du", 1)[1]
        english = english_clause(clause, "to").removeprefix("to ")
        return sentence(german, "!"), sentence(f"please {english}" if polite else english, "!")

    def warning(self) -> Pair:
        """Negative imperative: Vergiss deinen Schlüssel nicht!"""
        kind = self.rng.choice(
            [
                verb("vergessen"),
                verb("verlieren"),
                verb("wegwerfen"),
                verb("verkaufen"),
                verb("aufmachen"),
                verb("ausmachen"),
            ]
        )
        thing = self.definite(kind.frame["acc"], DU)
        name = self.rng.choice(NAMES).de if self.chance(0.3) else ""
        clause = Clause(DU, kind, accusative=thing, negated=True)
        german = kind.imperative + german_clause(clause, "first").split(" du", 1)[1]
        english = "don't " + english_clause(clause.having(negated=False), "to").removeprefix("to ")
        tail = f", {name}" if name else ""
        return sentence(german + tail, "!"), sentence(english + tail, "!")

    def wh_subject(self) -> Pair:
        """Question about the subject: Wer hat das Buch gelesen?"""
        clause = self.statement(self.rng.choice(("now", "past", "modal")), negation=0.1)
        while any(p is not None and p.pronominal for p in (clause.accusative, clause.dative)) or self._owned(clause):
            clause = self.statement(self.rng.choice(("now", "past", "modal")), negation=0.1)
        return self.told(clause.having(subject=WER, front=""), "?")

    def _owned(self, clause: Clause) -> bool:
        objects = [clause.accusative, clause.dative, clause.oblique.object if clause.oblique else None]
        dets = {getattr(o, "det", "") for o in objects}
        return bool(dets & {"his", "her", "their", "your", "my", "our"})

    def wh_object(self) -> Pair:
        """Question about an object: Was macht Anna auf? Wem hilft er? Auf wen wartest du?"""
        clause = self._asked_about(self.rng.choice(("now", "past", "past", "modal", "future")))
        if clause.oblique is not None:
            return self._wh_oblique(clause)
        if clause.dative is not None:
            return self._asked("wem", "who", clause.having(dative=GAP))
        if clause.accusative is None:
            return self.wh_adverb()
        thing = clause.accusative
        human = not isinstance(thing, NounPhrase) or "person" in thing.noun.tags
        return self._asked(
            "wen" if human else "was", "who" if human else "what", clause.having(accusative=GAP, manner=None)
        )

    def _asked_about(self, mode: str, negation: float = 0.0) -> Clause:
        """Return a clause that one asks others about, so not about ich or wir."""
        clause = self.statement(mode, negation=negation)
        while clause.subject.person == 1 or getattr(clause.subject, "det", "") in ("a", "every"):
            clause = self.statement(mode, negation=negation)
        return clause

    def which(self) -> Pair:
        """Question with welch-: Welches Buch liest du?"""
        clause = self._asked_about(self.rng.choice(("now", "past", "past", "modal")))
        thing = clause.accusative
        if (
            not isinstance(thing, NounPhrase)
            or thing.noun.mass
            or thing.noun.dets in ("n", "p")
            or "person" in thing.noun.tags
        ):
            return self.which()
        asked = NounPhrase(thing.noun, "which", thing.plural and "n" in thing.noun.dets, thing.adjectives)
        return self._asked(asked.german("acc"), asked.english("acc"), clause.having(accusative=GAP, manner=None))

    def _asked(self, german: str, english: str, clause: Clause) -> Pair:
        clause = clause.having(front="")
        return (
            sentence(f"{german} {german_clause(clause, 'first')}", "?"),
            sentence(f"{english} {english_clause(clause, 'question')}", "?"),
        )

    def _wh_oblique(self, clause: Clause) -> Pair:
        assert clause.oblique is not None
        preposition, case, english, thing = (
            clause.oblique.preposition,
            clause.oblique.case,
            clause.oblique.en_preposition,
            clause.oblique.object,
        )
        gap = clause.having(oblique=Oblique("", case, english, GAP), complement=None, manner=None)
        if isinstance(thing, NounPhrase) and not thing.noun.tags & {"person", "animal"}:
            fused = f"wo{'r' if preposition[0] in 'aeiouü' else ''}{preposition}"
            return self._asked(fused, "what", gap)
        return self._asked(f"{preposition} {'wem' if case == 'dat' else 'wen'}", "who", gap)

    def wh_adverb(self) -> Pair:
        """Question about time, reason or place: Wann fährst du nach Berlin?"""
        word = self.rng.choice((("wann", "when"), ("warum", "why"), ("wo", "where"), ("wie oft", "how often")))
        mode = "habit" if word[0] == "wie oft" else self.rng.choice(("past", "modal", "future", "now"))
        while True:
            clause = self._asked_about(mode, 0.25 if word[0] == "warum" else 0.0)
            placed = "loc" in clause.verb.frame
            if word[0] == "wo" and not placed:
                continue
            if word[0] == "wann" and mode == "now":
                mode = "future"
                continue
            time = clause.time if word[0] in ("warum", "wo") else None
            complement = None if word[0] == "wo" else clause.complement
            return self._asked(*word, clause.having(time=time, often=None, complement=complement))

    def where_is(self) -> Pair:
        """Short questions: Wo ist mein Schlüssel? Wohin fährt der Zug?"""
        if self.chance(0.4):
            subject = self.subject()
            going = self.rng.choice((verb("gehen"), verb("fliegen"), verb("reisen"), verb("laufen")))
            tense = self.rng.choice(("present", "past"))
            return self._asked("wohin", "where", Clause(subject, going, tense))
        thing = self.definite("find,pet,kin,dish", DU)
        if thing.pronominal:
            thing = NAMES[self.rng.randrange(len(NAMES))]
        place = self._asked("wo", "where", Clause(thing, verb("sein"), self.rng.choice(("present", "past"))))
        return place

    def subordinate(self) -> Pair:
        """Cause and condition: weil, wenn, obwohl, deshalb, in either order of clauses."""
        subject = self.subject(neuter=False)
        while subject.gender == "n" and not subject.plural:
            subject = self.subject(neuter=False)
        word, english = self.rng.choice(
            (("weil", "because"), ("weil", "because"), ("wenn", "if"), ("obwohl", "although"), ("deshalb", "so"))
        )
        tense = "past" if word != "wenn" and self.chance(0.45) else "present"
        reason, effects = self._reason(subject, contrary=word == "obwohl", tense=tense)
        effect = self._act(self.rng.choice(effects), subject).having(tense=tense)
        if word == "wenn":
            effect = self._conditional(effect)
        return self._linked(word, english, reason.having(habitual=word == "wenn"), effect)

    def _conditional(self, effect: Clause) -> Clause:
        able = effect.complement is None or effect.verb.de in ("sitzen", "schwimmen", "gehen")
        modal = self.rng.choice(
            ("", "", "werden", "können" if able and effect.verb.de not in ("anziehen", "machen") else "müssen")
        )
        return effect.having(modal=modal, habitual=not modal)

    def _linked(self, word: str, english: str, reason: Clause, effect: Clause) -> Pair:
        subject = effect.subject
        personal = reason.subject is subject
        if word == "deshalb":
            later = effect.having(subject=pronoun_for(subject)) if personal else effect
            german = f"{german_clause(reason, 'main')}, deshalb {german_clause(later, 'first')}"
            return sentence(german), sentence(f"{english_clause(reason, 'main')}, so {english_clause(later, 'main')}")
        if self.chance(0.5):
            later = effect.having(subject=pronoun_for(subject)) if personal else effect
            german = f"{word} {german_clause(reason, 'final')}, {german_clause(later, 'first')}"
            return sentence(german), sentence(
                f"{english} {english_clause(reason, 'main')}, {english_clause(later, 'main')}"
            )
        later = reason.having(subject=pronoun_for(subject)) if personal else reason
        german = f"{german_clause(effect, 'main')}, {word} {german_clause(later, 'final')}"
        return sentence(german), sentence(f"{english_clause(effect, 'main')} {english} {english_clause(later, 'main')}")

    def _reason(self, subject: Nominal, *, contrary: bool, tense: str) -> tuple[Clause, list[str]]:
        """Return a reason and the acts that follow from it, or that one does in spite of it."""
        be, have = verb("sein"), verb("haben", "be")
        states = [
            (Clause(subject, have, complement=Phrase("Hunger", "hungry")), "hungry", "work"),
            (Clause(subject, have, complement=Phrase("Durst", "thirsty")), "thirsty", "work"),
            (Clause(subject, be, complement=Phrase("müde", "tired")), "tired", "work"),
            (Clause(subject, be, complement=Phrase("krank", "ill")), "ill", "work"),
            (Clause(subject, verb("haben", "have"), complement=Phrase("Zeit", "time")), "free", ""),
            (Clause(subject, verb("haben", "have"), complement=Phrase("eine Prüfung", "an exam")), "exam", "free"),
            (Clause(subject, verb("haben", "have"), complement=Phrase("wenig Geld", "little money")), "save", "spend"),
            (Clause(subject, verb("haben", "have"), complement=Phrase("Gäste", "guests")), "party", ""),
            (Clause(ES, verb("regnen")), "wet", "outdoor"),
            (Clause(ES, verb("schneien")), "wet", "outdoor"),
            (Clause(ES, be, complement=Phrase("kalt", "cold")), "wet", "outdoor"),
            (Clause(Name("die Sonne", "the sun", "f"), verb("scheinen")), "outdoor", "work"),
            (Clause(Name("das Wetter", "the weather", "n"), be, complement=Phrase("schön", "nice")), "outdoor", "work"),
        ]
        clause, follows, against = self.rng.choice([state for state in states if state[2] or not contrary])
        return clause.having(tense=tense), ACTS[against if contrary else follows]

    def _act(self, act: str, subject: Nominal) -> Clause:
        """Return the clause that an entry of ACTS describes."""
        name, _, rest = act.partition(":")
        kind = next(
            v
            for v in lexicon.verbs
            if v.particle + v.de == name and ("acc" in v.frame) == (rest != "" and rest[0] != "@")
        )
        clause = Clause(subject, kind)
        if rest.startswith("@"):
            return clause.having(complement=Phrase(*rest[1:].split("=")))
        if not rest:
            return clause
        while True:
            found = self.accusative(kind, subject, tags=rest)
            if not found.pronominal:
                return clause.having(accusative=found)

    def dass(self) -> Pair:
        """Object clauses: Ich glaube, dass Anna heute kommt. Weißt du, wo Paul arbeitet?"""
        kind, modes = self.rng.choice(
            (
                ("glauben", "now habit past future modal"),
                ("wissen", "now habit past modal"),
                ("hoffen", "future"),
                ("sagen", "now past future modal"),
            )
        )
        speaker = (
            self.rng.choice(NAMES)
            if kind == "sagen"
            else self.rng.choice((ICH, ICH, WIR, self.rng.choice(NAMES), ER, SIE))
        )
        clause = self.statement(self.rng.choice(modes.split()))
        while (
            same(clause.subject, speaker)
            or clause.subject in (ER, SIE, speaker)
            or (self._owned(clause) and clause.subject.plural)
        ):
            clause = self.statement(self.rng.choice(modes.split()))
        clause = clause.having(front="")
        head = Clause(speaker, verb(kind))
        return (
            sentence(f"{german_clause(head, 'main')}, dass {german_clause(clause, 'final')}"),
            sentence(f"{english_clause(head, 'main')} that {english_clause(clause, 'main')}"),
        )

    def indirect(self) -> Pair:
        """Indirect questions: Ich weiß nicht, ob er kommt. Weißt du, wann der Zug abfährt?"""
        word, english = self.rng.choice((("ob", "whether"), ("warum", "why"), ("wann", "when"), ("ob", "whether")))
        mode = self.rng.choice(("past", "future", "modal") if word == "wann" else ("past", "future", "modal", "now"))
        clause = self.statement(mode, negation=0.0)
        while clause.subject.person < 3 or getattr(clause.subject, "det", "") in ("a", "every"):
            clause = self.statement(mode, negation=0.0)
        if word == "wann":
            clause = clause.having(time=None)
        if self.chance(0.5):
            ask, order, end = Clause(DU, verb("wissen")), ("first", "question"), "?"
        else:
            ask, order, end = Clause(ICH, verb("wissen"), negated=True), ("main", "main"), "."
        return (
            sentence(f"{german_clause(ask, order[0])}, {word} {german_clause(clause, 'final')}", end),
            sentence(f"{english_clause(ask, order[1])} {english} {english_clause(clause, 'main')}", end),
        )

    def sequence(self) -> Pair:
        """Time clauses: bevor, nachdem (pluperfect) and während."""
        word = self.rng.choice(("bevor", "nachdem", "während"))
        if word == "während":
            return self._meanwhile()
        subject = self.subject(neuter=False)
        while subject.gender == "n" and not subject.plural:
            subject = self.subject(neuter=False)
        first, second = self._act(self._chore(), subject), self._act(self._chore(), subject)
        while first.verb is second.verb:
            second = self._act(self._chore(), subject)
        if word == "nachdem":
            early, late = first.having(tense="pluperfect"), second.having(tense="past")
            return self._linked("nachdem", "after", early, late)
        past = self.chance(0.6)
        tense = {"tense": "past"} if past else {"habitual": True}
        return self._linked("bevor", "before", first.having(**tense), second.having(**tense))

    def _chore(self) -> str:
        return self.rng.choice(ACTS[self.rng.choice(("hungry", "thirsty", "free", "work", "busy", "spend"))])

    def _meanwhile(self) -> Pair:
        one, other = self.rng.sample(NAMES, 2)
        kinds = [
            self._act(self.rng.choice(ACTS[self.rng.choice(("work", "busy", "hungry", "free"))]), s)
            for s in (one, other)
        ]
        tense = self.rng.choice(("present", "past"))
        if kinds[0].verb is kinds[1].verb:
            return self.sequence()
        return self._linked("während", "while", kinds[0].having(tense=tense), kinds[1].having(tense=tense))

    def coordination(self) -> Pair:
        """Two clauses with und or aber: Anna liest ein Buch, aber Paul schläft."""
        one, other = self.rng.sample(NAMES, 2)
        mode = self.rng.choice(("now", "past", "future"))
        word, english = self.rng.choice(((" und", " and"), (", aber", ", but")))
        first, second = (
            self._in_mode(self.action(self.verb("a", willed=True), s), mode).having(time=None) for s in (one, other)
        )
        return (
            sentence(f"{german_clause(first, 'main')}{word} {german_clause(second, 'main')}"),
            sentence(f"{english_clause(first, 'main')}{english} {english_clause(second, 'main')}"),
        )

    def relative_subject(self) -> Pair:
        """Relative clause on the subject: Die Frau, die dort wartet, ist meine Tante."""
        head = self._head("stranger")
        head = self._with_relative(head)
        roll = self.rng.random()
        if roll < 0.35 and not head.plural:
            kin = self.rng.choice(self._kin_of(head))
            det = self.rng.choice(("my", "your", "our"))
            other = NounPhrase(kin, det)
            clause = Clause(head, verb("sein"), complement=Phrase(other.german("nom"), other.english("nom")))
        elif roll < 0.7:
            past = head.relative is not None and head.relative.clause.tense == "past" and self.chance(0.5)
            clause = Clause(
                head, verb("sein"), "past" if past else "present", complement=Phrase(*self.rng.choice(MOODS))
            )
        else:
            kind = self.verb("a", willed=True)
            clause = self._in_mode(self.action(kind, head), self.rng.choice(("past", "future", "modal")))
            clause = clause.having(time=None)
        return self.told(clause)

    def _kin_of(self, head: NounPhrase) -> list[lexicon.Noun]:
        """Return the relatives that a stranger of this age and gender can be."""
        if "child" in head.noun.tags:
            gender = {"Junge": "m", "Mädchen": "f"}.get(head.noun.de, "mf")
            return [
                n for n in lexicon.nouns if n.de in ("Sohn", "Tochter", "Bruder", "Schwester") and n.gender in gender
            ]
        return [n for n in lexicon.tagged("kin") if n.gender == head.gender]

    def relative_object(self) -> Pair:
        """Relative clause on the object: Ich kenne den Mann, der das Auto repariert."""
        subject = self.subject()
        head = self._with_relative(self._head("stranger"), other=subject)
        roll = self.rng.random()
        if roll < 0.45:
            clause = Clause(subject, verb("kennen"), "past" if self.chance(0.2) else "present", accusative=head)
        elif roll < 0.6:
            clause = Clause(subject, verb("helfen"), self.rng.choice(("past", "present")), dative=head)
        elif roll < 0.8:
            clause = Clause(
                subject, self.rng.choice((verb("suchen"), verb("treffen"), verb("fragen"))), "past", accusative=head
            )
        else:
            clause = Clause(
                subject,
                verb("sprechen"),
                self.rng.choice(("past", "present")),
                oblique=Oblique("mit", "dat", "to", head),
            )
        return self.told(clause)

    def relative_thing(self) -> Pair:
        """Relative clause about a thing: Das Buch, das ich gelesen habe, ist langweilig."""
        kind = self.rng.choice(
            [
                v
                for v in lexicon.verbs
                if v.kind in "ae" and "acc" in v.frame and v.frame["acc"] != "none" and "dat" not in v.frame
            ]
        )
        mode = self.rng.choice(("past", "past", "now") if kind.kind == "a" else ("past",))
        inner = self._in_mode(self.action(kind, self.subject(), loc=0.0), mode)
        nouns = [
            n
            for n in lexicon.tagged(kind.frame["acc"])
            if not n.mass and "d" in n.dets and not n.tags & {"person", "animal"}
        ]
        suited = [a for a in lexicon.adjectives if a.de not in ("jung", "hoch")]
        if not nouns:
            return self.relative_thing()
        noun = self.rng.choice(nouns)
        plural = "n" in noun.dets and self.chance(0.25)
        relative = Relative(inner.having(accusative=GAP, manner=None, often=None, front=""), "acc")
        head = NounPhrase(noun, "the", plural, relative=relative)
        suited = [a for a in suited if a.tags & noun.tags]
        if self.chance(0.6) and suited:
            adjective = self.rng.choice(suited)
            return self.told(
                Clause(
                    head,
                    verb("sein"),
                    self.rng.choice(("present", "past")),
                    complement=Phrase(adjective.de, adjective.en),
                )
            )
        holder = self.subject()
        keeper = self.rng.choice((verb("suchen"), verb("finden"), verb("verkaufen"), verb("brauchen")))
        if (
            inner.tense != "past"
            or keeper is kind
            or same(holder, inner.subject)
            or noun.tags.isdisjoint({"find", "need", "sale"})
        ):
            return self.relative_thing()
        return self.told(Clause(holder, keeper, "past" if keeper.kind != "s" else "present", accusative=head))

    def _head(self, tags: str) -> NounPhrase:
        noun = self.rng.choice(lexicon.tagged(tags))
        return NounPhrase(noun, "the", self.chance(0.25), self.adjectives(noun, 0.2))

    def _with_relative(self, head: NounPhrase, other: Nominal | None = None) -> NounPhrase:
        """Attach a relative clause in the nominative, accusative or dative, or with a preposition."""
        mode = self.rng.choice(("now", "past"))
        role = self.rng.choice(("nom", "nom", "acc", "dat", "mit", "auf"))
        if role == "nom":
            gap = Name("", "", head.gender, head.plural)
            kind = self.verb("a", willed=True)
            while kind.de in ("beeilen",) or "subj" in kind.frame:
                kind = self.verb("a", willed=True)
            clause = self._in_mode(self.action(kind, gap), mode).having(front="")
            if ambiguous(head, clause.accusative) and "person" in kind.frame.get("acc", ""):
                return self._with_relative(head, other)
            return self._attached(head, Relative(clause, "nom"))
        subject = self.subject()
        while same(subject, head) or (other is not None and same(subject, other)):
            subject = self.subject()
        name = {
            "acc": ("fragen", "einladen", "anrufen", "besuchen", "fotografieren", "abholen"),
            "dat": ("helfen", "danken", "folgen", "zuhören", "gratulieren"),
        }
        if role == "acc" and ambiguous(head, subject):
            return self._with_relative(head, other)
        if role in name:
            kind = verb(self.rng.choice(name[role]))
            clause = Clause(subject, kind, **{"accusative" if role == "acc" else "dative": GAP})  # type: ignore[arg-type]
            return self._attached(head, Relative(self._in_mode(clause, mode).having(front=""), role))
        kind = verb("warten") if role == "auf" else self.rng.choice((verb("sprechen"), verb("tanzen")))
        case, english = ("acc", "for") if role == "auf" else ("dat", "to" if kind.de == "sprechen" else "with")
        clause = Clause(subject, kind, oblique=Oblique("", case, english, GAP))
        return self._attached(head, Relative(self._in_mode(clause, mode).having(front=""), case, role))

    def _attached(self, head: NounPhrase, relative: Relative) -> NounPhrase:
        return NounPhrase(head.noun, head.det, head.plural, head.adjectives, relative=relative)

    def timetable(self) -> Pair:
        """Clock times: Der Zug nach Köln fährt um Viertel nach drei ab."""
        clock = self.clock()
        roll = self.rng.random()
        if roll < 0.12:
            bare = Phrase(clock.de.removeprefix("um "), clock.en.removeprefix("at "))
            return sentence(f"es ist {bare.de}"), sentence(f"it is {bare.en}")
        if roll < 0.5:
            noun = self.rng.choice([lexicon.noun(n) for n in ("Zug", "Bus", "Flugzeug")])
            de, en = self.rng.choice(CITIES)
            subject = Name(
                f"{forms.determiner('the', noun.gender, 'nom')} {noun.de} nach {de}",
                f"the {noun.en} to {en}",
                noun.gender,
            )
            clause = Clause(subject, verb("abfahren") if noun.de != "Flugzeug" else verb("abfliegen"), time=clock)
        elif roll < 0.75:
            noun = self.rng.choice([lexicon.noun(n) for n in ("Film", "Konzert", "Fest")])
            clause = Clause(NounPhrase(noun, "the"), self.rng.choice((verb("anfangen"), verb("aufhören"))), time=clock)
        else:
            return self._daily(clock)
        return self._scheduled(clause)

    def _scheduled(self, clause: Clause) -> Pair:
        roll = self.rng.random()
        if roll < 0.2:
            return self._asked("wann", "when", clause.having(time=None))
        if roll < 0.35:
            ask = clause.having(time=None)
            return (
                sentence(f"weißt du, wann {german_clause(ask, 'final')}", "?"),
                sentence(f"do you know when {english_clause(ask, 'main')}", "?"),
            )
        if roll < 0.5:
            return (
                sentence(f"ich glaube, dass {german_clause(clause, 'final')}"),
                sentence(f"I think that {english_clause(clause, 'main')}"),
            )
        return self.told(self.front(clause.having(tense="past") if roll > 0.8 else clause, 0.3))

    def _daily(self, clock: Phrase) -> Pair:
        subject = self.subject()
        kind = self.rng.choice([verb(n) for n in ("aufstehen", "frühstücken", "aufwachen", "einkaufen", "duschen")])
        day = self.rng.choice(DAILY)
        whole = Phrase(f"{day.de} {clock.de}", f"{day.en} {clock.en}")
        clause = Clause(subject, kind, habitual=True, time=whole)
        if self.chance(0.4):
            days = self.rng.choice((Phrase("gestern", "yesterday"), Phrase("heute", "today")))
            clause = Clause(subject, kind, "past", time=Phrase(f"{days.de} {clock.de}", f"{days.en} {clock.en}"))
        return self.told(self.front(clause, 0.3))

    def age(self) -> Pair:
        """Ages: Anna ist vierunddreißig Jahre alt."""
        subject = self.rng.choice((self.name(), self.name(), self.person_noun(tags="kin")))
        tags = subject.noun.tags if isinstance(subject, NounPhrase) else frozenset(("anyone",))
        low, high = (
            (5, 99) if "anyone" in tags else (45, 95) if "old" in tags else (3, 25) if "child" in tags else (15, 75)
        )
        n = self.rng.randint(low, high)
        tense = "present" if self.chance(0.75) else "past"
        clause = Clause(
            subject,
            verb("sein"),
            tense,
            complement=Phrase(f"{forms.german_number(n)} Jahre alt", f"{forms.english_number(n)} years old"),
        )
        return self.told(clause)

    def price(self) -> Pair:
        """Prices: Das rote Kleid kostet fünfundvierzig Euro."""
        noun = self.rng.choice(
            [n for n in lexicon.tagged("goods,food") if not n.mass and "d" in n.dets and n.de != "Auto"]
        )
        large = bool(noun.tags & {"vehicle", "furn", "sale"})
        n = (
            self.rng.choice(range(100, 1000, 50))
            if large
            else self.number(2, 9)
            if "food" in noun.tags
            else self.rng.randint(5, 99)
        )
        plural = noun.dets != "di" and "n" in noun.dets and self.chance(0.25)
        described = tuple(a for a in self.adjectives(noun) if a.de != "schmutzig")
        subject = NounPhrase(noun, self.rng.choice(("the", "the", "this")), plural, described)
        euros = Phrase(f"{forms.german_number(n)} Euro", f"{forms.english_number(n)} euros")
        return self.told(
            Clause(subject, verb("kosten"), "past" if self.chance(0.25) and not plural else "present", complement=euros)
        )

    def count(self) -> Pair:
        """Numbers of things: Paul hat einundzwanzig Bücher gekauft."""
        kind = verb(self.rng.choice(list(COUNTED)))
        subject = self.rng.choice((self.rng.choice(NAMES), self.rng.choice(NAMES), self.subject()))
        nouns = [n for n in lexicon.tagged(COUNTED[kind.particle + kind.de]) if "n" in n.dets]
        noun = self.rng.choice(nouns)
        clause = Clause(
            subject,
            kind,
            "past",
            accusative=NounPhrase(noun, "", True, self.adjectives(noun, 0.25), count=self.number(2)),
        )
        return self.told(self.front(clause.having(time=self.time("past")) if self.chance(0.4) else clause, 0.5))

    def duration(self) -> Pair:
        """Durations: Er hat zwei Stunden gewartet. Sie wohnt seit drei Jahren in Rom."""
        if self.chance(0.35):
            n = self.rng.choice((20, 25, 30, 35, 40, 45, 50, 55, 60, 75, 80, 90, 95))
            thing = NounPhrase(lexicon.noun(self.rng.choice(("Film", "Konzert"))), self.rng.choice(("the", "this")))
            long = Phrase(f"{forms.german_number(n)} Minuten", f"{forms.english_number(n)} minutes")
            return self.told(Clause(thing, verb("dauern"), complement=long))
        n = self.number(2, 12)
        if self.chance(0.5):
            kind = self.rng.choice(
                [verb(v) for v in ("warten", "schlafen", "arbeiten", "schwimmen", "lernen", "fernsehen", "weinen")]
            )
            time = Phrase(f"{forms.german_number(n)} Stunden", f"for {forms.english_number(n)} hours")
            clause = self.action(kind, self.subject()) if kind.de != "warten" else Clause(self.subject(), kind)
            return self.told(clause.having(tense="past", time=time, manner=None))
        return self._since(n)

    def _since(self, n: int) -> Pair:
        de, en = self.rng.choice((("Jahren", "years"), ("Monaten", "months"), ("Wochen", "weeks")))
        time = Phrase(f"seit {forms.german_number(n)} {de}", f"for {forms.english_number(n)} {en}")
        subject = self.subject()
        kind = verb(self.rng.choice(("wohnen", "arbeiten", "kennen", "lernen")))
        clause = Clause(subject, kind, "since", time=time)
        if kind.de == "kennen":
            known = self.name()
            while same(subject, known):
                known = self.name()
            return self.told(clause.having(accusative=known, complement=time, time=None))
        if kind.de == "lernen":
            de, en = self.rng.choice(lexicon.pairs(lexicon.LANGUAGES))
            return self.told(clause.having(verb=verb("lernen", "learn"), complement=Phrase(de, en)))
        return self.told(clause.having(complement=self.location(kind.frame["loc"])))

    def date(self) -> Pair:
        """Dates: Anna hat am einundzwanzigsten Mai Geburtstag. Room numbers: Herr Weber wohnt in Zimmer 34."""
        month, english = self.rng.choice(MONTHS)
        n = self.rng.randint(1, 28 if english == "February" else 30 if english in SHORT_MONTHS else 31)
        when = Phrase(f"am {forms.german_ordinal(n)} {month}", f"on the {forms.english_ordinal(n)} of {english}")
        roll = self.rng.random()
        name = self.name()
        if roll < 0.35:
            return sentence(f"{name.de} hat {when.de} Geburtstag"), sentence(f"{name.en}'s birthday is {when.en}")
        if roll < 0.55:
            room = self.rng.randint(2, 30)
            return self.told(Clause(name, verb("wohnen"), complement=Phrase(f"in Zimmer {room}", f"in room {room}")))
        clause = self.action(
            self.rng.choice([verb(v) for v in ("besuchen", "anrufen", "fliegen", "reisen", "treffen", "umziehen")]),
            self.subject(),
        )
        mode = self.rng.choice(("past", "future"))
        clause = clause.having(tense="past", time=when) if mode == "past" else clause.having(modal="werden", time=when)
        return self.told(self.front(clause))

    def comparison(self) -> Pair:
        """Comparison: Das Haus ist größer als die Wohnung. Er ist so alt wie du."""
        noun = self.rng.choice(
            [
                n
                for n in lexicon.nouns
                if n.tags & {"building", "furn", "vehicle", "cloth", "fruit", "read"} and "d" in n.dets
            ]
        )
        graded = [a for a in lexicon.adjectives if a.de_comparative and a.tags & noun.tags]
        if self.chance(0.4) or not graded:
            first, second = self._two_people()
            graded = [
                ("älter", "older", "alt", "old"),
                ("jünger", "younger", "jung", "young"),
                ("größer", "taller", "groß", "tall"),
                ("schneller", "faster", "schnell", "fast"),
                ("stärker", "stronger", "stark", "strong"),
            ]
            return self._compared(first, second, self.rng.choice(graded))
        adjective = self.rng.choice(graded)
        others = [
            n
            for n in lexicon.nouns
            if n is not noun
            and adjective.tags & n.tags
            and n.tags & noun.tags & {"building", "furn", "vehicle", "cloth", "fruit", "read"}
            and "d" in n.dets
        ]
        if not others:
            return self.comparison()
        first, second = (
            NounPhrase(n, self.rng.choice(("the", "this", "my") if "p" in n.dets else ("the",)))
            for n in (noun, self.rng.choice(others))
        )
        return self._compared(
            first, second, (adjective.de_comparative, adjective.en_comparative, adjective.de, adjective.en)
        )

    def _two_people(self) -> tuple[Nominal, Nominal]:
        first, second = self.subject(), self.subject()
        while same(first, second) or getattr(second, "det", "") == "a" or second in (SIE, THEY):
            first, second = self.subject(), self.subject()
        return first, second

    def _compared(self, first: Nominal, second: Nominal, words: tuple[str, str, str, str]) -> Pair:
        more, english_more, plain, english = words
        if self.chance(0.25) and plain != "jung":
            degree = Phrase(f"so {plain} wie {second.german('nom')}", f"as {english} as {second.english('acc')}")
        else:
            degree = Phrase(f"{more} als {second.german('nom')}", f"{english_more} than {second.english('acc')}")
        return self.told(Clause(first, verb("sein"), complement=degree))

    def description(self) -> Pair:
        """Predicates: Die rote Tasche ist neu. Julia ist Ärztin. Sie hat Hunger."""
        roll = self.rng.random()
        tense = "past" if self.chance(0.3) else "present"
        if roll < 0.35:
            noun = self.rng.choice([n for n in lexicon.nouns if "d" in n.dets and "person" not in n.tags])
            suited = [a for a in lexicon.adjectives if a.tags & noun.tags]
            if not suited:
                return self.description()
            adjective = self.rng.choice(suited)
            subject = NounPhrase(
                noun, self.determiner(noun) if "p" in noun.dets else "the", "n" in noun.dets and self.chance(0.2)
            )
            if subject.det == "a" or (subject.plural and subject.det == "a"):
                subject = NounPhrase(noun, "the", subject.plural)
            return self._stated(Clause(subject, verb("sein"), tense, complement=Phrase(adjective.de, adjective.en)))
        if roll < 0.55:
            male, female, english = self.rng.choice(PROFESSIONS)
            subject = self.rng.choice((self.name(), self.name(), ER, SIE))
            job = Phrase(male if subject.gender == "m" else female, f"{forms.indefinite(english)} {english}")
            return self._stated(Clause(subject, verb("sein"), tense, complement=job), negated=False)
        if roll < 0.8:
            return self._stated(Clause(self.subject(), verb("sein"), tense, complement=Phrase(*self.rng.choice(MOODS))))
        de, en = self.rng.choice(IDIOMS)
        clause = Clause(self.subject(), verb("haben", "be"), tense, complement=Phrase(de, en))
        if self.chance(0.3):
            return self.told(
                clause.having(
                    negated=True,
                    complement=Phrase(
                        ("keine " if de == "Angst" else "kein " if de == "Heimweh" else "keinen ") + de, en
                    ),
                )
            )
        return self._stated(clause, negated=False)

    def _stated(self, clause: Clause, negated: bool | None = None) -> Pair:
        """Say a predicate as a statement, a negation or a question."""
        roll = self.rng.random()
        if roll < 0.15 and negated is None:
            return self.told(clause.having(negated=True))
        if roll < 0.3:
            return sentence(german_clause(clause, "first"), "?"), sentence(english_clause(clause, "question"), "?")
        return self.told(clause)

    def position(self) -> Pair:
        """Two-way prepositions: Das Buch liegt auf dem Tisch. Er legt das Buch auf den Tisch."""
        lying = self.chance(0.5)
        noun = lexicon.noun(self.rng.choice((LYING if lying else STANDING).split()))
        preposition, place, english = self.rng.choice([s for s in SPOTS if s[1] != noun.de])
        spot = NounPhrase(lexicon.noun(place), "the")
        if self.chance(0.5):
            subject = NounPhrase(
                noun, self.rng.choice(("the", "a", "my", "your", "this")), False, self.adjectives(noun)
            )
            where = Phrase(forms.contracted(preposition, spot.german("dat")), f"{english} {spot.english('acc')}")
            clause = Clause(
                subject,
                verb("liegen" if lying else "stehen"),
                self.rng.choice(("present", "present", "past")),
                complement=where,
            )
            return self._located(clause)
        actor = self.subject()
        where = Phrase(forms.contracted(preposition, spot.german("acc")), f"{english} {spot.english('acc')}")
        thing = self.thing(noun, actor)
        clause = self._in_mode(
            Clause(actor, verb("legen" if lying else "stellen"), accusative=thing, complement=where),
            self.rng.choice(("now", "past", "modal", "future")),
        )
        return self.told(self.front(clause))

    def _located(self, clause: Clause) -> Pair:
        roll = self.rng.random()
        definite = getattr(clause.subject, "det", "") != "a"
        if roll < 0.2 and definite:
            return sentence(german_clause(clause, "first"), "?"), sentence(english_clause(clause, "question"), "?")
        if roll < 0.35 and definite:
            return self.told(clause.having(negated=True))
        return self.told(clause)

    def liking(self) -> Pair:
        """Verbs whose German subject is the English object: Das Kleid gefällt meiner Mutter. Die Suppe schmeckt ihm."""
        taste = self.chance(0.45)
        while True:
            person = self.subject()
            if getattr(person, "det", "") != "a":
                break
        noun = self.rng.choice([n for n in lexicon.tagged("food,drink" if taste else "please") if "d" in n.dets])
        plural = not noun.mass and "n" in noun.dets and self.chance(0.2)
        thing = NounPhrase(noun, self.rng.choice(("the", "the", "this")), plural, self.adjectives(noun, 0.25))
        tense, negated = ("past" if self.chance(0.3) else "present"), self.chance(0.25)
        german = Clause(thing, verb("schmecken" if taste else "gefallen"), tense, dative=person, negated=negated)
        english = Clause(person, verb("gefallen"), tense, accusative=thing, negated=negated)
        if self.chance(0.2) and not negated:
            return sentence(german_clause(german, "first"), "?"), sentence(english_clause(english, "question"), "?")
        return sentence(german_clause(german, "main")), sentence(english_clause(english, "main"))

    def belonging(self) -> Pair:
        """Dative and genitive of possession: Das Auto gehört meinem Vater. Das ist das Fahrrad des Lehrers."""
        noun = self.rng.choice(lexicon.tagged("belong"))
        owner = self.person_noun() if self.chance(0.7) else self.rng.choice(NAMES)
        if self.chance(0.5):
            person = owner if not isinstance(owner, Name) and owner.det != "a" else self.subject()
            if getattr(person, "det", "") == "a":
                person = ICH
            thing = NounPhrase(noun, self.rng.choice(("the", "this")), False, self.adjectives(noun))
            clause = Clause(
                thing,
                verb("gehören"),
                "past" if self.chance(0.2) else "present",
                dative=person,
                negated=self.chance(0.15),
            )
            return self.told(clause)
        if isinstance(owner, Name):
            owner = self.rng.choice(NAMES[:16])
            thing = NounPhrase(noun, "", False, self.adjectives(noun), possessor=owner)
        else:
            owner = NounPhrase(owner.noun, owner.det if owner.det != "a" else "the")
            thing = NounPhrase(noun, "the", False, self.adjectives(noun), possessor=owner)
        return self._genitive(thing, noun)

    def _genitive(self, thing: NounPhrase, noun: lexicon.Noun) -> Pair:
        suited = [a for a in lexicon.adjectives if a.tags & noun.tags]
        if self.chance(0.4) or not suited:
            return self.told(
                Clause(
                    Name("das", "that", "n"), verb("sein"), complement=Phrase(thing.german("nom"), thing.english("nom"))
                )
            )
        if self.chance(0.5):
            subject = self.subject()
            if not same(subject, thing.possessor or subject) and not isinstance(subject, NounPhrase):
                return self.told(
                    Clause(
                        subject, verb(self.rng.choice(("suchen", "finden", "fotografieren"))), "past", accusative=thing
                    )
                )
        adjective = self.rng.choice(suited)
        plain = NounPhrase(noun, thing.det, False, possessor=thing.possessor)
        return self._stated(Clause(plain, verb("sein"), complement=Phrase(adjective.de, adjective.en)))

    def purpose(self) -> Pair:
        """Infinitives with zu: Sie geht in die Stadt, um ein Buch zu kaufen. Er versucht, die Tür aufzumachen."""
        subject = self.subject()
        if self.chance(0.45):
            return self._attempt(subject)
        place = self._purposeful()
        name, _, tags = PURPOSES[place.de].partition(":")
        inner = self._act(f"{name}:{tags}", subject)
        outer = Clause(subject, verb("gehen"), complement=to_place(place))
        outer = self.front(self._in_mode(outer, self.rng.choice(("now", "past", "past", "modal"))), 0.5)
        if outer.time and not outer.front:
            outer = outer.having(time=None)
        return (
            sentence(f"{german_clause(outer, 'main')}, um {german_clause(inner, 'zu')}"),
            sentence(f"{english_clause(outer, 'main')} {english_clause(inner, 'to')}"),
        )

    def _purposeful(self) -> lexicon.Place:
        return self.rng.choice([p for p in lexicon.places if p.de in PURPOSES])

    def _attempt(self, subject: Nominal) -> Pair:
        kind = self.rng.choice([v for v in lexicon.verbs if v.kind == "a" and v.particle + v.de in TRIED])
        inner = self.action(kind, subject, loc=0.0)
        german, english = german_clause(inner, "zu"), english_clause(inner, "to")
        roll = self.rng.random()
        if roll < 0.35:
            head = Clause(subject, verb("versuchen"), self.rng.choice(("present", "past")))
        elif roll < 0.7:
            head = Clause(subject, verb("vergessen"), "past")
        else:
            head = Clause(
                subject,
                verb("haben", "have"),
                self.rng.choice(("present", "past")),
                complement=Phrase("keine Zeit", "time"),
                negated=True,
            )
        return sentence(f"{german_clause(head, 'main')}, {german}"), sentence(
            f"{english_clause(head, 'main')} {english}"
        )

    def interest(self) -> Pair:
        """Reflexive verbs: Ich freue mich auf das Konzert. Sie interessiert sich für Musik."""
        subject = self.subject()
        roll = self.rng.random()
        if roll < 0.35:
            topics = [
                ("Musik", "music"),
                ("Kunst", "art"),
                ("Sport", "sport"),
                ("Politik", "politics"),
                ("Tiere", "animals"),
                ("Autos", "cars"),
            ]
            de, en = self.rng.choice(topics)
            clause = Clause(
                subject, verb("interessieren"), oblique=Oblique("für", "acc", "in", Name(de, en, "f")), reflexive=True
            )
        else:
            clause = self.action(verb(self.rng.choice(("freuen", "erinnern", "kümmern"))), subject)
            if self.chance(0.4) and clause.verb.de != "erinnern":
                clause = clause.having(tense="past")
        clause = clause.having(negated=self.chance(0.15))
        if self.chance(0.25) and not clause.negated:
            return sentence(german_clause(clause, "first"), "?"), sentence(english_clause(clause, "question"), "?")
        return self.told(clause)

    def language(self) -> Pair:
        """Languages, instruments and games: Er spricht gut Deutsch. Sie kann Klavier spielen."""
        subject = self.subject()
        if self.chance(0.5):
            de, en = self.rng.choice(lexicon.pairs(lexicon.LANGUAGES))
            kind = self.rng.choice((verb("lernen", "learn"), verb("sprechen", "speak"), verb("verstehen")))
        else:
            games = [
                ("Klavier", "the piano"),
                ("Gitarre", "the guitar"),
                ("Geige", "the violin"),
                ("Fußball", "football"),
                ("Tennis", "tennis"),
                ("Schach", "chess"),
                ("Karten", "cards"),
            ]
            de, en = self.rng.choice(games)
            kind = next(v for v in lexicon.verbs if v.de == "spielen" and "fix" in v.frame)
        clause = Clause(subject, kind, complement=Phrase(de, en))
        mode = (
            self.rng.choice(("now", "habit", "modal", "past"))
            if kind.kind == "a"
            else self.rng.choice(("now", "now", "modal"))
        )
        clause = self._in_mode(clause, mode)
        if self.chance(0.2):
            plain = clause.having(front="")
            return sentence(german_clause(plain, "first"), "?"), sentence(english_clause(plain, "question"), "?")
        return self.told(self.front(clause))

    def origin(self) -> Pair:
        """Origin and home of people: Woher kommst du? Paula kommt aus Polen und wohnt in Wien."""
        subject = self.subject()
        (de, en), (city, english) = self.rng.choice(COUNTRIES), self.rng.choice(CITIES)
        comes = Clause(subject, verb("kommen"), complement=Phrase(f"aus {de}", f"from {en}"))
        lives = Clause(subject, verb("wohnen"), complement=Phrase(f"in {city}", f"in {english}"))
        roll = self.rng.uniform(0.4 if subject.person == 1 else 0.0, 1.0)
        if roll < 0.2:
            return self._asked("woher", "where", comes.having(complement=Phrase("", "from")))
        if roll < 0.4:
            return self._asked("wo", "where", lives.having(complement=None))
        if roll < 0.6:
            return self._but(comes, lives) if subject.gender != "n" or subject.plural else self.told(comes)
        return self.told(self.rng.choice((comes, lives)))

    def _but(self, first: Clause, second: Clause) -> Pair:
        """Join two clauses about one subject with aber and but."""
        second = second.having(subject=pronoun_for(second.subject))
        return (
            sentence(f"{german_clause(first, 'main')}, aber {german_clause(second, 'main')}"),
            sentence(f"{english_clause(first, 'main')}, but {english_clause(second, 'main')}"),
        )

    def greeting(self) -> Pair:
        """Everyday phrases: Guten Morgen, Anna! Ich heiße Paul."""
        name = self.name()
        first = self.rng.choice(NAMES)
        return self.rng.choice(
            (
                (f"Guten Morgen, {name.de}!", f"Good morning, {name.en}!"),
                (f"Guten Abend, {name.de}!", f"Good evening, {name.en}!"),
                (f"Gute Nacht, {name.de}!", f"Good night, {name.en}!"),
                (f"Auf Wiedersehen, {name.de}!", f"Goodbye, {name.en}!"),
                (f"Wie geht es dir, {first.de}?", f"How are you, {first.en}?"),
                (f"Ich heiße {first.de}.", f"My name is {first.en}."),
                (f"Das ist {name.de}.", f"This is {name.en}."),
                (f"Vielen Dank, {name.de}!", f"Thank you very much, {name.en}!"),
                (f"Alles Gute zum Geburtstag, {first.de}!", f"Happy birthday, {first.en}!"),
            )
        )

    def draw(self) -> Pair:
        """Return a sentence of a construction drawn by weight."""
        names = list(WEIGHTS)
        method: Callable[[], Pair] = getattr(self, self.rng.choices(names, list(WEIGHTS.values()))[0])
        pair = method()
        # No one says: um Viertel nach zwölf zwölf Geschenke.
        return self.draw() if re.search(r"\b(\w{4,}) \1\b", pair[0]) else pair


UNPLEASANT = frozenset(
    [
        "beeilen",
        "freuen",
        "warten",
        "suchen",
        "holen",
        "antworten",
        "folgen",
        "weinen",
        "denken",
        "fragen",
        "bezahlen",
        "bleiben",
    ]
)
TRIED = frozenset(
    [
        "aufmachen",
        "zumachen",
        "reparieren",
        "anrufen",
        "aufräumen",
        "ausfüllen",
        "zurückgeben",
        "vorbereiten",
        "abtrocknen",
        "aufschreiben",
        "kochen",
        "putzen",
        "beantworten",
        "bezahlen",
        "bestellen",
        "kaufen",
        "abholen",
        "ausmachen",
        "waschen",
        "auspacken",
        "einladen",
    ]
)
WEIGHTS = {
    "now": 7,
    "habit": 6,
    "past": 8,
    "future": 5,
    "modal": 6,
    "modal_past": 4,
    "negation": 6,
    "gern": 2,
    "yes_no": 7,
    "request": 2,
    "imperative": 3,
    "warning": 1,
    "wh_subject": 2,
    "wh_object": 4,
    "which": 2,
    "wh_adverb": 4,
    "where_is": 1,
    "subordinate": 9,
    "dass": 5,
    "indirect": 4,
    "sequence": 4,
    "coordination": 3,
    "relative_subject": 4,
    "relative_object": 4,
    "relative_thing": 4,
    "timetable": 6,
    "age": 3,
    "price": 3,
    "count": 6,
    "duration": 3,
    "date": 3,
    "comparison": 3,
    "description": 4,
    "position": 4,
    "liking": 3,
    "belonging": 3,
    "purpose": 5,
    "interest": 3,
    "language": 2,
    "origin": 2,
    "greeting": 0.4,
}
