"""Test every mixer against its contract. Mixers are found by their settings files: a new mixer needs no line here.

Comments give the chance that one case fails; there are about 150 cases.
"""

from __future__ import annotations

import inspect
import random
import re
import statistics
from typing import Any

import pytest
import torch
from composed import (
    CROSS,
    PRESETS,
    SELF,
    WIDTH,
    Case,
    decodes,
    lengths_mask,
    of_rows,
    preset_config,
    random_tokens,
)
from extra_settings import EXTRA
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from seq2seq.network import build
from seq2seq.network.build import build_model
from seq2seq.network.conformance import try_mixer
from seq2seq.network.make_mixer import layer_values
from seq2seq.network.mixer import CrossMixer
from seq2seq.network.state import Cache, expand, reorder
from seq2seq.system.resources import conf_dir


def extra_cases() -> list[Case]:
    """The cases of extra_settings.py."""
    cases = []
    for name, rows in EXTRA.items():
        for row in rows:
            slots = [row["slot"]] if "slot" in row else ["encoder", "decoder"]
            changes = tuple((key, value) for key, value in row.items() if key != "slot")
            cases += [Case(slot, name, changes) for slot in slots]
    return cases


ENCODER = [Case("encoder", name) for name in SELF]
TARGET_SIDE = [Case("decoder", name) for name in SELF if decodes(name)] + [Case("cross", name) for name in CROSS]
OWN = ENCODER + TARGET_SIDE
ALL = OWN + extra_cases()


def over(cases: list[Case]) -> pytest.MarkDecorator:
    """Run a test over cases; cases with further settings run in `make test-all` only."""
    params = [pytest.param(case, marks=pytest.mark.exhaustive) if case.changes else case for case in cases]
    return pytest.mark.parametrize("case", params, ids=str)


# The other presets train in `make rest`
REPRESENTATIVE = {
    "test_preset_trains_one_step": {
        *("transformer", "lightconv", "dynamicconv", "bahdanau", "gru", "mlp", "pyramid", "quadratic", "resolutions"),
        *("encoder_decoder", "luong", "preconv_attention"),
    }
}
every_case = over(ALL)
every_decoding_case = over([case for case in ALL if case.slot != "encoder"])


def taps(mixer: nn.Module) -> int:
    """The mixer's kernel size, or a number that stands for it."""
    return getattr(mixer, "kernel_size", 4)


def run(mixer: Any, x: Tensor, mask: Tensor, memory: Tensor | None = None, memory_mask: Tensor | None = None) -> Tensor:
    """Run `forward` of a self mixer or a cross mixer."""
    if isinstance(mixer, CrossMixer):
        assert memory is not None
        assert memory_mask is not None
        return mixer(x, mixer.project(memory, memory_mask))
    return mixer(x, mask)


