"""Score detokenized text with sacreBLEU: BLEU, chrF, TER and paired bootstrap, each with its signature."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from sacrebleu.metrics.base import Metric, Signature
from sacrebleu.metrics.base import Score as _Result
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import estimate_ci

from seq2seq.data.languages import SINITIC, has_spaces, primary_subtag
from seq2seq.settings.data import USUAL_METRICS
from seq2seq.system.errors import first_line

TOKENIZERS = tuple(BLEU.TOKENIZERS)
# Tokenizers whose model sacreBLEU downloads at first use; the download fails after NETWORK_SECONDS of silence.
_DOWNLOADED = ("spm", "flores101", "flores200", "spBLEU-1K")
NETWORK_SECONDS = 10.0

# Tokenizers of languages whose TER splits ideographs into words of one character.
_IDEOGRAPHIC = frozenset({"zh", "ja-mecab"})

References = Sequence[str] | Sequence[Sequence[str]]


class Score(NamedTuple):
    """Corpus score: its name as sacreBLEU prints it, its value (of 100 for BLEU and chrF), and its signature."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f}  {self.signature}"


class Accuracy(Metric):
    """Share of lines that are equal to a reference, in percent: for targets that are classes."""

    _SIGNATURE_TYPE = Signature

    def __init__(self, *, lowercase: bool) -> None:
        super().__init__()
        self.lowercase = lowercase

    def get_signature(self) -> Signature:
        """Return the signature: the number of references, the case, and sacreBLEU's version."""
        signature = super().get_signature()
        signature.info["case"] = "lc" if self.lowercase else "mixed"
        return signature

    def _preprocess_segment(self, sent: str) -> str:
        return sent.strip().lower() if self.lowercase else sent.strip()

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {"lines": refs}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict[str, Any]) -> list[int]:
        return [int(hypothesis in ref_kwargs["lines"]), 1]

    def _compute_score_from_stats(self, stats: Sequence[float]) -> _Result:
        return _Result("accuracy", 100 * float(stats[0]) / float(stats[1]))

    def _aggregate_and_compute(self, stats: Sequence[Sequence[float]]) -> _Result:
        return self._compute_score_from_stats(np.sum(stats, 0))


class Comparison(NamedTuple):
    """System under one metric: score, bootstrap mean, half-width of the 95% interval, p against the first system.

    There is no interval and no p for one sentence, whose resamples are all equal.
    """

    system: str
    name: str
    value: float
    mean: float
    interval: float | None
    p_value: float | None
    signature: str


def tokenize_for(lang: str | None, chosen: Mapping[str, str] | None = None) -> str:
    """Return sacreBLEU's tokenizer for a language code such as `de`, `zh-CN` or `zho_Hans`; 13a if it has none.

    Args:
        chosen: Tokenizers that take precedence, by exact code (zho_Hans) or by language (zh, zho).
    """
    lang = lang or ""
    chosen = chosen or {}
    language = primary_subtag(lang)
    of_codes = {code: name for code, name in chosen.items() if re.search("[-_]", code)}
    of_languages = {primary_subtag(code): name for code, name in chosen.items() if code not in of_codes}
    if named := of_codes.get(lang) or of_languages.get(language):
        return named
    # 13a separates words at spaces and punctuation: right for most scripts with spaces
    if has_spaces(lang):
        return "ko-mecab" if language == "ko" else "13a"
    # Other scripts without spaces are scored by character
    return "zh" if language in SINITIC else "ja-mecab" if language == "ja" else "char"


def tokenize_of(meta: Mapping[str, Any], lang: str) -> str:
    """Return the tokenizer for translations into `lang`: the run's if `lang` is its target, else by `tokenize_for`.

    Args:
        meta: The `seq2seq` entry of the checkpoint.
    """
    return meta["tokenize"] if lang == meta["tgt_lang"] else tokenize_for(lang)


def check_tokenize(tokenize: str) -> str:
    """Return `tokenize`.

    Raises:
        ValueError: sacreBLEU has no such tokenizer, or the tokenizer needs a package that is not installed.
    """
    # Creating the tokenizer shows whether its dictionary is installed
    _bleu(tokenize, False)
    return tokenize


def bleu(hypotheses: Sequence[str], references: References, *, tokenize: str = "13a", lowercase: bool = False) -> Score:
    """Compute corpus BLEU: BP * exp(sum_n log p_n / 4), n = 1..4, on detokenized text.

    Reference:
        Papineni et al. 2002, BLEU: a method for automatic evaluation of machine translation.
    """
    return _score(_bleu(tokenize, lowercase), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: References) -> Score:
    """Compute corpus chrF: F_2 of character 1- to 6-grams.

    Reference:
        Popovic 2015, chrF: character n-gram F-score for automatic MT evaluation.
    """
    return _score(CHRF(), hypotheses, references)


