"""Beam search and sampling, through the model's context, state and step alone."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seq2seq.config.search import SearchSettings
from seq2seq.model import Seq2Seq
from seq2seq.state import reorder, select


def target_limits(src_mask: Tensor, settings: SearchSettings) -> Tensor:
    """Return the target length limit of each sentence of src_mask (B, S), (B,), eos included.

    It is max_len_ratio times the source's length plus max_len_extra, and at most max_len where there is one.
    """
    limits = (src_mask.sum(1) * settings.max_len_ratio).long() + settings.max_len_extra
    return limits if settings.max_len is None else limits.clamp(max=settings.max_len)


class NotFiniteError(FloatingPointError):
    """The model's scores are not finite, so that nothing can be ranked by them; the message is one line."""

    def __init__(self) -> None:
        super().__init__(
            "the model's scores are not finite: its training has diverged, or its weights are damaged; "
            "use an earlier checkpoint, or train with a lower learning rate"
        )


class Hypothesis(NamedTuple):
    """A translation that has ended.

    Attributes:
        ids: Its tokens, without bos and eos.
        score: log_prob / length^length_penalty, by which hypotheses are ranked; the length includes eos.
        log_prob: log p(y | x) in nats.
    """

    ids: list[int]
    score: float
    log_prob: float


class Specials(NamedTuple):
    """Ids of the special tokens that a search handles itself: it begins with bos, ends at eos, never draws pad."""

    bos: int
    eos: int
    pad: int


@torch.inference_mode()
def search(
    model: Seq2Seq, src: Tensor, src_mask: Tensor, *, special: Specials, settings: SearchSettings
) -> list[list[Hypothesis]]:
    """Return the n best hypotheses of each sentence of src (B, S), best first; beam_size 1 is greedy decoding.

    A sentence is done when beam_size hypotheses have ended, or when no open one can still overtake its n_best;
    done sentences leave the batch.

    Args:
        model: In evaluation mode, or dropout makes the result random.
        src: Source tokens, right-padded.
        src_mask: (B, S), True for real tokens.
        special: Ids of the special tokens.
        settings: Width of the beam, limits of length, ranking.

    Returns:
        For each sentence settings.n_best hypotheses, or as many as have ended, which is one at least.

    Raises:
        NotFiniteError: The model's logits are not finite.
    """
    if not src.shape[0]:
        return []
    beam = _Beam(model, src, src_mask, settings, special)
    # bounded, whatever the model computes: at its limit every hypothesis ends
    for _ in range(beam.max_len):
        beam.advance()
        if not beam.sentences.numel():
            break
    # where every continuation has probability 0, nothing ends
    if beam.sentences.numel() or not all(beam.finished):
        raise NotFiniteError
    return [_ranked(hypotheses, settings) for hypotheses in beam.finished]


def _ranked(hypotheses: list[Hypothesis], settings: SearchSettings) -> list[Hypothesis]:
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)[: settings.n_best]


