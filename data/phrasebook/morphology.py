"""Forms of words: German declension, conjugation and numerals, and their English counterparts."""

from __future__ import annotations

from lexicon import Adjective, Noun, Verb

# Endings in the order nominative, accusative, dative, genitive.
CASES = ("nom", "acc", "dat", "gen")
STRONG = {"m": "er en em en", "f": "e e er er", "n": "es es em en", "p": "e e en er"}
MIXED = {"m": "er en en en", "f": "e e en en", "n": "es es en en", "p": "en en en en"}
WEAK = {"m": "e en en en", "f": "e e en en", "n": "e e en en", "p": "en en en en"}
DEFINITE = {"m": "der den dem des", "f": "die die der der", "n": "das das dem des", "p": "die die den der"}
DER_ENDINGS = {"m": "er en em es", "f": "e e er er", "n": "es es em es", "p": "e e en er"}
EIN_ENDINGS = {"m": "- en em es", "f": "e e er er", "n": "- - em es", "p": "e e en er"}
RELATIVE = {"m": "der den dem dessen", "f": "die die der deren", "n": "das das dem dessen", "p": "die die denen deren"}

DER_WORDS = {"this": "dies", "every": "jed", "which": "welch", "many": "viel"}
EIN_WORDS = {
    "a": "ein",
    "no": "kein",
    "my": "mein",
    "your": "dein",
    "his": "sein",
    "her": "ihr",
    "our": "unser",
    "their": "ihr",
}
CONTRACTIONS = {
    "in dem": "im",
    "in das": "ins",
    "an dem": "am",
    "an das": "ans",
    "zu dem": "zum",
    "zu der": "zur",
    "bei dem": "beim",
    "von dem": "vom",
}


def _ending(table: dict[str, str], gender: str, case: str) -> str:
    return table[gender].split()[CASES.index(case)].replace("-", "")


def determiner(kind: str, gender: str, case: str) -> str:
    """Return the German determiner (`the`, `a`, `my`, ... or empty) for a gender (m, f, n, p) and a case."""
    if kind == "the":
        return _ending(DEFINITE, gender, case)
    if kind in DER_WORDS:
        return DER_WORDS[kind] + _ending(DER_ENDINGS, gender, case)
    return EIN_WORDS[kind] + _ending(EIN_ENDINGS, gender, case) if kind in EIN_WORDS else ""


def declined(adjective: Adjective, kind: str, gender: str, case: str) -> str:
    """Return a German adjective with its ending: weak after der-words, mixed after ein-words, strong otherwise."""
    if kind == "the" or (kind in DER_WORDS and kind != "many"):
        table = WEAK
    else:
        table = MIXED if kind in EIN_WORDS else STRONG
    return adjective.de_stem + _ending(table, gender, case)


def noun_form(noun: Noun, plural: bool, case: str) -> str:
    """Return a German noun in its case: dative plural -n, genitive -s, weak -n."""
    if plural:
        return noun.de_plural + ("n" if case == "dat" and noun.de_plural[-1] not in "ns" else "")
    if noun.weak:
        return noun.de if case == "nom" else noun.de + ("n" if noun.de.endswith(("e", "r")) else "en")
    if case == "gen" and noun.gender != "f":
        return noun.de + ("es" if noun.de in ("Mann", "Kind", "Koch", "Sohn", "Gast", "Freund") else "s")
    return noun.de


def relative_pronoun(gender: str, case: str) -> str:
    """Return the German relative pronoun."""
    return _ending(RELATIVE, gender, case)


def contracted(preposition: str, phrase: str) -> str:
    """Join a German preposition with its phrase (in + dem Haus -> im Haus)."""
    article, _, rest = phrase.partition(" ")
    short = CONTRACTIONS.get(f"{preposition} {article}")
    return f"{short} {rest}" if short and rest else f"{preposition} {phrase}"


PERSON = {"ich": 0, "du": 1, "er": 2, "sie": 2, "es": 2}
AUXILIARY = {
    "haben": "habe hast hat haben",
    "sein": "bin bist ist sind",
    "werden": "werde wirst wird werden",
    "können": "kann kannst kann können",
    "müssen": "muss musst muss müssen",
    "wollen": "will willst will wollen",
    "dürfen": "darf darfst darf dürfen",
    "möchten": "möchte möchtest möchte möchten",
    "sollten": "sollte solltest sollte sollten",
    "hatten": "hatte hattest hatte hatten",
    "waren": "war warst war waren",
    "konnten": "konnte konntest konnte konnten",
    "mussten": "musste musstest musste mussten",
    "wollten": "wollte wolltest wollte wollten",
    "durften": "durfte durftest durfte durften",
    "wissen": "weiß weißt weiß wissen",
}


def auxiliary(verb: str, person: int, plural: bool) -> str:
    """Return a finite auxiliary or modal; persons 1 and 3 share the plural form."""
    return AUXILIARY[verb].split()[3 if plural else person - 1]


def present(verb: Verb, person: int, plural: bool) -> str:
    """Return the German present, without the particle."""
    if verb.de in AUXILIARY:
        return auxiliary(verb.de, person, plural)
    if plural:
        return verb.de
    if person == 1:
        return verb.de[:-1] if verb.de.endswith("en") else verb.de[:-1] + "e"
    return verb.du if person == 2 else verb.er


