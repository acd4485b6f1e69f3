"""Weights, gradients and the optimiser's state in parts, one a process (FSDP2), and whole again where they must be."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from seq2seq.model import Seq2Seq


def shard(model: Seq2Seq, mesh: DeviceMesh) -> None:
    """Leave each process of `mesh` its part of every parameter, cut along one dimension, in place.

    Zhao et al. 2023, 'PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel'. A layer's weights are whole
    while it runs, forward and backward; those outside layers (tables, output, last norms) from the beginning of
    `features` to the end of the backward pass, because the loss reads the output layer's weight itself.
    """
    place = functools.partial(_cut, parts=mesh.size())
    for layer in (*model.encoder.layers, *model.decoder.layers):
        fully_shard(layer, mesh=mesh, reshard_after_forward=True, shard_placement_fn=place)
    fully_shard(model, mesh=mesh, reshard_after_forward=False, shard_placement_fn=place)
    # It warns of a `project` that returns views; nobody writes into a context.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
    # FSDP gathers weights when a module is called; these are called by name.
    for layer in model.decoder.layers:
        register_fsdp_forward_method(layer, "project")
    register_fsdp_forward_method(model, "features")


def _cut(parameter: nn.Parameter, *, parts: int) -> Shard:
    """Along the first dimension that is as long as there are parts; FSDP2 wants any but the first cut evenly."""
    even = (dim for dim, size in enumerate(parameter.shape) if dim and size % parts == 0)
    first = parameter.dim() > 0 and parameter.shape[0] >= parts
    return Shard(0 if first else next(even, 0))


def is_sharded(model: nn.Module) -> bool:
    """Whether `shard` was here."""
    return isinstance(model, FSDPModule)


def make_whole(model: nn.Module) -> None:
    """Give every process all weights of a sharded `model`, until `make_parts`; all processes call it together.

    In between processes may run different parts of the model, differently often: none waits for another.
    """
    if not isinstance(model, FSDPModule):
        return
    # So that whichever module runs first is not taken for the outermost one.
    fully_shard.state(model)._lazy_init()  # type: ignore[attr-defined]
    for module in _groups(model):
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()


def make_parts(model: nn.Module) -> None:
    """Undo `make_whole`."""
    if not isinstance(model, FSDPModule):
        return
    # Also forgets what ran: the next backward pass would fetch weights ahead in that order, which differs by process.
    model.reset_iter_state()
    for module in _groups(model):
        module.set_reshard_after_forward(module is not model, recurse=False)


def _groups(model: nn.Module) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def gathered(value: Any, *, keep: bool = True, _found: dict[int, Tensor | None] | None = None) -> Any:
    """`value`, nested dicts and lists, with its sharded tensors whole and on the CPU; all processes call it together.

    A tensor that stands in several places stays one tensor. Without `keep` sharded tensors become None: a process
    that writes no checkpoint needs no memory for them.
    """
    found: dict[int, Tensor | None] = {} if _found is None else _found
    if isinstance(value, Mapping):
        return {key: gathered(each, keep=keep, _found=found) for key, each in value.items()}
    if isinstance(value, list):
        return [gathered(each, keep=keep, _found=found) for each in value]
    if not isinstance(value, DTensor):
        return value.detach() if isinstance(value, Tensor) else value
    if id(value) not in found:
        whole: Tensor = value.full_tensor()  # type: ignore[reportAttributeAccessIssue]
        found[id(value)] = whole.detach().cpu() if keep else None
    return found[id(value)]


def part_like(whole: Tensor, like: Tensor) -> Tensor:
    """This process's part of a `whole` tensor, that every process has, where `like` is sharded; else as it is."""
    if not isinstance(like, DTensor) or isinstance(whole, DTensor):
        return whole
    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def load_weights(module: nn.Module, weights: Mapping[str, Tensor], *, strict: bool = True) -> None:
    """`module.load_state_dict` for whole `weights`, whether or not the module is sharded."""
    own = module.state_dict(keep_vars=True)
    parts = {name: part_like(whole, own[name]) if name in own else whole for name, whole in weights.items()}
    module.load_state_dict(parts, strict=strict)


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """`optimizer.load_state_dict` for a whole `state`, whether or not its parameters are sharded."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    owners = dict(zip(numbers, parameters, strict=True))
    parts = {number: _parts(values, owners[number]) for number, values in state["state"].items()}
    optimizer.load_state_dict({**state, "state": parts})


def _parts(values: Mapping[str, Any], owner: Tensor) -> dict[str, Any]:
    """What is kept for the parameter `owner`; counters, which have no dimensions, are whole everywhere."""
    return {
        key: part_like(value, owner) if isinstance(value, Tensor) and value.shape == owner.shape else value
        for key, value in values.items()
    }
