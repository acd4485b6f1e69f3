"""Settings of beam search, which are the section `search`, and of sampling."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from seq2seq.settings.declare import Section, internal, keys, require_used, setting

LENGTH_NORMS = ("power", "gnmt")
# Options that sampling does not use.
_SEARCH_ONLY = ("beam_size", "beam_groups", "diversity")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchSettings(Section):
    """Settings of a beam search.

    A translation of S source tokens has at most int(max_len_ratio * S) + max_len_extra tokens, including the end
    symbol. Hypotheses are ranked by log p(y | x) / |y|^length_penalty, where |y| includes the end symbol. A
    length_penalty of 0 ranks by log-probability, and 1 ranks by mean log-probability per token. Larger values favor
    long outputs, and negative values favor short ones. With length_norm=gnmt the divisor is
    ((5 + |y|) / 6)^length_penalty.

    Args:
        max_len: Maximum number of tokens of a translation, including the end symbol, for learned positions.
    """

    section: ClassVar[str] = "search"

    beam_size: int = setting(5, "hypotheses kept at each step; 1 is greedy", least=1, most=1000)
    max_len_ratio: float = setting(2.0, "pieces at most: max_len_ratio * source + max_len_extra", least=0, most=100)
    max_len_extra: int = setting(20, "see max_len_ratio", least=1, most=10_000)
    # A run may favor short output by a negative exponent; an option or a request may not.
    length_penalty: float = setting(
        1.0, "exponent of the length that divides scores; larger: longer output", least=-10, most=10, option_least=0
    )
    n_best: int = setting(1, "translations per sentence (seq2seq.translate --n-best)", least=1, most=1000)
    length_norm: str = setting("power", "power: length^penalty; gnmt: ((5 + length) / 6)^penalty", choices=LENGTH_NORMS)
    min_len: int = setting(0, "minimum pieces of a translation, without the end", least=0, most=10_000)
    no_repeat_ngram: int = setting(0, "length of piece sequences that may not repeat; 0 = off", least=0, most=100)
    beam_groups: int = setting(1, "groups of diverse beam search, equal parts of the beam", least=1, most=1000)
    diversity: float = setting(
        0.5, "penalty on tokens that earlier groups chose", least=0, most=100, needs={"beam_groups": range(2, 1001)}
    )
    max_len: int | None = internal(None)

    def __post_init__(self) -> None:
        super().__post_init__()
        # A beam holds no more hypotheses than its size.
        if self.n_best > self.beam_size:
            raise ValueError(f"n_best {self.n_best} is more than beam_size {self.beam_size}; raise beam_size")
        if self.beam_size % self.beam_groups:
            raise ValueError(f"beam_groups is {self.beam_groups}; choose a divisor of beam_size ({self.beam_size})")
        if self.max_len is not None and self.min_len >= self.max_len:
            raise ValueError(
                f"min_len is {self.min_len}; the model has {self.max_len} target positions, with the end: choose at "
                f"most {self.max_len - 1}"
            )


# Settings that a checkpoint keeps, since its test score depends on them. Commands have an option for each of them.
KEPT = tuple(name for name in keys(SearchSettings) if name != "n_best")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingSettings(Section):
    """Settings of sampling. The samples of a line depend only on the seed and the line."""

    section: ClassVar[str] = "sampling"

    temperature: float = setting(1.0, "below 1 sharpens the distribution, above 1 flattens it", least=1e-3, most=1000)
    top_k: int = setting(0, "sample from this many most probable pieces; 0 = all", least=0, most=10**9)
    top_p: float = setting(
        1.0, "sample from the most probable pieces that together have this probability", above=0, most=1
    )
    seed: int = setting(0, "seed of the samples", least=0, most=2**63 - 1)


def chosen_search(defaults: SearchSettings, given: Mapping[str, Any]) -> tuple[SearchSettings, SamplingSettings | None]:
    """Complete the options of a command, a request or a call with a model's own settings.

    Args:
        given: Settings of search and sampling by name, and the number of `samples`, the metric `mbr` that compares
            them, and `phrases` and a `glossary` that translations must contain; None is not given.

    Returns:
        The settings of the search, and of sampling if there are samples.

    Raises:
        ValueError: An option has no effect, excludes another or is out of range; the message names them.
    """
    given = {name: value for name, value in given.items() if value is not None}
    searched = {name: value for name, value in given.items() if name in keys(SearchSettings)}
    draws = {name: value for name, value in given.items() if name in keys(SamplingSettings)}
    constraints = [name for name in ("phrases", "glossary") if given.get(name)]
    samples = given.get("samples")
    if samples is None:
        if alone := [*draws, *(["mbr"] if "mbr" in given else [])]:
            raise ValueError(f"{alone[0]} needs samples")
        settings = dataclasses.replace(defaults, **searched)
        require_used(settings, searched, written=str)
        require_one_group(settings, None, phrases=bool(constraints))
        return settings, None
    if refused := [*(name for name in _SEARCH_ONLY if name in searched), *constraints]:
        raise ValueError(f"{refused[0]} is an option of beam search, which samples replaces; leave one out")
    if (n_best := searched.get("n_best", defaults.n_best)) > samples:
        raise ValueError(f"n_best {n_best} is more than samples {samples}; raise samples")
    # As many hypotheses as samples
    settings = dataclasses.replace(defaults, **searched, beam_size=samples, beam_groups=1)
    return settings, SamplingSettings(**draws)


def require_one_group(settings: SearchSettings, sampling: SamplingSettings | None, *, phrases: bool) -> None:
    """Raise ValueError for phrases with sampling, or with several groups."""
    if phrases and (sampling or settings.beam_groups > 1):
        raise ValueError("phrases and glossaries are searched by one group, without sampling: choose beam_groups 1")