def preterite(verb: Verb, person: int, plural: bool) -> str:
    """Return the German preterite of a verb that uses it (war, hatte, wusste, lag)."""
    form = verb.preterite
    if form.endswith("e"):
        return form + ("n" if plural else "st" if person == 2 else "")
    return form + ("en" if plural else "st" if person == 2 else "")


def zu_infinitive(verb: Verb) -> str:
    """Return the infinitive with zu, inside a separable verb (aufzumachen, zu lesen)."""
    return f"{verb.particle}zu{verb.de}" if verb.particle else f"zu {verb.de}"


DE_ONES = ["null", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf"]
DE_TENS = ["-", "-", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]
EN_ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
EN_TENS = ["-", "-", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
DE_ORDINALS = {1: "erst", 3: "dritt", 7: "siebt", 8: "acht"}
EN_ORDINALS = {1: "first", 2: "second", 3: "third", 5: "fifth", 8: "eighth", 9: "ninth", 12: "twelfth"}


def german_number(n: int) -> str:
    """Spell 2..999 in German (21 -> einundzwanzig)."""
    if n < 13:
        return DE_ONES[n]
    if n < 20:
        return {16: "sech", 17: "sieb"}.get(n, DE_ONES[n - 10]) + "zehn"
    if n < 100:
        return (DE_ONES[n % 10] + "und" if n % 10 else "") + DE_TENS[n // 10]
    return ("" if n < 200 else DE_ONES[n // 100]) + "hundert" + (german_number(n % 100) if n % 100 else "")


def english_number(n: int) -> str:
    """Spell 2..999 in English (21 -> twenty-one, 250 -> two hundred and fifty)."""
    if n < 20:
        return EN_ONES[n]
    if n < 100:
        return EN_TENS[n // 10] + (f"-{EN_ONES[n % 10]}" if n % 10 else "")
    return f"{EN_ONES[n // 100]} hundred" + (f" and {english_number(n % 100)}" if n % 100 else "")


def german_ordinal(n: int) -> str:
    """Return the German ordinal 1..31 in the dative after am (21 -> einundzwanzigsten)."""
    return DE_ORDINALS.get(n, german_number(n) + ("t" if n < 20 else "st")) + "en"


def english_ordinal(n: int) -> str:
    """Return the English ordinal 1..31 (21 -> twenty-first)."""
    if n > 20 and n % 10:
        return f"{EN_TENS[n // 10]}-{english_ordinal(n % 10)}"
    if n in EN_ORDINALS:
        return EN_ORDINALS[n]
    word = english_number(n)
    return word[:-1] + "ieth" if word.endswith("y") else word + "th"


def german_clock(hour: int, minute: int) -> str:
    """Return a clock time as it is said (3:30 -> halb vier); minutes in steps of five."""
    this, following = (DE_ONES[h] if h != 1 else "eins" for h in (hour, hour % 12 + 1))
    if minute == 0:
        return "ein Uhr" if hour == 1 else f"{this} Uhr"
    said = {5: "fünf", 10: "zehn", 15: "Viertel", 20: "zwanzig"}
    if minute in said:
        return f"{said[minute]} nach {this}"
    if minute in (25, 30, 35):
        return {25: "fünf vor ", 30: "", 35: "fünf nach "}[minute] + f"halb {following}"
    return f"{said[60 - minute]} vor {following}"


def english_clock(hour: int, minute: int) -> str:
    """Return a clock time as it is said (3:30 -> half past three); minutes in steps of five."""
    if minute == 0:
        return f"{EN_ONES[hour]} o'clock"
    said = {5: "five", 10: "ten", 15: "a quarter", 20: "twenty", 25: "twenty-five", 30: "half"}
    if minute <= 30:
        return f"{said[minute]} past {EN_ONES[hour]}"
    return f"{said[60 - minute]} to {EN_ONES[hour % 12 + 1]}"


def indefinite(following: str) -> str:
    """Return a or an by the sound of the next word; the lexicon has no silent h and no `one` after an article."""
    return "an" if following[0] in "aeiou" and not following.startswith("uni") else "a"


BE_PRESENT = ("am", "are", "is", "are")
BE_PAST = ("was", "were", "was", "were")


def be(person: int, plural: bool, past: bool = False) -> str:
    """Return the finite form of to be."""
    return (BE_PAST if past else BE_PRESENT)[3 if plural else person - 1]


def third_person(base: str) -> str:
    """Return the English third person singular (go -> goes, try -> tries)."""
    if base in ("have", "do", "go"):
        return {"have": "has", "do": "does", "go": "goes"}[base]
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ies"
    return base + ("es" if base.endswith(("s", "x", "ch", "sh")) else "s")


def gerund(base: str) -> str:
    """Return the English -ing form (write -> writing, swim -> swimming, lie -> lying)."""
    if base in ("put", "get", "swim", "sit", "run", "shop", "cut", "travel", "plan", "win"):
        return base + base[-1] + "ing"
    if base.endswith("ie"):
        return base[:-2] + "ying"
    return (base[:-1] if base.endswith("e") and base not in ("be", "see") else base) + "ing"
