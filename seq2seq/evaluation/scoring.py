"""Score files of translations against references, and compare systems."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from seq2seq.data.readers import read_lines
from seq2seq.evaluation.metrics import check_tokenize, paired_bootstrap, scores, tokenize_for
from seq2seq.evaluation.moses_bleu import convention_bleu
from seq2seq.evaluation.score_names import METRICS

Warn = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreSettings:
    """Settings of scoring: metrics, tokenizer and language.

    Args:
        metrics: Names of METRICS.
        tokenize: sacreBLEU's tokenizer for BLEU (default: by `lang`).
        lang: Target language.
        convention: Compute BLEU on this convention's tokens of `lang` as well.
    """

    metrics: Sequence[str] = METRICS
    tokenize: str | None = None
    lang: str | None = None
    lowercase: bool = False
    convention: str | None = None

    def resolved(self, *, tokenize: str = "13a", lang: str | None = None) -> ScoreSettings:
        """Fill in a tokenizer, by `self.lang` where that is set, and a language.

        Raises:
            ValueError: sacreBLEU cannot use the tokenizer.
        """
        # explicit tokenizer, else by the user's language, else the caller's default
        name = self.tokenize or (tokenize_for(self.lang) if self.lang else tokenize)
        return dataclasses.replace(self, tokenize=check_tokenize(name), lang=self.lang or lang)

    def scores(self, hypotheses: list[str], references: list[list[str]]) -> list[dict[str, Any]]:
        """Score translations against one or more references; the settings must be resolved."""
        assert self.tokenize  # `resolved` fills it in
        results = scores(hypotheses, references, metrics=self.metrics, tokenize=self.tokenize, lowercase=self.lowercase)
        if self.convention:
            assert self.lang
            # `convention_bleu` scores against a single reference
            if len(references) > 1:
                raise ValueError("--convention compares with one reference; give one")
            kind = {"convention": self.convention, "lang": self.lang, "lowercase": self.lowercase}
            results.append(convention_bleu(hypotheses, references[0], **kind))
        return [score._asdict() for score in results]


def score_file(hypotheses: str, references: Sequence[str], settings: ScoreSettings, *, warn: Warn) -> dict[str, Any]:
    """Score a file of translations (`-` is standard input) and return the report.

    Args:
        references: Files, each with a line for every line of `hypotheses`.
        warn: Called with one line of text for a file that is not valid UTF-8.

    Raises:
        ValueError: The files differ in length, or there is nothing to score.
    """
    settings = settings.resolved()
    # counts are checked with the files' names, before sacreBLEU sees only lists
    lines = read_text(hypotheses, warn=warn)
    sides = [read_text(path, warn=warn) for path in references]
    _check_counts(hypotheses, lines, references, sides)
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
    # the systems are keyed by path, so a repeated one would vanish
    if len(set(paths)) < len(paths):
        raise ValueError("--compare names the same file twice")
    settings = settings.resolved()
    assert settings.tokenize
    systems = {path: read_text(path, warn=warn) for path in paths}
    sides = [read_text(path, warn=warn) for path in references]
    for path, lines in systems.items():
        _check_counts(path, lines, references, sides)
    rows = paired_bootstrap(
        systems,
        sides,
        tokenize=settings.tokenize,
        lowercase=settings.lowercase,
        samples=samples,
        metrics=settings.metrics,
    )
    return {"baseline": paths[0], "lines": len(sides[0]), "comparison": [row._asdict() for row in rows]}


def read_text(path: str, *, warn: Warn) -> list[str]:
    """Read the lines of a file, or of standard input for `-`; a line ends at the byte \\n only.

    Raises:
        ValueError: The path is a directory.
    """
    # a path, so that `read_lines` reads standard input like a file
    file = Path("/dev/stdin" if path == "-" else path)
    if file.is_dir():
        raise ValueError(f"{path} is a directory, not a text file")
    # split first, decode after: str.splitlines would end lines at more than \n
    lines = [line.decode("utf-8", "replace") for line in read_lines(file)]
    # replaced bytes and a real U+FFFD look alike after decoding; both deserve the warning
    invalid = next((number for number, line in enumerate(lines, 1) if "\ufffd" in line), None)
    if invalid:
        warn(f"{path}: line {invalid} holds text that is not UTF-8, or U+FFFD (warned once)")
    return lines


def _check_counts(path: str, lines: list[str], names: Sequence[str], references: list[list[str]]) -> None:
    for name, reference in zip(names, references, strict=True):
        if len(reference) != len(lines):
            raise ValueError(f"{path} has {len(lines):,} lines, but {name} has {len(reference):,}")
    if not lines:
        raise ValueError(f"{path} has no lines: there is nothing to score")