def inputs(batch: int, length: int, like: Tensor, src: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, its mask (the first sentence full), a memory, its mask."""
    mask = lengths_mask([length] + [random.randint(1, length) for _ in range(batch - 1)])
    memory_mask = lengths_mask([src] + [random.randint(1, src) for _ in range(batch - 1)])
    x, memory = torch.randn(batch, length, WIDTH), torch.randn(batch, src, WIDTH)
    return x.to(like), mask.to(like.device), memory.to(like), memory_mask.to(like.device)


def on(platform: Any) -> Tensor:
    return torch.empty(0, device=platform.device, dtype=platform.dtype)


def close(a: Tensor, b: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(a.double(), b.double(), atol=tolerance, rtol=tolerance)


@every_case
def test_shape(case, platform):
    for mixer in case.variants():
        mixer.to(platform.device, platform.dtype).eval()
        for length in (1, taps(mixer), taps(mixer) + 3):
            y = run(mixer, *inputs(3, length, on(platform)))
            assert y.shape == (3, length, mixer.out_dim)
            assert y.dtype == platform.dtype
            assert y.isfinite().all()
        assert mixer.dim == WIDTH


@every_case
def test_a_training_accepts_it(case):
    for mixer in case.variants():
        try_mixer(mixer)


@every_decoding_case
def test_causality(case, platform):
    """Changing the future changes nothing in the past, bit for bit; 140 positions take the blocked path."""
    for mixer in case.variants():
        mixer.to(platform.device, platform.dtype).eval()
        for length in (taps(mixer) + 3, 140):
            x, _, memory, memory_mask = inputs(2, length, on(platform))
            now = random.randrange(1, length)
            mask, other, shorter = lengths_mask([length] * 2).to(x.device), x.clone(), lengths_mask([now] * 2, length)
            other[:, now:] = 1e3 * torch.randn_like(other[:, now:])
            before = run(mixer, x, mask, memory, memory_mask)[:, :now]
            assert torch.equal(before, run(mixer, other, mask, memory, memory_mask)[:, :now])
            assert torch.equal(before, run(mixer, other, shorter.to(x.device), memory, memory_mask)[:, :now])


@every_case
@pytest.mark.parametrize("longest", [9, 140])
def test_padding_invariance(case, longest, platform):
    """A sentence gives the same result alone and in a batch with any padding, on both sides."""
    for mixer in case.variants():
        mixer.to(platform.device, platform.dtype).eval()
        x, mask, memory, memory_mask = inputs(4, longest, on(platform), src=longest)
        x[~mask], memory[~memory_mask] = 100.0, -100.0
        together = run(mixer, x, mask, memory, memory_mask)
        for row, (length, src) in enumerate(zip(mask.sum(1).tolist(), memory_mask.sum(1).tolist(), strict=True)):
            one = slice(row, row + 1)
            parts = x[one, :length], mask[one, :length], memory[one, :src], memory_mask[one, :src]
            close(together[one, :length], run(mixer, *parts), platform.tolerance)


class Stepper:
    """Drives a mixer step by step over random inputs, with beams, and knows each hypothesis's whole history."""

    def __init__(self, mixer: Any, sentences: int, beam: int, max_len: int, like: Tensor) -> None:
        self.mixer, self.beam, self.like = mixer, beam, like
        self.history = torch.empty(sentences * beam, 0, WIDTH).to(like)
        _, _, memory, memory_mask = inputs(sentences, 1, like)
        if isinstance(mixer, CrossMixer):
            self.context: Any = mixer.project(memory, memory_mask)
            state = mixer.init_state(self.context, max_len)
        else:
            state = mixer.empty_state(sentences, max_len, device=like.device, dtype=like.dtype)
        self.state = expand(state, beam)

    def step(self) -> Tensor:
        """Return the output of `step` for one more random input."""
        size, length = self.history.shape[:2]
        x = torch.randn(size, WIDTH).to(self.like)
        self.history = torch.cat([self.history, x[:, None]], 1)
        position = torch.full((size,), length, device=x.device)
        if isinstance(self.mixer, CrossMixer):
            y, self.state = self.mixer.step(x, self.context, self.state, position)
        else:
            y, self.state = self.mixer.step(x, self.state, position)
        return y

    def expected(self) -> Tensor:
        """Return the output of `forward` at the last position of each history."""
        if isinstance(self.mixer, CrossMixer):
            return self.mixer(self.history, expand(self.context, self.beam))[:, -1]
        mask = torch.ones(self.history.shape[:2], device=self.like.device).bool()
        return self.mixer(self.history, mask)[:, -1]

    def reorder(self) -> None:
        """Each hypothesis continues a random one of its sentence."""
        size = len(self.history)
        base = torch.arange(size) // self.beam * self.beam
        index = (base + torch.randint(self.beam, (size,))).to(self.like.device)
        self.state, self.history = reorder(self.state, index), self.history[index]

    def select(self, sentences: list[int]) -> None:
        """Other sentences leave."""
        rows = torch.tensor(sentences, device=self.like.device)
        self.state = of_rows(self.state, rows, self.beam)
        self.history = self.history.unflatten(0, (-1, self.beam))[rows].flatten(0, 1)
        if isinstance(self.mixer, CrossMixer):
            self.context = of_rows(self.context, rows)


@every_decoding_case
@torch.no_grad()
def test_step_is_forward(case, platform):
    """For T < K, T = K and T > K, while beams are shuffled and sentences leave in the middle."""
    for mixer in case.variants():
        mixer.to(platform.device, platform.dtype).eval()
        length = taps(mixer) + 4
        steps = Stepper(mixer, 3, 3, length + random.randrange(3), on(platform))
        leaving = random.randrange(1, length)
        for t in range(length):
            close(steps.step(), steps.expected(), platform.tolerance)
            if random.random() < 0.4 or t == leaving:
                steps.reorder()
            if t == leaving:
                steps.select(random.choice([[0, 2], [1], [2, 1], [0, 1]]))


@every_decoding_case
def test_state_growth(case):
    """The state is as large as declared: constant, or linear in the longest target; steps do not enlarge it."""

    def numbers(state: Any) -> int:
        if isinstance(state, Cache):
            return state.values.numel() + state.owner.numel()
        return state.numel() if isinstance(state, Tensor) else sum(numbers(part) for part in state)

    for mixer in case.variants():
        steppers = [Stepper(mixer, 2, 2, max_len, torch.empty(0)) for max_len in (16, 32, 48)]
        small, middle, large = (numbers(stepper.state) for stepper in steppers)
        growth = getattr(mixer, "state_growth", "constant")
        assert growth in ("linear", "constant")
        assert large - middle == middle - small
        assert (middle > small) == (growth == "linear")
        for _ in range(3):
            steppers[0].step()
        assert numbers(steppers[0].state) == small


@every_decoding_case
def test_rows_of_state_and_context(case):
    """State: a flat tuple of tensors, hypothesis first, and caches. Context: of tensors, source sentence first."""
    for mixer in case.variants():
        steps = Stepper(mixer, 3, 2, 5, torch.empty(0))
        steps.step()
        assert all(isinstance(leaf, Cache) or leaf.shape[0] == 6 for leaf in steps.state)
        if isinstance(mixer, CrossMixer):
            assert all(leaf.shape[0] == 3 for leaf in steps.context)


@over(ENCODER)
def test_an_encoder_only_mixer_says_that_it_does_not_decode(case):
    mixer = case.variants()[0]
    if not build.decodes(type(mixer)):
        with pytest.raises(ValueError, match="cannot decode"):
            mixer.empty_state(1, 3)


@over(ENCODER)
def test_without_a_mask_all_positions_are_real(case):
    for mixer in case.variants():
        x = torch.randn(2, 5, mixer.dim)
        mixer.eval()
        assert torch.equal(mixer(x), mixer(x, torch.ones(2, 5, dtype=torch.bool)))


@every_case
def test_gradient_reaches_every_parameter(case, platform):
    """With T >= K, each parameter's largest gradient is more than 1e-4 of the module's largest."""
    for mixer in case.variants():
        mixer.to(platform.device, platform.dtype).train()
        shares = {key: 0.0 for key, _ in mixer.named_parameters()}
        # The smallest parameter has 2 numbers: both are that near zero with P of about 1e-8, in two draws 1e-16.
        for _ in range(2):
            x, mask, memory, memory_mask = inputs(4, taps(mixer) + 8, on(platform))
            y = run(mixer, x, mask, memory, memory_mask)
            mixer.zero_grad()
            (y * torch.randn_like(y)).float().sum().backward()
            sizes = {key: 0.0 if p.grad is None else float(p.grad.abs().max()) for key, p in mixer.named_parameters()}
            shares = {key: max(share, sizes[key] / max(sizes.values())) for key, share in shares.items()}
            if all(share > 1e-4 for share in shares.values()):
                break
        low = {key: share for key, share in shares.items() if not share > 1e-4}
        assert not low, f"hardly any gradient, as a share of the largest: {low}"


@every_case
def test_gradcheck(case):
    """Gradients agree with finite differences in float64, to inputs and parameters."""
    for mixer in case.variants(dim=4):
        mixer.double().eval()
        keys = [key for key, _ in mixer.named_parameters()]
        mask, memory_mask = lengths_mask([3, 2]), lengths_mask([1, 2])
        x, memory = (torch.randn(2, size, 4, dtype=torch.float64, requires_grad=True) for size in (3, 2))

        def function(x, memory, *values, mixer=mixer, keys=keys, mask=mask, memory_mask=memory_mask):
            named = dict(zip(keys, values, strict=True))
            if isinstance(mixer, CrossMixer):
                return torch.func.functional_call(
                    _Whole(mixer), {"mixer." + k: v for k, v in named.items()}, (x, memory, memory_mask)
                )
            return torch.func.functional_call(mixer, named, (x, mask)) + 0.0 * memory.sum()

        values = [p.detach().clone().requires_grad_() for p in mixer.parameters()]
        assert torch.autograd.gradcheck(function, (x, memory, *values), fast_mode=True)


class _Whole(nn.Module):
    """project and forward of a cross mixer in one call."""

    def __init__(self, mixer: CrossMixer) -> None:
        super().__init__()
        self.mixer = mixer

    def forward(self, x: Tensor, memory: Tensor, memory_mask: Tensor) -> Tensor:
        return self.mixer(x, self.mixer.project(memory, memory_mask))


@every_case
def test_dropout_acts_in_training_alone(case):
    """All kinds of dropout are on: a mixer with one of them varies in training, and never in evaluation."""
    for mixer in case.variants():
        parts = inputs(3, taps(mixer) + 2, torch.empty(0))
        drops = any(getattr(mixer, kind, 0.0) for kind in ("dropout", "weight_dropout"))
        first = run(mixer.train(), *parts)
        # The smallest masks have 6 bits, each kept with P = 0.8: two are equal with P = 0.1, thirteen with 1e-13.
        assert any(not torch.equal(run(mixer, *parts), first) for _ in range(13)) == drops
        assert torch.equal(run(mixer.eval(), *parts), run(mixer, *parts))


@every_case
def test_computes_in_bf16_and_without_data(case):
    """Under autocast, bf16 is near float32; on the meta device, where FLOPs are counted, the shape is right."""
    for mixer in case.variants():
        x, mask, memory, memory_mask = inputs(2, 70, torch.empty(0))
        with torch.no_grad():
            expected = run(mixer.eval(), x, mask, memory, memory_mask)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = run(mixer, x, mask, memory, memory_mask)
                # A layer without norm or residual hands bf16 to the next
                assert run(mixer, x.bfloat16(), mask, memory.bfloat16(), memory_mask).isfinite().all()
        if hasattr(mixer, "out"):  # an output projection, which is not left in float32; torch's recurrences may be
            assert y.dtype == torch.bfloat16, "a projection named `out` must compute in bf16 under autocast"
        error = (y.float() - expected)[mask].square().mean().sqrt() / expected[mask].square().mean().sqrt()
        assert error < 0.1
        if not isinstance(mixer, CrossMixer):
            assert mixer.to("meta")(x.to("meta"), mask.to("meta")).shape == y.shape


@over(OWN)
def test_starts_at_about_the_scale_of_its_input(case):
    """With initial weights and normed inputs, a mixer's output is neither tiny nor several times as large.

    This holds for the first layer: the long normalized kernels of later layers give less, as published.
    """

    def scale(length: int) -> float:
        mixer = case.variants(dim=64, moved=False)[0].eval()
        x, memory = torch.randn(8, length, 64), torch.randn(8, length, 64)
        full = torch.ones(8, length).bool()
        with torch.no_grad():
            return run(mixer, x, full, memory, full).square().mean().sqrt().item()

    for length in (10, 40):
        # A draw of `mlp`, whose matrix at first has one number a diagonal, is outside with P of 0.04. Then the median
        # of 48 decides, which is outside with P below 48! / 24!^2 * 0.04^24 = 1e-20 (0.1 instead of 0.04: 3e-11).
        if not 0.08 < scale(length) < 1.6:
            assert 0.08 < statistics.median(scale(length) for _ in range(48)) < 1.6


@every_case
def test_state_dict_round_trip(case):
    for mixer, other in zip(case.variants(), case.variants(), strict=True):
        parts = inputs(3, taps(mixer) + 2, torch.empty(0))
        mixer.eval()
        other.eval()
        assert not torch.equal(run(mixer, *parts), run(other, *parts))
        other.load_state_dict(mixer.state_dict(), strict=True)
        assert torch.equal(run(mixer, *parts), run(other, *parts))


BAD = [
    ("num_heads", 3),
    ("num_heads", 0),
    ("kernel_size", 0),
    ("kernel_size", -3),
    ("dropout", 1.0),
    ("weight_dropout", -0.1),
]


@over(OWN)
def test_impossible_sizes(case):
    """A size that cannot work is a ValueError that names slot, setting and value."""
    tried, where = set(), "" if case.slot == "cross" else f"{case.slot}: "
    for key, value in BAD:
        values = case.settings()
        values = next(iter(values.get("kinds", {}).values()), values)
        if key in values.get("per_layer", {}):
            values["per_layer"][key] = [value]
        elif key in values:
            values[key] = value
        else:
            continue
        tried.add(key)
        message = ""
        try:
            case.build(layer_values(values, 0, 8))
        except ValueError as error:
            message = str(error)
        checks = "require_divisible, require_positive and require_probability of seq2seq.network.mixer"
        assert message, f"{where}{key}={value} is accepted: check it in __init__, as by {checks}"
        assert re.search(rf"{where}.*{key}.* {value}", message), f"{key} and {value} are missing: {message}"
    mixer = case.variants()[0]
    assert tried == {key for key, _ in BAD} & {*inspect.signature(type(mixer)).parameters}


@pytest.mark.parametrize("name", [name for name in SELF if not decodes(name)])
def test_encoder_only_refuses_to_be_causal(name):
    """A mixer that cannot decode says so when it is put in a decoder."""
    with pytest.raises(ValueError, match=r"decoder: .*encoder-only"):
        Case("decoder", name).variants()


@pytest.mark.parametrize("preset", PRESETS)
def test_preset_trains_one_step(preset):
    train_one_step(preset_config(preset))


@pytest.mark.parametrize("name", CROSS)
def test_cross_mixer_trains_one_step(name):
    """Every cross mixer serves any decoder."""
    settings = preset_config("transformer")
    settings["mixer"]["cross"] = Case("cross", name).settings()
    train_one_step(settings)


def train_one_step(settings: dict[str, Any], *, trust: tuple[str, ...] = ()) -> None:
    """Every parameter gets a gradient, and a step against it that is small enough lowers the loss.

    A longer step may raise it: `retention` divides by a sum that may change its sign. In float64 the shortest step
    of 1e-3 / 4^14 = 4e-12 fails only where such a jump lies within it: some 50 of them, P of about 2e-10.
    """
    model = build_model(settings, trust=trust).double().eval()
    src_mask, tgt_mask = lengths_mask([7, 3, 5]), lengths_mask([4, 8, 6])
    src, tgt = random_tokens(src_mask), random_tokens(tgt_mask)

    def loss() -> Tensor:
        logits = model(src, src_mask, tgt, tgt_mask)
        return nn.functional.cross_entropy(logits[tgt_mask], tgt[tgt_mask])

    model.train()
    loss().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    model.eval()
    model.zero_grad()
    before = loss()
    before.backward()
    start = [p.detach().clone() for p in model.parameters()]
    for halvings in range(0, 30, 2):
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), start, strict=True):
                parameter.copy_(value - 1e-3 * 0.5**halvings * parameter.grad)
            if loss() < before:
                return
    raise AssertionError("no step against the gradient lowers the loss")


def test_every_self_mixer_occurs_in_a_preset():
    """A self mixer without a preset (conf/mixer/<name>.yaml) is named here."""
    used = set()
    for preset in PRESETS:
        for entry in OmegaConf.load(conf_dir() / "mixer" / f"{preset}.yaml").defaults:
            used |= set(entry.values()) if isinstance(entry, dict | DictConfig) else {entry}
    missing = set(SELF) - used
    assert not missing, f"no preset in conf/mixer uses {', '.join(sorted(missing))}: add conf/mixer/<name>.yaml"


def test_there_are_mixers():
    """The globs above have found mixers, and extra_settings.py names existing files."""
    assert {"transformer", "lightconv", "dynamicconv", "bahdanau"} <= set(PRESETS)
    assert {"attention", "bigru", "lightconv", "dynamicconv"} <= set(SELF)
    assert {"attention", "additive", "bahdanau"} <= set(CROSS)
    assert set(EXTRA) <= set(SELF) | set(CROSS)
