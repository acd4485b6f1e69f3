"""Source factors: values of a word, such as its part of speech, which are written behind it: `dogs￨NOUN￨lower`.

A word has the code v_1 + (n_1 + 1) (v_2 + (n_2 + 1) ...), where v_f is the number of its value among the n_f values of
factor f, from 1; or 0 without a value, as in `dogs`, `dogs￨NOUN` and `dogs￨￨lower`.

Reference:
    Sennrich and Haddow 2016, 'Linguistic Input Features Improve Neural Machine Translation'.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from seq2seq.settings.tokenizer import FACTOR
from seq2seq.settings.values import shown
from seq2seq.system.errors import LineError

_FACTORS = re.compile(rf"{FACTOR}\S*")
# White space, a word, and its factors.
_WORD = re.compile(rf"(\s*)([^\s{FACTOR}]*)({FACTOR}\S*)?")

# Values of each factor with their numbers, "" with 0.
Numbers = Mapping[str, Mapping[str, int]]


def numbered(factors: Mapping[str, Sequence[str]] | None) -> Numbers:
    """Number the values of each factor."""
    return {name: {value: i for i, value in enumerate(["", *values])} for name, values in (factors or {}).items()}


def read_factors(lines: Sequence[str], factors: Numbers) -> tuple[list[str], list[list[int]]]:
    """Return the text of each line, and the code of each character and of the end; a space has the next word's code.

    Raises:
        LineError: A word has an unknown value or too many; the error names the first such line.
    """
    codes = []
    for position, line in enumerate(lines):
        codes.append([])
        for space, word, written in _WORD.findall(line):
            code, values = 0, written.rstrip(FACTOR).split(FACTOR)[1:]
            if len(values) > len(factors):
                reason = f"the word {shown(word + written)} has {len(values)} factors"
                raise LineError(
                    position, line, f"{reason}, and tokenizer.factors {len(factors)} ({', '.join(factors)})"
                )
            # From the last value, the most significant digit
            for value, known in list[Any](zip_longest(values, factors.values(), fillvalue=""))[::-1]:
                if value not in known:
                    reason = f"{shown(value)} of the word {shown(word + written)} is not in tokenizer.factors"
                    raise LineError(position, line, f"{reason} ({', '.join(factors)}) there: list it, or leave it out")
                code = code * len(known) + known[value]
            codes[-1] += [code] * len(space + word)
        codes[-1].append(0)
    return [without_factors(line, factors) for line in lines], codes


def without_factors(line: str, factors: Mapping[str, Any] | None) -> str:
    """Return the text of a line; without a setting, all of the line is text."""
    return _FACTORS.sub("", line) if factors else line
