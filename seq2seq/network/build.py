"""Build a Seq2Seq from a plain dictionary, such as a checkpoint's, without Hydra."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from seq2seq.kernels.dispatch import portable
from seq2seq.network.classifier import class_decoder
from seq2seq.network.embedding import Embedding, FactorTable, GridPositions, PatchProjection, make_positions, make_table
from seq2seq.network.make_mixer import TargetError as TargetError
from seq2seq.network.make_mixer import (
    checked_values,
    class_of,
    layer_slot,
    layer_values,
    make_mixer,
    require_trusted,
)
from seq2seq.network.mixer import SelfMixer
from seq2seq.network.model import (
    Decoder,
    DecoderLayer,
    EmptySlot,
    Encoder,
    EncoderLayer,
    FeedForward,
    Seq2Seq,
    Sublayer,
)
from seq2seq.network.pooling import Pooling, stage_begins
from seq2seq.network.weight_blocks import blocks_of
from seq2seq.settings.classes import mixers_of, targets_of
from seq2seq.settings.declare import read_section
from seq2seq.settings.model import WIDEST, ModelSettings

# Entries of a model's settings.
_NEEDED = ("model", "mixer", "src_vocab_size", "tgt_vocab_size", "pad_id", "joint")
ModuleT = TypeVar("ModuleT", bound=nn.Module)


class Adaptable(Protocol):
    """Optional attributes of a mixer's class, by which it adapts its constructor arguments `values`."""

    length_arguments: tuple[str, ...]
    """Constructor arguments that bound the length of a sequence, such as "max_len"."""

    @staticmethod
    def grid_values(values: Mapping[str, Any], columns: int) -> dict[str, Any]:
        """Return the arguments for a source that fills a grid of `columns`, row by row."""
        ...

    @staticmethod
    def portable_values(values: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments for any machine; the default is to drop a demand for Triton kernels (`backend`)."""
        ...

    @staticmethod
    def shortened_values(values: Mapping[str, Any], factor: int) -> dict[str, Any]:
        """Return a cross mixer's arguments for a memory that is `factor` times shorter than the source."""
        ...


def decodes(mixer: type[SelfMixer[Any]]) -> bool:
    """Return True if a class has its own `empty_state` and `step`, which decoding needs."""
    return mixer.empty_state is not SelfMixer.empty_state and mixer.step is not SelfMixer.step


class Uninitialized(TorchFunctionMode):
    """Context in which modules are built without initializing their parameters, such as before loading them.

    Buffers have their values, since a checkpoint need not hold them.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (Tensor.normal_, Tensor.uniform_) or getattr(func, "__module__", "") == nn.init.__name__:
            tensor = args[0] if args else kwargs["tensor"]
            # Also a part of a parameter, and what has no data
            if tensor.is_meta or isinstance(tensor if tensor._base is None else tensor._base, nn.Parameter):
                return tensor
        return func(*args, **kwargs)


@contextmanager
def on_meta_device() -> Iterator[None]:
    """Build modules on torch's meta device, with shapes but no data, without initializing their weights."""
    # Random numbers on the meta device would load torch's compiler, which takes seconds
    with torch.device("meta"), Uninitialized():
        yield


def build_model(config: Mapping[str, Any], *, trust: Sequence[str] = (), portable: bool = False) -> Seq2Seq:
    """Build a model from its settings.

    Args:
        config: {"model", "mixer", "src_vocab_size", "tgt_vocab_size", "pad_id", "joint"}, with the resolved sections
            `model` and `mixer` of conf/. For a source of images also "patches": {"height", "width", "size", "bits",
            "channels"} (see `seq2seq.images.lines`), for words with factors "factors", their numbers of values.
        trust: Packages, besides this one, whose mixers may be built.
        portable: Build for any machine, without requirements of the training machine such as Triton.

    Raises:
        ValueError: A setting is wrong (TargetError for a forbidden `_target_`).
    """
    if missing := [name for name in _NEEDED if name not in config]:
        raise ValueError(
            f"the model's settings lack {', '.join(missing)}: seq2seq.compose makes the sections model and mixer, and "
            "a tokenizer has the others as attributes"
        )
    model = read_section(ModelSettings, config["model"], "model")
    _check_vocabularies(config)
    # Check all targets, also of unused kinds, before the first import
    for target in targets_of(config["mixer"]):
        require_trusted(target, trust)
    builder = _Builder(model, config, trust=trust, portable=portable)
    src_table, tgt_table = _tables(model, config)
    sizes = config.get("factors")
    encoder = builder.encoder(FactorTable(pieces=src_table, sizes=sizes) if sizes else src_table)
    if model.decoder_layers == 0:
        output = _untied_output(config["tgt_vocab_size"], encoder.out_dim)
        return Seq2Seq(encoder=encoder, decoder=class_decoder(encoder.out_dim), output=output)
    decoder = builder.decoder(tgt_table, memory_dim=encoder.out_dim)
    return Seq2Seq(encoder=encoder, decoder=decoder, output=_output(model, tgt_table, decoder.out_dim))


def build_self_mixer(
    values: Mapping[str, Any], *, dim: int, causal: bool, where: str = "encoder", trust: Sequence[str] = ()
) -> SelfMixer[Any]:
    """Build one self mixer from one layer's target and arguments.

    Args:
        values: `_target_` and constructor arguments.
        where: The slot, for errors.
        trust: See `build_model`.
    """
    mixer, path = class_of(values, where, trust), f"mixer.{where}"
    return make_mixer(mixer, checked_values(mixer, values, path), path, dim=dim, causal=causal)


def bounds(config: Mapping[str, Any], *, trust: Sequence[str] = ()) -> dict[str, int]:
    """Return the settings that bound the length of a sequence on either side, and their values.

    They are model.max_len for learned positions, and the `length_arguments` of mixers.
    """
    model = config["model"]
    # Without src_positions, both sides use `positions`
    learned = "learned" in (model["positions"], model.get("src_positions"))
    result = {"model.max_len": model["max_len"]} if learned else {}
    for slot, path, values in mixers_of(config["mixer"], used=True):
        per_layer = values.get("per_layer") or {}  # null in YAML is None
        mixer = class_of(values, slot, trust)
        for name in getattr(mixer, "length_arguments", ()):
            # The shortest layer limits the stack
            if name in per_layer:
                # Layers with null have no limit
                if lengths := [each for each in per_layer[name] if each is not None]:
                    result[f"{path}.per_layer.{name}"] = min(lengths)
            elif values.get(name) is not None:
                result[f"{path}.{name}"] = values[name]
    return result


def grid_of(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return rows and columns of a source that fills a grid row by row, as the patches of an image do; else None."""
    patches = config.get("patches")
    return (patches["height"] // patches["size"], patches["width"] // patches["size"]) if patches else None


def max_positions(config: Mapping[str, Any], *, trust: Sequence[str] = ()) -> int | None:
    """Return the length of the longest sequence that the model takes on either side; None without a limit."""
    return min(bounds(config, trust=trust).values(), default=None)


class _Builder:
    """Builds the encoder and the decoder of one model."""

    def __init__(
        self, model: ModelSettings, config: Mapping[str, Any], *, trust: Sequence[str], portable: bool
    ) -> None:
        self.model = model
        self.slots: Mapping[str, Any] = config["mixer"]
        self.grid = grid_of(config)
        self.trust = trust
        self.portable = portable

    def encoder(self, table: Any) -> Encoder:
        """Build the encoder on the source's table."""
        # Presets with small mixers add layers, so that models have about the same size
        extra = self.slots.get("extra_encoder_layers", 0)
        depth = self.model.encoder_layers + extra
        if depth < 1:
            raise ValueError(
                f"mixer.extra_encoder_layers {extra} leaves {depth} encoder layers; raise it by {1 - depth} or more"
            )
        # The order in which modules are built decides which random numbers they start from
        embedding = self._embedding(table, self._positions(self.model.src_positions or self.model.positions))
        layers = []
        dim = self.model.dim
        grid = self.grid
        stride = self.model.encoder_pooling
        growth = self.model.encoder_growth
        ffn_dim = self.model.ffn_dim
        poolings: dict[int, Pooling] = {}
        widenings: dict[int, nn.Linear] = {}
        # The output of a layer is as wide as the input of the next
        for layer, begins in enumerate(self._stages(depth)):
            if begins:
                poolings[layer] = Pooling(grid, stride)
                grid = grid and (grid[0] // stride, grid[1] // stride)
            if begins and growth > 1:
                widenings[layer] = nn.Linear(dim, dim * growth, bias=False)
                nn.init.xavier_uniform_(widenings[layer].weight)
                dim *= growth
                ffn_dim *= growth
            mixer = self._mixer("encoder", layer, depth, columns=grid and grid[1], dim=dim, causal=False)
            mix = EmptySlot(dim=dim) if mixer is None else self._sublayer(mixer, dim, mixer.out_dim)
            layers.append(EncoderLayer(mix=mix, transform=self._feed_forward(mix.out_dim, ffn_dim)))
            dim = mix.out_dim
        final_norm = self.model.norm == "pre"
        return Encoder(
            embedding=embedding, layers=layers, final_norm=final_norm, poolings=poolings, widenings=widenings
        )

    def _stages(self, depth: int) -> list[bool]:
        """Return, for each layer of the encoder, whether a new stage begins there."""
        stages = self.model.encoder_stages
        if stages > depth:
            raise ValueError(
                f"model.encoder_stages {stages} are more than the {depth} encoder layers; lower it, or raise "
                "model.encoder_layers"
            )
        stride = self.model.encoder_pooling
        if self.grid:
            rows, columns = self.grid
            if rows % stride ** (stages - 1) or columns % stride ** (stages - 1):
                raise ValueError(
                    f"model.encoder_stages {stages} divide a grid of {rows} x {columns} patches {stages - 1} times by "
                    f"{stride}, which leaves no whole number; lower it or model.encoder_pooling, or change "
                    "tokenizer.patches.size"
                )
        if (width := self.model.dim * self.model.encoder_growth ** (stages - 1)) > WIDEST:
            raise ValueError(
                f"model.encoder_growth {self.model.encoder_growth} makes the last of {stages} stages {width} wide, "
                f"more than {WIDEST}; lower it, model.encoder_stages or model.dim"
            )
        return stage_begins(depth, stages)

    def decoder(self, table: nn.Embedding, memory_dim: int) -> Decoder:
        """Build the decoder on the target's table."""
        if not self.slots.get("cross"):
            raise ValueError("mixer.cross is empty, but a decoder must read the source; set e.g. mixer/cross=attention")
        layers = []
        dim = self.model.dim
        depth = self.model.decoder_layers
        # Each stage but the first shortens a line, or both sides of a grid
        stride = self.model.encoder_pooling
        shorter = (stride**2 if self.grid else stride) ** (self.model.encoder_stages - 1)
        for layer in range(depth):
            mixer = self._mixer("decoder", layer, depth, dim=dim, causal=True)
            if mixer is not None and not decodes(type(mixer)):
                name = type(mixer).__name__
                raise ValueError(f"mixer.decoder: {name} is causal, so it must define empty_state and step")
            mix = EmptySlot(dim=dim) if mixer is None else self._sublayer(mixer, dim, mixer.out_dim)
            cross = self._mixer("cross", layer, depth, shorter=shorter, dim=mix.out_dim, memory_dim=memory_dim)
            transform = self._feed_forward(cross.out_dim, self.model.ffn_dim)
            read = self._sublayer(cross, mix.out_dim, cross.out_dim)
            layers.append(DecoderLayer(mix=mix, read=read, transform=transform))
            dim = cross.out_dim
        # Built after the layers, unlike the encoder's embedding: the order decides the initial random numbers
        embedding = self._embedding(table, self._positions(self.model.positions))
        return Decoder(embedding=embedding, layers=layers, final_norm=self.model.norm == "pre")

    def _mixer(
        self, slot: str, layer: int, depth: int, *, columns: int | None = None, shorter: int = 1, **sizes: Any
    ) -> Any:
        """Build the mixer of one layer; None if the slot is empty.

        Args:
            columns: Columns of the grid that the source fills, if any.
            shorter: Number of source positions for each position of the memory.
        """
        if not self.slots.get(slot):
            return None
        path, own = layer_slot(self.slots[slot], layer, depth, f"mixer.{slot}")
        values = layer_values(own, layer, depth, path)
        mixer: Any = class_of(values, slot, self.trust)
        values = checked_values(mixer, values, path, own.get("per_layer") or {})
        # The mixer's class may adapt its arguments to any machine and to the source, see `Adaptable`
        if self.portable:
            values = getattr(mixer, "portable_values", portable)(values)
        if columns and hasattr(mixer, "grid_values"):
            values = mixer.grid_values(values, columns)
        if shorter > 1 and hasattr(mixer, "shortened_values"):
            values = mixer.shortened_values(values, shorter)
        return make_mixer(mixer, values, path, **sizes)

    def _feed_forward(self, dim: int, ffn_dim: int) -> Sublayer[FeedForward] | EmptySlot:
        model = self.model
        if not ffn_dim:
            return EmptySlot(dim=dim)
        dropout = model.activation_dropout
        ffn = FeedForward(dim=dim, ffn_dim=ffn_dim, activation=model.activation, dropout=dropout)
        return self._sublayer(ffn, dim, dim)

    def _sublayer(self, f: ModuleT, dim: int, out_dim: int) -> Sublayer[ModuleT]:
        model = self.model
        return Sublayer(f=f, dim=dim, out_dim=out_dim, norm=model.norm, dropout=model.dropout, residual=model.residual)

    def _embedding(self, table: Any, positions: nn.Module | None) -> Embedding:
        # Rows of a table start small, but outputs of a projection do not
        scale = self.model.scale_embedding and not isinstance(table, PatchProjection)
        return Embedding(table=table, positions=positions, dropout=self.model.dropout, scale=scale)

    def _positions(self, kind: str) -> nn.Module | None:
        if kind != "grid":
            return make_positions(kind, dim=self.model.dim, max_len=self.model.max_len)
        if not self.grid:
            raise ValueError("model.src_positions=grid is for images (tokenizer=patches); choose another")
        return GridPositions(dim=self.model.dim, width=self.grid[1])


def _tables(model: ModelSettings, config: Mapping[str, Any]) -> tuple[Any, nn.Embedding]:
    dim, pad_id = model.dim, config["pad_id"]
    if model.decoder_layers == 0 and model.tie != "none":
        raise ValueError(
            f"model.tie={model.tie}: a classifier (model.decoder_layers=0) has no table of the target to share; set "
            "model.tie=none"
        )
    if patches := config.get("patches"):
        if model.tie == "all":
            raise ValueError("model.tie=all: an image has no table to share with the target; set model.tie=target")
        channels = patches.get("channels", 1)
        src: Any = PatchProjection(dim=dim, size=patches["size"], bits=patches["bits"], channels=channels)
    else:
        src = make_table(config["src_vocab_size"], dim, pad_id)
    if model.tie != "all":
        return src, make_table(config["tgt_vocab_size"], dim, pad_id)
    if config["joint"] and config["src_vocab_size"] != config["tgt_vocab_size"]:
        raise ValueError(
            f"a joint vocabulary has one size, not {config['src_vocab_size']} for the source and "
            f"{config['tgt_vocab_size']} for the target; set tokenizer.joint=false and model.tie=target"
        )
    if not config["joint"]:
        raise ValueError(
            "model.tie=all shares one table between source and target, but their vocabularies are separate; "
            "set tokenizer.joint=true or model.tie=target"
        )
    return src, src  # one module, shared by both sides and the output


def _output(model: ModelSettings, table: nn.Embedding, readout_dim: int) -> nn.Linear:
    if model.tie == "none":
        return _untied_output(table.num_embeddings, readout_dim)
    if readout_dim != model.dim:
        raise ValueError(f"the output layer reads {readout_dim} numbers, the table has {model.dim}; set model.tie=none")
    output = nn.Linear(readout_dim, table.num_embeddings, bias=model.output_bias)  # weight (V, readout_dim)
    output.weight = table.weight  # one parameter
    if output.bias is not None:
        nn.init.zeros_(output.bias)
    return output


def _untied_output(vocab_size: int, readout_dim: int) -> nn.Linear:
    output = nn.Linear(readout_dim, vocab_size)
    nn.init.xavier_uniform_(output.weight)
    nn.init.zeros_(output.bias)
    return output


def _check_vocabularies(config: Mapping[str, Any]) -> None:
    for key in ("src_vocab_size", "tgt_vocab_size"):
        if type(config[key]) is not int or config[key] < 1:
            raise ValueError(f"{key} is {config[key]!r}; choose a whole number from 1")
    pad = config["pad_id"]
    if type(pad) is not int or not 0 <= pad < config["tgt_vocab_size"]:
        raise ValueError(f"pad_id is {pad!r}; choose a whole number below tgt_vocab_size={config['tgt_vocab_size']}")
    if any(type(size) is not int or size < 1 for size in config.get("factors", ())):
        raise ValueError(f"factors is {config['factors']!r}; give numbers of values, whole numbers from 1")
    if type(config["joint"]) is not bool:
        raise ValueError(f"joint is {config['joint']!r}; choose true or false")


def hidden_matrices(model: Seq2Seq) -> dict[Tensor, tuple[int, ...]]:
    """Return the weights of all hidden linear layers, each with the output sizes of the matrices in it (`blocks_of`).

    The output layer and the encoder's embedding are not hidden. Weights with a single row or column are vectors and
    are left out.
    """
    outside = {model.output, *model.encoder.embedding.modules()}
    layers = [each for each in model.modules() if isinstance(each, nn.Linear) and each not in outside]
    return {layer.weight: blocks_of(layer) for layer in layers if min(layer.weight.shape) > 1}
