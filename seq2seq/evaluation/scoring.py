"""Score files of translations against references, compare systems, and print the reports."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from seq2seq.data.text_checks import encoding_fault, find_shift, lone_returns
from seq2seq.data.text_files import read_lines
from seq2seq.evaluation.reference_checks import LinesByName, guess_language, text_warnings
from seq2seq.metrics.moses_bleu import convention_bleu
from seq2seq.metrics.scorers import check_tokenize, paired_bootstrap, scores, tokenize_for
from seq2seq.settings.data import USUAL_METRICS
from seq2seq.system.stdio import standard_input

Warn = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreSettings:
    """Settings of scoring: metrics, tokenizer and language.

    Args:
        metrics: Some of METRICS.
        tokenize: sacreBLEU's tokenizer for BLEU (default: by `lang`).
        convention: Convention for tokens of `lang`, by which BLEU is computed as well.
    """

    metrics: Sequence[str] = USUAL_METRICS
    tokenize: str | None = None
    lang: str | None = None
    lowercase: bool = False
    convention: str | None = None

    def resolved(self, *, tokenize: str = "13a", lang: str | None = None) -> ScoreSettings:
        """Fill in the tokenizer and the language.

        The user's tokenizer comes first, then the tokenizer for the user's language, then the argument.

        Raises:
            ValueError: sacreBLEU cannot use the tokenizer.
        """
        name = self.tokenize or (tokenize_for(self.lang) if self.lang else tokenize)
        return dataclasses.replace(self, tokenize=check_tokenize(name), lang=self.lang or lang)

    def of_text(self, hypotheses: LinesByName, references: LinesByName, *, warn: Warn) -> ScoreSettings:
        """Resolve with the language of the text unless a language is given, and warn of misleading scores."""
        guess = None if self.lang or not self._cuts_words else guess_language(references)
        if guess:
            warn(f"no --lang given: scored as '{guess[0]}', by {guess[1]}; --lang or --tokenize change this")
        settings = dataclasses.replace(self, lang=guess[0] if guess else self.lang).resolved()
        self.warn_of_text(hypotheses, references, settings.tokenize, warn=warn)
        return settings

    def warn_of_text(
        self, hypotheses: LinesByName, references: LinesByName, tokenize: str | None, *, warn: Warn
    ) -> None:
        """Warn of text whose scores are misleading with the resolved tokenizer."""
        # The tokenizer `none` is for text that is already in tokens
        if self.tokenize != "none":
            tokenize = tokenize if self._cuts_words else None
            for line in text_warnings(hypotheses, references, tokenize=tokenize, remedy="--tokenize "):
                warn(line)

    @property
    def _cuts_words(self) -> bool:
        """True if a score depends on a tokenizer, and the user has not named one."""
        return not self.tokenize and not {"bleu", "ter"}.isdisjoint(self.metrics)

    def scores(self, hypotheses: list[str], references: list[list[str]]) -> list[dict[str, Any]]:
        """Score translations against one or more references; the settings must be resolved."""
        assert self.tokenize
        results = scores(hypotheses, references, metrics=self.metrics, tokenize=self.tokenize, lowercase=self.lowercase)
        if self.convention:
            assert self.lang
            if len(references) > 1:
                raise ValueError("--convention compares with one reference; give one")
            kind = {"convention": self.convention, "lang": self.lang, "lowercase": self.lowercase}
            results.append(convention_bleu(hypotheses, references[0], **kind))
        return [score._asdict() for score in results]


def score_file(hypotheses: str, references: Sequence[str], settings: ScoreSettings, *, warn: Warn) -> dict[str, Any]:
    """Score a file of translations (`-` is standard input) and return the report.

    Args:
        references: Files, each with a line for every line of `hypotheses`.
        warn: Called with one line of text for anything suspicious.

    Raises:
        ValueError: The files differ in length, or there is nothing to score.
    """
    settings, systems, sides = _read_systems([hypotheses], references, settings, warn)
    lines = systems[hypotheses]
    return {"hypotheses": hypotheses, "lines": len(lines), "scores": settings.scores(lines, sides)}


def compare_systems(
    paths: Sequence[str], references: Sequence[str], settings: ScoreSettings, *, samples: int, warn: Warn
) -> dict[str, Any]:
    """Compare files of translations with the first by paired bootstrap, and return the report.

    Args:
        paths: Files of translations, the baseline first.
        references: Files, each with a line for every line of the translations.
        samples: Number of bootstrap resamples.

    Raises:
        ValueError: The files differ in length, or one is named twice.
    """
    settings, systems, sides = _read_systems(paths, references, settings, warn)
    assert settings.tokenize
    rows = paired_bootstrap(
        systems,
        sides,
        tokenize=settings.tokenize,
        lowercase=settings.lowercase,
        samples=samples,
        metrics=settings.metrics,
    )
    return {"baseline": paths[0], "lines": len(sides[0]), "comparison": [row._asdict() for row in rows]}


def _read_systems(
    paths: Sequence[str], references: Sequence[str], settings: ScoreSettings, warn: Warn
) -> tuple[ScoreSettings, dict[str, list[str]], list[list[str]]]:
    """Read and check translations and references; return resolved settings, lines by path, and references."""
    require_distinct([*paths, *references])
    # A wrong tokenizer is refused before anything is read
    settings.resolved()
    systems = {path: read_text(path, warn=warn, refuse=False) for path in paths}
    sides = [read_text(path, warn=warn) for path in references]
    for path, lines in systems.items():
        for name, reference in zip(references, sides, strict=True):
            shift = find_shift(lines, reference)
            if len(reference) != len(lines):
                where = f"; {shift}" if shift else ""
                raise ValueError(f"{path} has {len(lines):,} lines, but {name} has {len(reference):,}{where}")
            if shift:
                warn(f"{path} and {name}: {shift}")
        if not lines:
            raise ValueError(f"{path} has no lines: there is nothing to score")
    named = {_name(path): lines for path, lines in systems.items()}
    return settings.of_text(named, dict(zip(references, sides, strict=True)), warn=warn), systems, sides


def require_distinct(paths: Sequence[str]) -> None:
    """Raise ValueError if two paths are the same file or stream (`-` is standard input).

    A stream cannot be read twice, and a file scored against itself means nothing.
    """
    seen: dict[tuple[int, int], str] = {}
    for path in paths:
        # A missing file is refused where it is read
        with contextlib.suppress(OSError):
            status = os.stat(0 if path == "-" else path)
            # By inode: /dev/stdin, links and descriptors are other names of a file
            file = (status.st_dev, status.st_ino)
            if file in seen:
                raise ValueError(
                    f"{_name(seen[file])} and {_name(path)} are the same file, so the score would mean nothing; name "
                    "another one"
                )
            seen[file] = path


def _name(path: str) -> str:
    return "standard input" if path == "-" else path


def read_text(path: str, *, warn: Warn, refuse: bool = True) -> list[str]:
    """Read the lines of a file, or of standard input for `-`, as `text_files.read_lines` does.

    Args:
        refuse: Refuse text with many bytes that are not UTF-8; False only warns, for the output of a system.

    Raises:
        ValueError: The path is a directory or a device, or the text has another encoding.
    """
    place = standard_input() if path == "-" else Path(path)
    # A device may never end
    if isinstance(place, Path) and (place.is_dir() or place.is_char_device() or place.is_block_device()):
        raise ValueError(f"{path} is a {'directory' if place.is_dir() else 'device'}, not a text file")
    lines = list(read_lines(place))
    fault, many = encoding_fault(lines, f"{_name(path)}: line")
    if many and refuse:
        raise ValueError(fault)
    if fault := fault or lone_returns(lines, f"{_name(path)}: line"):
        warn(fault)
    return lines


def report_text(report: dict[str, Any]) -> str:
    """Format a report of `score_file`, `compare_systems` or `score_checkpoint`."""
    if "comparison" in report:
        return _comparison(report["comparison"])
    head = ""
    if "checkpoint" in report:
        head = "{data} {split}, {direction}: {lines:,} sentences in {seconds} s, beam {beam_size}\n".format(**report)
    # At least as wide as a score of 100.00
    width = max(6, *(len(s["name"]) for s in report["scores"]))
    rows = [f"{s['name']:<{width}} {s['value']:6.2f}  {s['signature']}" for s in report["scores"]]
    return head + "\n".join(rows)


def _comparison(table: list[dict[str, Any]]) -> str:
    """Format one block for each metric: system, score, mean and 95% interval of the resamples, and p."""
    # Names of systems are paths of any length
    width = max(len(row["system"]) for row in table)
    lines = []
    # dict.fromkeys keeps the order of the metrics and drops repetitions
    for name in dict.fromkeys(row["name"] for row in table):
        rows = [row for row in table if row["name"] == name]
        lines.append(f"{name}  {rows[0]['signature']}")
        for row in rows:
            p, half = row["p_value"], row["interval"]
            last = "baseline" if row is rows[0] else "no p" if p is None else f"p = {p:.4f}{' *' if p < 0.05 else ''}"
            interval = "(no interval)" if half is None else f"({row['mean']:.2f} ± {half:.2f})"
            lines.append(f"  {row['system']:<{width}}  {row['value']:6.2f}  {interval}  {last}")
    single = any(row["interval"] is None for row in table)
    why = "one sentence has no resamples" if single else "* is p < 0.05"
    lines.append(f"p: paired bootstrap against the first system, not adjusted for their number; {why}")
    return "\n".join(lines)