class _Beam:
    """Open hypotheses of the sentences still in the batch: tokens (B, beam, t), log_prob (B, beam)."""

    def __init__(
        self, model: Seq2Seq, src: Tensor, src_mask: Tensor, settings: SearchSettings, special: Specials
    ) -> None:
        batch_size = src.shape[0]
        size = settings.beam_size
        self.model = model
        self.settings = settings
        self.special = special
        self.limits = target_limits(src_mask, settings)  # (B,)
        self.context = model.context(src, src_mask)  # once per sentence
        self.max_len = int(self.limits.max())  # slots of the caches
        self.state: Any = model.init_state(self.context, beam_size=size, max_len=self.max_len)
        self.tokens = src.new_empty(batch_size, size, 0)  # (B, beam, t), without bos
        self.last = src.new_full((batch_size, size), special.bos)  # (B, beam): what the next step reads
        self.log_prob = torch.full((batch_size, size), float("-inf"), device=src.device)
        # one hypothesis until the first step makes them differ
        self.log_prob[:, 0] = 0.0
        # rows of `finished` that the batch still has
        self.sentences = torch.arange(batch_size, device=src.device)
        self.finished: list[list[Hypothesis]] = [[] for _ in range(batch_size)]

    def advance(self) -> None:
        """Extend every open hypothesis by one token."""
        log_prob, parent, token = self._candidates()
        # in this order: `_finish` reads the tokens of the parents, which `_continue` replaces
        self._finish(log_prob, parent, token)
        self._continue(log_prob, parent, token)
        self._drop_done()

    def _candidates(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the 2 beam best extensions of each sentence: log_prob, parent row and token, each (B, 2 beam)."""
        size = self.settings.beam_size
        step = self.tokens.shape[2]
        position = self.last.new_full((self.last.numel(),), step)  # (N,)
        logits, self.state = self.model.step(self.last.flatten(), self.context, self.state, position)
        logits = logits.float()  # (N, V)
        # of all tokens, before some are ruled out: log_prob is the model's own
        norm = logits.logsumexp(-1, keepdim=True)  # (N, 1)
        # an infinite one becomes NaN, which `_drop_done` finds in the candidates
        norm = norm + (norm - norm)
        logits[:, [self.special.pad, self.special.bos]] = float("-inf")
        # at its limit a hypothesis can only end, so that none is lost
        last_chance = (self.limits <= step + 1).repeat_interleave(size)
        if bool(last_chance.any()):
            only_end = torch.full_like(logits, float("-inf"))
            only_end[:, self.special.eos] = logits[:, self.special.eos]
            logits = torch.where(last_chance[:, None], only_end, logits)
        # 2 beam of each, since up to beam of them may end and beam must go on
        width = min(2 * size, logits.shape[1])
        best, token = logits.topk(width, -1)  # (N, width)
        total = (best - norm).view(-1, size, width) + self.log_prob[:, :, None]  # (B, beam, width)
        log_prob, flat = total.flatten(1).topk(min(2 * size, size * width), -1)  # (B, 2 beam)
        # flat = parent * width + rank
        return log_prob, flat // width, token.view(-1, size * width).gather(1, flat)

    def _finish(self, log_prob: Tensor, parent: Tensor, token: Tensor) -> None:
        """Record hypotheses that end among the first `beam` candidates."""
        size = self.settings.beam_size
        length = self.tokens.shape[2] + 1  # with eos
        # (B, beam); -inf: a row without a hypothesis
        ended = (token[:, :size] == self.special.eos) & log_prob[:, :size].isfinite()
        rows, ranks = ended.nonzero(as_tuple=True)  # one entry per ended hypothesis
        if not rows.numel():
            return
        tokens = self.tokens[rows, parent[rows, ranks]].tolist()
        values = log_prob[rows, ranks].tolist()
        for sentence, ids, value in zip(self.sentences[rows].tolist(), tokens, values, strict=True):
            if len(self.finished[sentence]) < size:
                score = value / length**self.settings.length_penalty  # log p / length^a
                self.finished[sentence].append(Hypothesis(ids, score, value))

    def _continue(self, log_prob: Tensor, parent: Tensor, token: Tensor) -> None:
        """Keep the first `beam` candidates that go on."""
        size = self.settings.beam_size
        log_prob = log_prob.masked_fill(token == self.special.eos, float("-inf"))
        self.log_prob, kept = log_prob.topk(size, -1)  # (B, beam)
        parent = parent.gather(1, kept)
        self.last = token.gather(1, kept)
        # tokens and state follow their parents: hypothesis i continues row parent[i] of its sentence
        history = self.tokens.gather(1, parent[:, :, None].expand(-1, -1, self.tokens.shape[2]))  # (B, beam, t)
        self.tokens = torch.cat([history, self.last[:, :, None]], -1)  # (B, beam, t + 1)
        if size > 1:
            # rows of the whole batch: a sentence's are adjacent
            base = torch.arange(parent.shape[0], device=parent.device)[:, None] * size
            self.state = reorder(self.state, (base + parent).flatten())

    def _drop_done(self) -> None:
        """Remove sentences whose search is over from the batch.

        Raises:
            NotFiniteError: A candidate's score is NaN.
        """
        best_open = self.log_prob.amax(1).tolist()
        # one logit that is NaN or infinite makes all candidates of its hypothesis NaN, which topk ranks first
        if any(map(math.isnan, best_open)):
            raise NotFiniteError
        longest = self.limits.tolist()
        keep = [
            row
            for row, sentence in enumerate(self.sentences.tolist())
            if not self._done(self.finished[sentence], best_open[row], longest[row])
        ]
        if len(keep) == len(best_open):
            return
        # all that has a row per sentence shrinks together; `finished` keeps its place
        rows = torch.tensor(keep, device=self.last.device, dtype=torch.int64)
        self.context = select(self.context, rows)
        self.state = select(self.state, rows, self.settings.beam_size)
        for name in ("limits", "tokens", "last", "log_prob", "sentences"):
            setattr(self, name, getattr(self, name)[rows])

    def _done(self, ended: list[Hypothesis], best_open: float, longest: int) -> bool:
        settings = self.settings
        # nothing is open, or the beam is full
        if best_open == float("-inf") or len(ended) >= settings.beam_size:
            return True
        if len(ended) < settings.n_best:
            return False
        # the best case of an open hypothesis: a longer one is divided by more, so its negative sum shrinks
        length = longest if settings.length_penalty > 0 else self.tokens.shape[2] + 1
        # log p only falls as a hypothesis grows
        bound = best_open / length**settings.length_penalty
        return bound <= sorted(hypothesis.score for hypothesis in ended)[-settings.n_best]


@torch.inference_mode()
def sample(
    model: Seq2Seq,
    src: Tensor,
    src_mask: Tensor,
    *,
    special: Specials,
    settings: SearchSettings | None = None,
    temperature: float = 1.0,
    top_k: int = 0,
    generator: torch.Generator | None = None,
) -> list[Hypothesis]:
    """Draw one translation of each sentence of src (B, S), each token from softmax(logits / temperature).

    Args:
        special: Ids of the special tokens.
        settings: Only its limits of length and its length_penalty count.
        temperature: Below 1 sharpens the distribution, above 1 flattens it.
        top_k: Draw from the k most probable tokens only (Fan et al. 2018); 0 for all.
        generator: Makes the draws repeatable.

    Returns:
        Hypotheses whose log_prob is the model's own, without temperature.

    Raises:
        ValueError: The temperature or top_k is outside its range.
        NotFiniteError: The model's logits are not finite.
    """
    _require_range(temperature, top_k)
    if not src.shape[0]:
        return []
    settings = settings or SearchSettings(beam_size=1)
    limits = target_limits(src_mask, settings)  # (B,)
    max_len = int(limits.max())
    context = model.context(src, src_mask)
    state = model.init_state(context, beam_size=1, max_len=max_len)
    last = src.new_full((src.shape[0],), special.bos)
    ended = torch.zeros_like(last).bool()  # (B,)
    total = torch.zeros(len(last), device=src.device)  # log p, (B,)
    tokens = []
    for step in range(max_len):
        logits, state = model.step(last, context, state, torch.full_like(last, step))  # (B, V)
        last = _draw(logits.float(), special, temperature, top_k, generator)  # (B,)
        last = last.masked_fill(limits <= step + 1, special.eos)  # at its limit a translation ends
        # under the model's own distribution, whatever was drawn from; nothing after eos counts
        gained = logits.float().log_softmax(-1).gather(1, last[:, None]).squeeze(1)
        total = total + gained.masked_fill(ended, 0.0)
        tokens.append(last.masked_fill(ended, special.eos))
        ended = ended | (last == special.eos)
        # one read for both: each would make the host wait for the device
        done, finite = torch.stack([ended.all(), total.isfinite().all()]).tolist()
        if not finite:
            raise NotFiniteError
        # sentences that have ended draw on until all have: the batch keeps its shape
        if done:
            break
    return [
        _cut(ids, value, special.eos, settings)
        for ids, value in zip(torch.stack(tokens, 1).tolist(), total.tolist(), strict=True)
    ]


def _require_range(temperature: float, top_k: int) -> None:
    """Refuse settings of sampling that float32 logits cannot be divided by, or that mean nothing."""
    if not 1e-3 <= temperature <= 1e3:
        raise ValueError(f"temperature is {temperature}; choose 0.001 to 1000, or decode greedily")
    if top_k < 0:
        raise ValueError(f"top_k is {top_k}; choose 1 or more, or 0 for all tokens")


def _draw(
    logits: Tensor, special: Specials, temperature: float, top_k: int, generator: torch.Generator | None
) -> Tensor:
    logits = logits.clone()  # the caller reads the original for log p
    logits[:, [special.pad, special.bos]] = float("-inf")
    if top_k > 0:
        floor = logits.topk(min(top_k, logits.shape[1]), -1).values[:, -1:]  # (B, 1): the k-th largest
        logits = logits.masked_fill(logits < floor, float("-inf"))
    probability = (logits / temperature).softmax(-1)  # (B, V)
    # where nothing can be drawn the end stands, whose log p is then not finite: multinomial ends a GPU's process at NaN
    hopeless = probability[:, 0].isnan()
    drawn = torch.multinomial(probability.masked_fill(hopeless[:, None], 1.0), 1, generator=generator).squeeze(1)
    return drawn.masked_fill(hopeless, special.eos)


def _cut(ids: list[int], log_prob: float, eos: int, settings: SearchSettings) -> Hypothesis:
    length = ids.index(eos) if eos in ids else len(ids)
    # eos counts in the length, as in a beam search
    return Hypothesis(ids[:length], log_prob / (length + 1) ** settings.length_penalty, log_prob)
