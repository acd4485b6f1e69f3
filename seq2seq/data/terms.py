"""Translations of words in the sources of training pairs (`data.augment.terms`), which a model learns to copy.

`das Haus ist alt` becomes `das Haus <term> house </term> ist alt` if the target has `house`.

Reference:
    Dinu et al. 2019, 'Training Neural Machine Translation to Apply Terminology Constraints'.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import chain

from seq2seq.data.cleaning import Pairs
from seq2seq.data.context import sentence_of
from seq2seq.data.ibm1 import lexical_table
from seq2seq.data.marks import SEPARATOR, TERM, with_translations
from seq2seq.data.tokenizer import reservoir

# Pairs that IBM Model 1 is estimated from, its iterations, and the words of a side that it reads.
_PAIRS, _ITERATIONS, _WORDS = 100_000, 5, 100
# Least occurrences of a word, and least probability of its translation.
_LEAST_COUNT, _LEAST_PROB = 3, 0.1
# Most translations in a pair, and most words of the source with one translation.
_MOST_TERMS, _MOST_WORDS = 3, 3
# A kana or Chinese character, or else what is between spaces, punctuation and such characters.
_WORD = re.compile(
    "[\u3040-\u30ff\u3400-\u9fff]|[^\\s!-/:-@[-`{-~\xa1-\xbf\u2010-\u206f\u3000-\u30ff\u3400-\u9fff\uff00-\uff0f]+"
)
# Translations of each word, in lower case.
Lexicon = Mapping[str, Collection[str]]


def mark_words(src: str, tgt: str, lexicon: Lexicon, rng: random.Random) -> str:
    """Write the translations of one to three phrases of a pair into the last sentence of the source.

    Words are linked if the lexicon has the pair. A phrase is contiguous on both sides, without links to other words.
    """
    before, separator, own = src.rpartition(SEPARATOR)
    sources, targets = ([(word[0].lower(), *word.span()) for word in _WORD.finditer(text)] for text in (own, tgt))
    links = [[i for i, (word, *_) in enumerate(targets) if word in lexicon.get(one, ())] for one, *_ in sources]
    total = Counter(chain.from_iterable(links))
    phrases = []
    for words in (range(i, i + size) for size in range(1, _MOST_WORDS + 1) for i in range(len(links) + 1 - size)):
        count = Counter(chain.from_iterable(links[i] for i in words))
        linked = all(links[i] for i in words) and all(total[place] == own for place, own in count.items())
        if linked and max(count) - min(count) < len(count):
            phrases.append((words, tgt[targets[min(count)][1] : targets[max(count)][2]]))
    chosen: dict[int, str] = {}
    free = set(range(len(sources)))
    for words, translation in rng.sample(phrases, min(len(phrases), rng.randint(1, _MOST_TERMS))):
        if free.issuperset(words):
            chosen[sources[words[-1]][2]] = translation
            free.difference_update(words)
    return before + separator + with_translations(own, chosen)


def learn_lexicon(blocks: Iterable[Pairs], *, seed: int) -> dict[str, list[str]]:
    """Estimate which words translate each other, by IBM Model 1 on a sample of pairs; raise ValueError without any."""
    both = (f"{sentence_of(src)}{TERM}{tgt}" for block in blocks for src, tgt in zip(*block, strict=True))
    sample = [line.lower().partition(TERM) for line in reservoir(both, _PAIRS, seed)]
    names, rows = [], []
    for side in (0, 2):
        words = [_WORD.findall(pair[side])[:_WORDS] for pair in sample]
        counts = Counter(chain.from_iterable(words))
        ids = {word: i for i, word in enumerate(word for word, count in counts.items() if count >= _LEAST_COUNT)}
        names.append([*ids, ""])
        rows.append([[ids[word] for word in row if word in ids] for row in words])
    if not any(map(all, zip(*rows, strict=True))):
        raise ValueError(f"data.augment.terms: no word occurs {_LEAST_COUNT} times; leave it out, or add text")
    src_size, tgt_size = (len(side) - 1 for side in names)
    table = lexical_table(lambda: [(rows[0], rows[1])], src_size=src_size, tgt_size=tgt_size, iterations=_ITERATIONS)
    lexicon: dict[str, list[str]] = {}
    for key in table.keys[table.probs >= _LEAST_PROB].tolist():
        lexicon.setdefault(names[0][key // tgt_size], []).append(names[1][key % tgt_size])
    return lexicon
