"""What every mixer promises. Mixers are found by their settings files: a new one needs no line here."""

from __future__ import annotations

import inspect
import random
from typing import Any

import pytest
import torch
from composed import CROSS, PRESETS, SELF, TINY, choices, config, lengths_mask, random_tokens, variants
from omegaconf import OmegaConf
from torch import Tensor, nn

from seq2seq.build import build_model, resolve
from seq2seq.mixer import CrossMixer, SelfMixer
from seq2seq.resources import conf_dir
from seq2seq.state import Cache, expand, reorder, select

WIDTH = 16


def decodes(name: str) -> bool:
    """Whether a self mixer has a causal form: an encoder-only one has no `step` of its own."""
    target = OmegaConf.load(conf_dir() / "mixer" / "self" / f"{name}.yaml").get("_target_")
    return target is None or resolve(target, SelfMixer).step is not SelfMixer.step


TARGET_SIDE = [("decoder", name) for name in SELF if decodes(name)] + [("cross", name) for name in CROSS]
SLOTS = [("encoder", name) for name in SELF] + TARGET_SIDE


def over(slots: list[tuple[str, str]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("slot", "name"), slots, ids=[f"{name}-{slot}" for slot, name in slots])


every_mixer, every_decoding_mixer = over(SLOTS), over(TARGET_SIDE)


def taps(mixer: nn.Module) -> int:
    """The mixer's kernel size, or a number that stands for it."""
    return getattr(mixer, "kernel_size", 4)


def run(mixer: Any, x: Tensor, mask: Tensor, memory: Tensor | None = None, memory_mask: Tensor | None = None) -> Tensor:
    """forward, whatever kind of mixer it is."""
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


def on(place: Any) -> Tensor:
    return torch.empty(0, device=place.device, dtype=place.dtype)


def close(a: Tensor, b: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(a.float(), b.float(), atol=tolerance, rtol=tolerance)


@every_mixer
def test_shape(slot, name, place):
    for mixer in variants(slot, name):
        mixer.to(place.device, place.dtype).eval()
        for length in (1, taps(mixer), taps(mixer) + 3):
            y = run(mixer, *inputs(3, length, on(place)))
            assert y.shape == (3, length, mixer.out_dim)
            assert y.dtype == place.dtype
            assert y.isfinite().all()
        assert mixer.dim == WIDTH


@every_decoding_mixer
def test_causality(slot, name, place):
    """Changing the future changes nothing in the past, bit for bit; 140 positions take the blocked path."""
    for mixer in variants(slot, name):
        mixer.to(place.device, place.dtype).eval()
        for length in (taps(mixer) + 3, 140):
            x, _, memory, memory_mask = inputs(2, length, on(place))
            now = random.randrange(1, length)
            mask, other, shorter = lengths_mask([length] * 2).to(x.device), x.clone(), lengths_mask([now] * 2, length)
            other[:, now:] = 1e3 * torch.randn_like(other[:, now:])
            before = run(mixer, x, mask, memory, memory_mask)[:, :now]
            assert torch.equal(before, run(mixer, other, mask, memory, memory_mask)[:, :now])
            assert torch.equal(before, run(mixer, other, shorter.to(x.device), memory, memory_mask)[:, :now])


@every_mixer
@pytest.mark.parametrize("longest", [9, 140])
def test_padding_invariance(slot, name, longest, place):
    """A sentence alone gives what it gives in a batch padded with anything, on both sides."""
    for mixer in variants(slot, name):
        mixer.to(place.device, place.dtype).eval()
        x, mask, memory, memory_mask = inputs(4, longest, on(place), src=longest)
        x[~mask], memory[~memory_mask] = 100.0, -100.0
        together = run(mixer, x, mask, memory, memory_mask)
        for row, (length, src) in enumerate(zip(mask.sum(1).tolist(), memory_mask.sum(1).tolist(), strict=True)):
            one = slice(row, row + 1)
            parts = x[one, :length], mask[one, :length], memory[one, :src], memory_mask[one, :src]
            close(together[one, :length], run(mixer, *parts), place.tolerance)


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
            state = mixer.init_state(sentences, max_len, device=like.device, dtype=like.dtype)
        self.state = expand(state, beam)

    def step(self) -> Tensor:
        """One more random input; what `step` makes of it."""
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
        """What `forward` makes of the last position of each history."""
        if isinstance(self.mixer, CrossMixer):
            rows = torch.arange(len(self.history), device=self.like.device) // self.beam
            return self.mixer(self.history, select(self.context, rows))[:, -1]
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
        self.state = select(self.state, rows, self.beam)
        self.history = self.history.unflatten(0, (-1, self.beam))[rows].flatten(0, 1)
        if isinstance(self.mixer, CrossMixer):
            self.context = select(self.context, rows)


@every_decoding_mixer
def test_step_is_forward(slot, name, place):
    """One step after another computes forward, for T < K, T = K and T > K."""
    for mixer in variants(slot, name):
        mixer.to(place.device, place.dtype).eval()
        steps = Stepper(mixer, 2, 1, taps(mixer) + 4, on(place))
        for _ in range(taps(mixer) + 4):
            close(steps.step(), steps.expected(), place.tolerance)


@every_decoding_mixer
def test_step_after_reorder(slot, name, place):
    """Beams of several sentences are shuffled and sentences leave in the middle; every step still equals forward."""
    for mixer in variants(slot, name):
        mixer.to(place.device, place.dtype).eval()
        length = taps(mixer) + 4
        steps = Stepper(mixer, 3, 3, length + random.randrange(3), on(place))
        leaving = random.randrange(1, length)
        for t in range(length):
            close(steps.step(), steps.expected(), place.tolerance)
            if random.random() < 0.4 or t == leaving:
                steps.reorder()
            if t == leaving:
                steps.select(random.choice([[0, 2], [1], [2, 1], [1, 2]]))


@every_decoding_mixer
def test_state_growth(slot, name):
    """The state is as large as declared: constant, or linear in the longest target; steps do not enlarge it."""

    def numbers(state: Any) -> int:
        if isinstance(state, Cache):
            return state.values.numel() + state.owner.numel()
        return state.numel() if isinstance(state, Tensor) else sum(numbers(part) for part in state)

    for mixer in variants(slot, name):
        steppers = [Stepper(mixer, 2, 2, max_len, torch.empty(0)) for max_len in (16, 32, 48)]
        small, middle, large = (numbers(stepper.state) for stepper in steppers)
        assert mixer.state_growth in ("linear", "constant")
        assert large - middle == middle - small
        assert (middle > small) == (mixer.state_growth == "linear")
        for _ in range(3):
            steppers[0].step()
        assert numbers(steppers[0].state) == small


@every_decoding_mixer
def test_state_and_context_are_flat(slot, name):
    """State: a NamedTuple of tensors (hypothesis first) and caches. Context: of tensors, source sentence first."""
    for mixer in variants(slot, name):
        steps = Stepper(mixer, 3, 2, 5, torch.empty(0))
        steps.step()
        assert all(isinstance(field, Cache) or field.shape[0] == 6 for field in steps.state._asdict().values())
        if isinstance(mixer, CrossMixer):
            assert all(field.shape[0] == 3 for field in steps.context._asdict().values())


@pytest.mark.parametrize("name", SELF)
def test_encoder_form_does_not_step(name):
    """Without causal=True there is no decoding, and the mixer says so."""
    mixer = variants("encoder", name)[0]
    with pytest.raises(ValueError, match="causal"):
        mixer.init_state(1, 3)


@every_mixer
def test_gradient_reaches_every_parameter(slot, name, place):
    """With T >= K, each parameter's largest gradient is more than 1e-4 of the module's largest."""
    for mixer in variants(slot, name):
        mixer.to(place.device, place.dtype).train()
        x, mask, memory, memory_mask = inputs(4, taps(mixer) + 4, on(place))
        y = run(mixer, x, mask, memory, memory_mask)
        (y * torch.randn_like(y)).float().sum().backward()
        sizes = {key: 0.0 if p.grad is None else float(p.grad.abs().max()) for key, p in mixer.named_parameters()}
        low = {key: size for key, size in sizes.items() if not size > 1e-4 * max(sizes.values())}
        assert not low, f"hardly any gradient: {low}, largest {max(sizes.values())}"


@every_mixer
def test_gradcheck(slot, name):
    """Gradients agree with finite differences in float64, to inputs and parameters."""
    for mixer in variants(slot, name, "model.dim=4", "model.ffn_dim=4"):
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


@every_mixer
def test_dropout_acts_in_training_alone(slot, name):
    """The settings ask for every kind of it: a mixer that has one differs each time in training, and never in eval."""
    for mixer in variants(slot, name):
        parts = inputs(3, taps(mixer) + 2, torch.empty(0))
        drops = any(getattr(mixer, kind, 0.0) for kind in ("dropout", "weight_dropout"))
        assert torch.equal(run(mixer.train(), *parts), run(mixer, *parts)) != drops
        assert torch.equal(run(mixer.eval(), *parts), run(mixer, *parts))


@every_mixer
def test_takes_bf16_under_autocast(slot, name):
    """A layer without norm or residual hands bf16 to the next."""
    for mixer in variants(slot, name):
        x, mask, memory, memory_mask = inputs(3, taps(mixer) + 2, torch.empty(0))
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            y = run(mixer.eval(), x.bfloat16(), mask, memory.bfloat16(), memory_mask)
        assert y.isfinite().all()


@every_mixer
def test_starts_at_about_the_scale_of_its_input(slot, name):
    """Freshly initialised and given normed inputs, a mixer's output is neither next to nothing nor a multiple.

    That of the first layer: the long normalised kernels of later ones give less, as published.
    """
    mixer = variants(slot, name, "model.dim=64", moved=False)[0].eval()
    for length in (10, 40):
        x, memory = torch.randn(8, length, 64), torch.randn(8, length, 64)
        full = torch.ones(8, length).bool()
        with torch.no_grad():
            y = run(mixer, x, full, memory, full)
        assert 0.08 < y.square().mean().sqrt() < 1.6


@every_mixer
def test_state_dict_round_trip(slot, name):
    for mixer, other in zip(variants(slot, name), variants(slot, name), strict=True):
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


@every_mixer
def test_impossible_sizes(slot, name):
    """A size that cannot work is a ValueError that names slot, setting and value."""
    tried = set()
    for key, value in BAD:
        group = f"mixer/cross={name}" if slot == "cross" else f"mixer/self@mixer.{slot}={name}"
        settings = config("mixer=transformer", group)
        values = settings["mixer"][slot]
        values = next(iter(values.get("kinds", {}).values()), values)
        if key in values.get("per_layer", {}):
            values["per_layer"][key] = [value]
        elif key in values:
            values[key] = value
        else:
            continue
        tried.add(key)
        with pytest.raises(ValueError, match=rf"{slot}: .*{key}.* {value}"):
            build_model(settings)
    mixer = variants(slot, name)[0]
    assert tried == {key for key, _ in BAD} & {*inspect.signature(type(mixer)).parameters}


@pytest.mark.parametrize("name", [name for name in SELF if not decodes(name)])
def test_encoder_only_refuses_to_be_causal(name):
    """A mixer that cannot decode says so when it is put in a decoder."""
    with pytest.raises(ValueError, match=r"decoder: .*encoder-only"):
        variants("decoder", name)


@pytest.mark.parametrize("preset", PRESETS)
def test_preset_trains_one_step(preset):
    """Every preset composes at the size of the demo's depth, and an update lowers the loss of its batch."""
    _train_one_step(f"mixer={preset}")


@pytest.mark.parametrize("name", CROSS)
def test_cross_mixer_trains_one_step(name):
    """Every cross mixer serves any decoder."""
    _train_one_step("mixer=transformer", f"mixer/cross={name}")


def _train_one_step(*overrides: str) -> None:
    model = build_model(config(*TINY, *overrides)).train()
    src_mask, tgt_mask = lengths_mask([7, 3, 5]), lengths_mask([4, 8, 6])
    src, tgt = random_tokens(src_mask), random_tokens(tgt_mask)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def loss() -> Tensor:
        logits = model(src, src_mask, tgt, tgt_mask)
        return nn.functional.cross_entropy(logits[tgt_mask], tgt[tgt_mask])

    loss().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    model.eval()
    before = loss().detach()
    model.zero_grad()
    loss().backward()
    optimizer.step()
    assert loss() < before


def test_every_self_mixer_occurs_in_a_preset():
    """A self mixer without a preset (conf/mixer/<name>.yaml) is named here."""
    used = {
        choice for preset in PRESETS for group, choice in choices(f"mixer={preset}").items() if "mixer/self" in group
    }
    missing = set(SELF) - used
    assert not missing, f"no preset in conf/mixer uses {', '.join(sorted(missing))}: add conf/mixer/<name>.yaml"


def test_there_are_mixers():
    """The globs above found something."""
    assert {"transformer", "lightconv", "dynamicconv", "bahdanau"} <= set(PRESETS)
    assert {"attention", "bigru", "lightconv", "dynamicconv"} <= set(SELF)
    assert {"attention", "additive", "bahdanau"} <= set(CROSS)
