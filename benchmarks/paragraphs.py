"""Measure what a paragraph costs: BLEU of paragraphs against BLEU of the same sentences translated one by one.

Paragraphs of two to eight sentences are drawn from a test set, and translated whole (keep), as the training lines of
the model suggest (auto), and sentence by sentence (split). The reference of a paragraph is its sentences' references,
joined. All are compared with the translations of the sentences alone, joined.

    python -m benchmarks.paragraphs --ckpt runs/demo --sources test.de --references test.en
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from pathlib import Path

from seq2seq.data.languages import has_spaces
from seq2seq.data.text_files import read_lines
from seq2seq.inference.limits import SENTENCES
from seq2seq.inference.notes import Note
from seq2seq.inference.translator import Translator
from seq2seq.metrics.scorers import bleu, tokenize_of

FEWEST, MOST = 2, 8


def main() -> None:
    """Measure, print a table, and write the results as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ckpt", required=True)
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--references", type=Path, required=True)
    parser.add_argument("--paragraphs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON file of the results")
    options = parser.parse_args()
    translator = Translator.load(options.ckpt, device="cpu")
    pairs = list(zip(*(list(read_lines(path)) for path in (options.sources, options.references)), strict=True))
    rng = random.Random(options.seed)
    # Each of different sentences
    drawn = [rng.sample(pairs, rng.randint(FEWEST, MOST)) for _ in range(options.paragraphs)]
    gaps = [" " if has_spaces(str(translator.meta[side])) else "" for side in ("src_lang", "tgt_lang")]
    sources, references = ([gaps[side].join(pair[side] for pair in each) for each in drawn] for side in (0, 1))
    tokenize = tokenize_of(translator.meta, translator.tgt_lang)
    alone = iter(translator.texts([src for each in drawn for src, _ in each], note=lambda note: None))
    joined = [gaps[1].join(next(alone) for _ in each) for each in drawn]
    best = bleu(joined, references, tokenize=tokenize).value
    result = {
        "checkpoint": options.ckpt,
        "direction": f"{translator.meta['src_lang']}-{translator.tgt_lang}",
        "paragraphs": len(drawn),
        "sentences": sum(map(len, drawn)),
        "training lines": translator.statistics._asdict(),
        "sentence by sentence": {"bleu": round(best, 2)},
    }
    print(f"{result['direction']}: {len(drawn)} paragraphs, {result['sentences']} sentences, alone {best:.2f} BLEU")
    for mode in SENTENCES:
        notes: list[Note] = []
        began = time.process_time()
        found = [row[0].text for row in translator.translate(sources, sentences=mode, note=notes.append)]
        seconds = time.process_time() - began
        value = bleu(found, references, tokenize=tokenize).value
        kinds = Counter(kind for kind, _ in {(note.kind, note.position) for note in notes})
        result[mode] = {
            "bleu": round(value, 2),
            "ratio": round(value / best, 4),
            "cpu_s": round(seconds, 1),
            "notes": kinds,
        }
        print(f"  {mode:5}  {value:6.2f} BLEU  {value / best:7.1%}  {seconds:6.1f} CPU s  noted: {dict(kinds)}")
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
