"""Score files of translations against references, and compare systems."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from seq2seq.data.text_checks import encoding_fault, find_shift, lone_returns
from seq2seq.data.text_files import read_lines
from seq2seq.evaluation.reference_checks import Texts, guess_language, text_warnings
from seq2seq.metrics.moses_bleu import convention_bleu
from seq2seq.metrics.scorers import check_tokenize, paired_bootstrap, scores, tokenize_for
from seq2seq.settings.data import USUAL_METRICS
from seq2seq.system.stdio import standard_input

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

    metrics: Sequence[str] = USUAL_METRICS
    tokenize: str | None = None
    lang: str | None = None
    lowercase: bool = False
    convention: str | None = None

    def resolved(self, *, tokenize: str = "13a", lang: str | None = None) -> ScoreSettings:
        """Fill in a tokenizer, by `self.lang` where that is set, and a language.

        Raises:
            ValueError: sacreBLEU cannot use the tokenizer.
        """
        # Explicit tokenizer, else by the user's language, else the caller's default
        name = self.tokenize or (tokenize_for(self.lang) if self.lang else tokenize)
        return dataclasses.replace(self, tokenize=check_tokenize(name), lang=self.lang or lang)

    def of_text(self, hypotheses: Texts, references: Texts, *, warn: Warn) -> ScoreSettings:
        """Fill in the language by the text if it is not given, resolve, and warn of what makes scores mislead.

        Args:
            hypotheses: Lines by the name of their file.
            references: Likewise.
        """
        guess = None if self.lang or not self._cuts_words else guess_language(references)
        if guess:
            warn(f"no --lang: scored as '{guess[0]}', by {guess[1]}; --lang or --tokenize say otherwise")
        settings = dataclasses.replace(self, lang=guess[0] if guess else self.lang).resolved()
        self.warn_of_text(hypotheses, references, settings.tokenize, warn=warn)
        return settings

    def warn_of_text(self, hypotheses: Texts, references: Texts, tokenize: str | None, *, warn: Warn) -> None:
        """Warn of what makes scores mislead, under a tokenizer that these settings resolve to."""
        # Who names a tokenizer knows the text, and none is for text of tokens
        if self.tokenize != "none":
            tokenize = tokenize if self._cuts_words else None
            for line in text_warnings(hypotheses, references, tokenize=tokenize, remedy="--tokenize "):
                warn(line)

    @property
    def _cuts_words(self) -> bool:
        """True if a score depends on a tokenizer, and none is named."""
        return not self.tokenize and not {"bleu", "ter"}.isdisjoint(self.metrics)

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
    require_distinct([hypotheses, *references])
    # A wrong tokenizer is refused before anything is read
    settings.resolved()
    # Counts are checked with the files' names, before sacreBLEU sees only lists
    lines = read_text(hypotheses, warn=warn, refuse=False)
    sides = [read_text(path, warn=warn) for path in references]
    _check_lines(hypotheses, lines, references, sides, warn)
    named = {_name(hypotheses): lines}
    settings = settings.of_text(named, dict(zip(references, sides, strict=True)), warn=warn)
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
    require_distinct([*paths, *references])
    settings.resolved()
    systems = {path: read_text(path, warn=warn, refuse=False) for path in paths}
    sides = [read_text(path, warn=warn) for path in references]
    for path, lines in systems.items():
        _check_lines(path, lines, references, sides, warn)
    settings = settings.of_text(systems, dict(zip(references, sides, strict=True)), warn=warn)
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


def require_distinct(paths: Sequence[str]) -> None:
    """Check that no input is named twice: of a stream the second reading gets nothing, and a file equals itself.

    Args:
        paths: Files; `-` is standard input.

    Raises:
        ValueError: Two are the same file, by whatever name.
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
                    f"{_name(seen[file])} and {_name(path)} are the same: a file scored against itself, or read twice, "
                    "means nothing; name another one"
                )
            seen[file] = path


def _name(path: str) -> str:
    return "standard input" if path == "-" else path


def read_text(path: str, *, warn: Warn, refuse: bool = True) -> list[str]:
    """Read the lines of a file, or of standard input for `-`, as `text_files.read_lines` does.

    Args:
        refuse: Refuse text of which much is not UTF-8; False warns of what a system has written.

    Raises:
        ValueError: The path is a directory or a device, the text is or in another encoding.
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


def _check_lines(path: str, lines: list[str], names: Sequence[str], references: list[list[str]], warn: Warn) -> None:
    """Refuse references of other lengths, and warn of a shift against them."""
    for name, reference in zip(names, references, strict=True):
        shift = find_shift(lines, reference)
        if len(reference) != len(lines):
            where = f"; {shift}" if shift else ""
            raise ValueError(f"{path} has {len(lines):,} lines, but {name} has {len(reference):,}{where}")
        if shift:
            warn(f"{path} and {name}: {shift}")
    if not lines:
        raise ValueError(f"{path} has no lines: there is nothing to score")