def scores(
    hypotheses: Sequence[str],
    references: References,
    *,
    metrics: Sequence[str] = USUAL_METRICS,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> list[Score]:
    """Compute the scores named in `metrics`, in this order.

    Args:
        references: One set of references or several, each with a line for every hypothesis.

    Raises:
        ValueError: The numbers of lines differ.
    """
    return [_score(metric, hypotheses, references) for metric in _metrics(metrics, tokenize, lowercase).values()]


def paired_bootstrap(
    systems: Mapping[str, Sequence[str]],
    references: References,
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    samples: int = 1000,
    metrics: Sequence[str] = ("bleu", "chrf"),
) -> list[Comparison]:
    """Compare every system with the first by paired bootstrap resampling, metric by metric.

    p = (1 + #{i: |d_i - mean(d)| >= |d|}) / (1 + n), with the difference d of the scores and its values d_i on n
    resampled test sets. It is two-sided, and 1 if the scores are equal. The resamples are sacreBLEU's, but its p counts
    |d_i| - mean(|d|) > |d| and is about half as large: one in nine pairs of equally good systems has p < 0.05.

    Args:
        systems: Translations by name of the system, two systems or more.

    Raises:
        ValueError: The numbers of lines differ.

    Reference:
        Koehn 2004, Statistical significance tests for machine translation evaluation.
    """
    # Check each system here: sacreBLEU's message does not name the system whose number of lines differs
    streams: list[list[str]] = []
    for name, hypotheses in systems.items():
        streams = _streams(hypotheses, references, name)
    seed, rng = resampling()
    lines = len(next(iter(systems.values())))
    samples_of = rng.choice(lines, size=(samples, lines), replace=True)
    found: list[Comparison] = []
    for metric in _metrics(metrics, tokenize, lowercase).values():
        rows = [_resampled(metric, list(hypotheses), streams, samples_of) for hypotheses in systems.values()]
        # The metric knows the number of references only after a score
        signature = metric.get_signature()
        signature.update("seed", seed)
        signature.update("bs", samples)
        for system, (score, scores) in zip(systems, rows, strict=True):
            mean, half = map(float, estimate_ci(scores))
            first, firsts = rows[0]
            tested = score is not first and lines > 1
            p_value = bootstrap_p(score.score - first.score, scores - firsts) if tested else None
            interval = half if lines > 1 else None
            found.append(Comparison(system, score.name, float(score.score), mean, interval, p_value, str(signature)))
    return found


def resampling() -> tuple[str, np.random.Generator]:
    """Return the seed of resamples, as sacreBLEU reads it so that p values repeat, and its generator."""
    seed = os.environ.get("SACREBLEU_SEED", "12345").lower()
    return seed, np.random.default_rng(None if seed == "none" else int(seed))


def bleu_counts(
    hypotheses: Sequence[str], references: References, *, tokenize: str = "13a", lowercase: bool = False
) -> np.ndarray:
    """Return sacreBLEU's statistics of every sentence, (N, 10), for `bleu_of_counts`.

    They are the lengths of hypothesis and reference, then the numbers of matching and of all n-grams, n = 1..4.
    """
    streams = _streams(hypotheses, references, "hypotheses")
    return np.array(_bleu(tokenize, lowercase)._extract_corpus_statistics(list(hypotheses), streams), dtype=float)


def bleu_of_counts(counts: np.ndarray) -> np.ndarray:
    """Compute corpus BLEU from summed statistics, as sacreBLEU does: (..., 10) to (...)."""
    lengths, matching, total = counts[..., :2], counts[..., 2:6], counts[..., 6:]
    # The first n without a match counts 1/2 match, the second 1/4, and so on
    smoothed = np.where(matching > 0, matching, 0.5 ** np.cumsum(matching == 0, axis=-1))
    with np.errstate(divide="ignore", invalid="ignore"):
        penalty = np.exp(np.minimum(0, 1 - lengths[..., 1] / lengths[..., 0]))
        score = 100 * penalty * np.exp(np.log(smoothed / total).mean(-1))
    # BLEU is 0 if there is no match, or if there are no n-grams of some length n
    return np.where((matching.sum(-1) > 0) & (total.min(-1) > 0), score, 0.0)


def _resampled(
    metric: Metric, hypotheses: list[str], streams: list[list[str]], samples: np.ndarray
) -> tuple[Any, np.ndarray]:
    """Compute a score, and the scores (n,) of the resampled test sets, whose lines are the rows of samples (n, N)."""
    counts = metric._extract_corpus_statistics(hypotheses, streams)
    table = np.array(counts, dtype=np.float32)  # (N, counts)
    scores = [metric._compute_score_from_stats(table[lines].sum(0)).score for lines in samples]
    return metric._aggregate_and_compute(counts), np.array(scores)


def bootstrap_p(difference: float, resampled: np.ndarray) -> float:
    """Return the share of resampled differences at least as far from their mean as `difference` is from 0."""
    count = np.sum(np.abs(resampled - resampled.mean()) >= abs(difference))
    return float((count + 1) / (len(resampled) + 1))


def _metrics(names: Sequence[str], tokenize: str, lowercase: bool) -> dict[str, Metric]:
    """Create the sacreBLEU metrics of some of METRICS; raise ValueError for TER by character."""
    if "ter" in names and tokenize == "char":
        raise ValueError(
            "TER counts words, and the tokenizer char has none: leave ter out, or use the tokenizer zh or ja-mecab for "
            "Chinese or Japanese"
        )
    asian = tokenize in _IDEOGRAPHIC
    make = {
        "bleu": lambda: _bleu(tokenize, lowercase),
        "chrf": lambda: CHRF(lowercase=lowercase),
        # Includes 1- and 2-grams of words (Popovic 2017)
        "chrf++": lambda: CHRF(lowercase=lowercase, word_order=2),
        # 100 * edits, shifts included, per reference word; smaller is better (Snover et al. 2006). Chinese and Japanese
        # are split into characters, which needs `normalized`; other text is split at spaces
        "ter": lambda: TER(normalized=asian, asian_support=asian),
        "accuracy": lambda: Accuracy(lowercase=lowercase),
    }
    return {name: make[name]() for name in names}


def _bleu(tokenize: str, lowercase: bool) -> BLEU:
    if tokenize not in TOKENIZERS:
        raise ValueError(f"unknown BLEU tokenizer '{tokenize}': choose one of {', '.join(TOKENIZERS)}")
    # By default a download waits forever
    patience = socket.getdefaulttimeout()
    socket.setdefaulttimeout(NETWORK_SECONDS)
    try:
        # force: no warning for every line that looks tokenized
        return BLEU(tokenize=tokenize, lowercase=lowercase, force=True)
    except (ImportError, OSError, RuntimeError) as error:
        # The download of a model failed, or its file is damaged
        if tokenize in _DOWNLOADED and not isinstance(error, ImportError):
            reason = getattr(error, "reason", None) or first_line(error)
            raise ValueError(
                f"the BLEU tokenizer '{tokenize}' needs a model that sacreBLEU downloads once ({reason}): allow the "
                "download, copy ~/.sacrebleu/models from a machine that has it (delete a damaged file first), or score "
                "by character"
            ) from error
        extra = {"ja-mecab": "sacrebleu[ja]", "ko-mecab": "sacrebleu[ko]"}.get(tokenize, "its dependencies")
        # The language of ja-mecab is ja
        key = f"data.tokenize.{tokenize[:2]}=char" if tokenize[2:] == "-mecab" else "data.tokenize.<language>=char"
        remedy = f"install {extra}, or score by character: {key} in training, --tokenize char in seq2seq.score"
        raise ValueError(f"the BLEU tokenizer '{tokenize}' cannot be used here: {remedy}") from error
    finally:
        socket.setdefaulttimeout(patience)


def _score(metric: Metric, hypotheses: Sequence[str], references: References) -> Score:
    # The signature has the number of references only after a score
    result = metric.corpus_score(list(hypotheses), _streams(hypotheses, references, "hypotheses"))
    return Score(result.name, float(result.score), str(metric.get_signature()))


def _streams(hypotheses: Sequence[str], references: References, name: str) -> list[list[str]]:
    """Return the references as one list per reference set; raise ValueError unless all numbers of lines agree."""
    # A string is a sequence of strings, and would be scored by character
    if isinstance(hypotheses, str) or isinstance(references, str):
        raise ValueError("hypotheses and references are lists of lines, not one string")
    if not hypotheses:
        raise ValueError(f"{name}: nothing to score, 0 lines")
    if not references:
        raise ValueError("no reference: there are 0 reference lines")
    # Either one set of references, or several, each with a line for every hypothesis
    single = isinstance(references[0], str)
    streams = [[str(line) for line in stream] for stream in ([references] if single else references)]
    # sacreBLEU's own message does not name the file
    for number, stream in enumerate(streams, 1):
        if len(stream) != len(hypotheses):
            which = f"reference {number}" if len(streams) > 1 else "the reference"
            raise ValueError(f"{name}: {len(hypotheses)} lines, but {which} has {len(stream)}")
    return streams
