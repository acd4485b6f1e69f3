"""Attempts, the rule that classifies their outcomes, and the checks of texts and scores.

right    exit status 0, and exactly the known pairs, lines or score, without a false alarm
refused  exit status 2 and one line that names the file and its fault
warned   exit status 0, and a line that names the fault
silent   exit status 0, a wrong value and no warning
unclear  refused though it can be read, or a message that does not help
hang     did not end in time
crash    a traceback, a signal, or half-written files
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import sacrebleu

from benchmarks.campaign import Row
from benchmarks.hostile import attempts as hostile
from benchmarks.hostile.processes import Command, Done, run

OUTCOMES = ("right", "refused", "warned", "silent", "unclear", "hang", "crash")
GOOD = OUTCOMES[:3]
Pair = tuple[str, str]
# Output lines of prepare and train that have nothing to do with faults of a file.
ORDINARY = re.compile(
    r" *\d+%  step|[\d,]+ train, |[\d,]+ parameters|made the |training the tokenizer|prepared in|padding "
    r"|cleaning of the|\S+: [\d,]+ / |init_from: the highest|run folder: |valid(ation at| set:)|test( set)?: "
    r"|scoring the test|results: | +python -m |  (scores|training|time|model|next) "
    r"|  (rule|text|tokenizer|ids|src|ref|hyp|\w+ +0$)"
)
# Rows of the table of cleaning.
DROPPED = re.compile(r"^  (\w+) {2,}([1-9][\d,]*)  .*")
# Invisible characters besides white space.
INVISIBLE = "\u200b\u200c\u200d\u200e\u200f\u2060\u00ad\ufeff\u061c\u180e\x00"


@dataclasses.dataclass(frozen=True)
class FileAttempt:
    """One command, and its known outcome.

    Args:
        what: Description of the file and of the place where it is read.
        right: Returns the difference from the right value, or ""; None if there is no right value.
        allowed: Outcomes that are good, separated by spaces.
        says: Pattern that a refusal or warning must match; "" for a file without a fault.
        files: File names; a refusal must contain one of them.
    """

    what: str
    command: Command
    right: Callable[[Done], str] | None
    allowed: str = "right"
    says: str = ""
    files: tuple[str, ...] = ()


def carry_out(attempt: FileAttempt, folder: Path) -> Row:
    """Run an attempt in `folder`/work and classify its outcome."""
    done = run(attempt.command, folder / "work", folder / "kept")
    outcome, why = judge(attempt, done, folder / "work")
    said = [line[:300] for line in notices(done, attempt.command.module)[:3]]
    return hostile.row(attempt.what, attempt.command, done, outcome, why) | {"notices": said}


_OF_THE_MODEL = re.compile(
    " (a translation that the limit of its length ended|a part that hardly any word|longer than any training line)"
)


def judge(attempt: FileAttempt, done: Done, work: Path) -> tuple[str, str]:
    """Classify an outcome by the rule at the top of this file."""
    if done.exceeded:
        return "hang", done.exceeded
    if fault := hostile.fault_of(done, work):
        return "crash", fault
    if done.status:
        return _refusal(attempt, done)
    wrong = attempt.right(done) if attempt.right else "accepted"
    told = notices(done, attempt.command.module)
    named = attempt.says and any(re.search(attempt.says, _unnamed(line, attempt), re.IGNORECASE) for line in told)
    # Cleaning always counts dropped pairs, and the small model often reaches its length limits
    told = [line for line in told if not line.startswith("dropped by") and not _OF_THE_MODEL.search(line)]
    if not wrong and "right" in attempt.allowed:
        return ("unclear", f"a false alarm: {told[0][:200]}") if told and not attempt.says else ("right", "")
    if named:
        return ("warned", "") if "warned" in attempt.allowed else ("unclear", f"warned, but {wrong}")
    return ("unclear", f"{wrong}, and says alone: {told[0][:200]}") if told else ("silent", wrong)


def _refusal(attempt: FileAttempt, done: Done) -> tuple[str, str]:
    lines = hostile.message_lines(done.err)
    line = " ".join(lines)
    if done.status != 2 or len(lines) != 1:
        return "unclear", f"exit status {done.status}, {len(lines)} lines: {line[:300]}"
    if "refused" not in attempt.allowed:
        return "unclear", f"refused, though it can be read: {line[:300]}"
    if not any(name in line for name in attempt.files):
        return "unclear", f"does not name {attempt.files[0]}: {line[:300]}"
    if not re.search(attempt.says, _unnamed(line, attempt), re.IGNORECASE):
        return "unclear", f"does not say {attempt.says}: {line[:300]}"
    return "refused", ""


def _unnamed(line: str, attempt: FileAttempt) -> str:
    # A suffix in the name, as in t.de.bz2, does not explain the fault
    for name in sorted(attempt.files, key=len, reverse=True):
        line = line.replace(name, "<file>")
    return line


def notices(done: Done, module: str) -> list[str]:
    """Return the warnings of a command: lines of standard error, and for prepare and train of its log."""
    lines = done.err.splitlines() if done.status == 0 else []
    if module in ("seq2seq.prepare", "seq2seq.train"):
        log = [DROPPED.sub(r"dropped by \1: \2", line) for line in done.out.decode("utf-8", "replace").split("\n")]
        lines += [line for line in log if not ORDINARY.match(line)]
    return [line for line in lines if line.strip()]


def is_blank(text: str) -> bool:
    """Return True for a line that shows nothing."""
    return not text.strip().strip(INVISIBLE).strip()


def differs(expected: Sequence[object], found: Sequence[object]) -> str:
    """Describe where two lists differ; return "" if they are equal."""
    if len(expected) != len(found):
        return f"{len(found)} for {len(expected)}"
    place = next((i for i, pair in enumerate(zip(expected, found, strict=True)) if pair[0] != pair[1]), None)
    return "" if place is None else f"{place + 1}: {found[place]!r:.120} for {expected[place]!r:.120}"


def prepared(work: Path, split: str, pairs: Sequence[Pair]) -> Callable[[Done], str]:
    """Check that a preparation has read these pairs; for training, the pairs that cleaning keeps."""
    if split == "train":
        bad = [pair for pair in pairs if any(is_blank(text) or "\ufffd" in text for text in pair)]
        pairs = list(dict.fromkeys(pair for pair in pairs if pair not in bad and pair[0].strip() != pair[1].strip()))
    expected = [tuple("" if is_blank(text) else text for text in pair) for pair in pairs]

    def check(_: Done) -> str:
        (path,) = (work / "cache").glob(f"text-*/{split}.arrow")
        rows = pa.ipc.open_stream(path).read_all().to_pylist()
        found = [tuple("" if is_blank(row[side]) else row[side] for side in ("src", "tgt")) for row in rows]
        return differs(expected, found)

    return check


def translated(expected: Sequence[str | None]) -> Callable[[Done], str]:
    """Check the lines of translate; None stands for any text."""

    def check(done: Done) -> str:
        found = done.out.decode("utf-8", "replace").split("\n")[:-1]
        if len(found) == len(expected):
            known = [line if text is None else text for text, line in zip(expected, found, strict=True)]
            return differs(known, found) or ("U+FFFD in the output" if "\ufffd" in "".join(found) else "")
        return f"{len(found)} lines out for {len(expected)} in"

    return check


def scored(hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a") -> Callable[[Done], str]:
    """Check BLEU against sacreBLEU on the clean text."""
    expected = sacrebleu.corpus_bleu(list(hypotheses), [list(references)], tokenize=tokenize, force=True).score

    def check(done: Done) -> str:
        found = json.loads(done.out)["scores"][0]["value"]
        return "" if abs(found - expected) < 1e-4 else f"BLEU {found:.2f} for {expected:.2f}"

    return check


def scored_data(translations: Sequence[str | None], references: Sequence[str]) -> Callable[[Done], str]:
    """Check the count of sentences, and chrF, which sees every character; None stands for any translation."""
    expected = None
    if None not in translations:
        expected = sacrebleu.corpus_chrf([str(line) for line in translations], [list(references)]).score

    def check(done: Done) -> str:
        report = json.loads(done.out)
        found = report["scores"][0]["value"]
        if report["lines"] != len(references):
            return f"{report['lines']} sentences for {len(references)}"
        return "" if expected is None or abs(found - expected) < 1e-4 else f"chrF {found:.3f} for {expected:.3f}"

    return check
