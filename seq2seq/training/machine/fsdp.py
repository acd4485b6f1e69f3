"""Shard weights, gradients and optimizer state over the ranks (FSDP2), and gather them for decoding and checkpoints."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from seq2seq.network.model import Seq2Seq
from seq2seq.settings.trainer import TrainerSettings
from seq2seq.training.machine.ddp import ReplicatedStrategy


def shard(model: Seq2Seq, mesh: DeviceMesh) -> None:
    """Shard every parameter over the ranks of `mesh` along one dimension, in place.

    A layer's weights are gathered while it runs, forward and backward. All other weights (tables, output, last norms)
    stay gathered from the beginning of `features` to the end of the backward pass, because the loss reads the output
    layer's weight.

    Reference:
        Zhao et al. 2023, PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel.
    """
    place = functools.partial(_cut, parts=mesh.size())
    for layer in (*model.encoder.layers, *model.decoder.layers):
        fully_shard(layer, mesh=mesh, reshard_after_forward=True, shard_placement_fn=place)
    # Layers first: each becomes a separate group, and the model's group takes the remaining parameters.
    fully_shard(model, mesh=mesh, reshard_after_forward=False, shard_placement_fn=place)
    # FSDP warns of a `project` that returns views, which would matter only if a context were written to.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
    # FSDP gathers weights when a module is called, but these methods are called by name.
    for layer in model.decoder.layers:
        register_fsdp_forward_method(layer, "project")
    register_fsdp_forward_method(model, "features")


def _cut(parameter: nn.Parameter, *, parts: int) -> Shard:
    """Choose the first dimension that is long enough; FSDP2 requires even parts of every dimension but the first."""
    # A small kernel has fewer rows than there are ranks, and is cut along another dimension.
    even = (dim for dim, size in enumerate(parameter.shape) if dim and size % parts == 0)
    first = parameter.dim() > 0 and parameter.shape[0] >= parts
    return Shard(0 if first else next(even, 0))


def is_sharded(model: nn.Module) -> bool:
    """Return True if the model is sharded with FSDP2."""
    return isinstance(model, FSDPModule)


def make_whole(model: nn.Module) -> None:
    """Gather all weights of a sharded `model` on every rank until `make_parts`; all ranks must call this together.

    In between, each rank may run any part of the model any number of times, without waiting for other ranks.
    """
    if not isinstance(model, FSDPModule):
        return
    # Else FSDP takes the module that runs first for the outermost one.
    fully_shard.state(model)._lazy_init()  # type: ignore[attr-defined]
    for module in _groups(model):
        # Gather the weights, and keep them however often the module runs.
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()


def make_parts(model: nn.Module) -> None:
    """Undo `make_whole`."""
    if not isinstance(model, FSDPModule):
        return
    # Else the next backward pass would prefetch weights in the order of the last calls, which differs by rank.
    model.reset_iter_state()
    for module in _groups(model):
        # As in `shard`: layers reshard after their forward pass, and the root keeps its weights.
        module.set_reshard_after_forward(module is not model, recurse=False)


def _groups(model: nn.Module) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def gathered(value: Any, *, keep: bool = True, _found: dict[int, Tensor | None] | None = None) -> Any:
    """Gather the sharded tensors in nested dicts and lists to the CPU; all ranks must call this together.

    A tensor that occurs several times stays one tensor.

    Args:
        keep: False replaces sharded tensors by None, to save memory on a rank that writes no checkpoint.
    """
    found: dict[int, Tensor | None] = {} if _found is None else _found
    # All ranks visit tensors in the same order, because `full_tensor` below is a collective operation.
    if isinstance(value, Mapping):
        return {key: gathered(each, keep=keep, _found=found) for key, each in value.items()}
    if isinstance(value, list):
        return [gathered(each, keep=keep, _found=found) for each in value]
    if not isinstance(value, DTensor):
        return value.detach() if isinstance(value, Tensor) else value
    if id(value) not in found:
        # By identity: a tied table is gathered once, and stays tied in the file.
        whole: Tensor = value.full_tensor()  # type: ignore[reportAttributeAccessIssue]
        found[id(value)] = whole.detach().cpu() if keep else None
    return found[id(value)]


def part_like(whole: Tensor, like: Tensor) -> Tensor:
    """Return this rank's shard of `whole` if `like` is sharded, else `whole`; every rank has the whole tensor."""
    if not isinstance(like, DTensor) or isinstance(whole, DTensor):
        return whole
    # src_data_rank=None: every rank cuts its copy, without communication.
    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def load_weights(module: nn.Module, weights: Mapping[str, Tensor], *, strict: bool = True) -> None:
    """Load whole `weights` into a module, sharded or not."""
    own = module.state_dict(keep_vars=True)
    parts = {name: part_like(whole, own[name]) if name in own else whole for name, whole in weights.items()}
    module.load_state_dict(parts, strict=strict)


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load a whole `state` into an optimizer, whose parameters may be sharded."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    # A state names parameters by number, in the order of the groups.
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parts: dict[int, dict[str, Any]] = {}
    for number, owner in zip(numbers, parameters, strict=True):
        if number in state["state"]:
            # Moments have the parameter's shape; counters are whole on every rank
            parts[number] = {
                key: part_like(value, owner) if isinstance(value, Tensor) and value.shape == owner.shape else value
                for key, value in state["state"][number].items()
            }
    optimizer.load_state_dict({**state, "state": parts})


def make_strategy(settings: TrainerSettings) -> str | ReplicatedStrategy | ShardedStrategy:
    """Return the strategy for `L.Trainer`: a copy of the model on each rank (DDP), or one sharded model (FSDP2)."""
    if settings.processes == 1:
        return "auto"
    return ShardedStrategy(processes=settings.processes) if settings.sharded else ReplicatedStrategy()


class ShardedStrategy(ModelParallelStrategy):
    """Lightning's strategy for sharded models, with the same checkpoint as every other strategy: one whole file.

    Lightning's own strategy would write a tied table once for each of its names, and bypass our `CheckpointIO`.
    """

    def __init__(self, *, processes: int) -> None:
        super().__init__(data_parallel_size=processes, tensor_parallel_size=1, save_distributed_checkpoint=False)

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        """Restore at the same point as other strategies."""
        return False

    @property
    def lightning_restore_optimizer(self) -> bool:
        """Restore through `load_optimizer_state_dict`."""
        return True

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the whole weights on rank 0, and nothing on other ranks."""
        assert self.lightning_module is not None
        # Without keep_vars a tied table would be two detached tensors, and would be gathered twice.
        whole = gathered(self.lightning_module.state_dict(keep_vars=True), keep=self.is_global_zero)
        return whole if self.is_global_zero else {}

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load this rank's shard of whole weights."""
        assert self.lightning_module is not None
        load_weights(self.lightning_module, checkpoint["state_dict"], strict=strict)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the whole state on rank 0, and nothing on other ranks."""
        whole = gathered(optimizer.state_dict(), keep=self.is_global_zero)
        return whole if self.is_global_zero else {}

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load this rank's shard of a whole state."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            load_optimizer(optimizer, state)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Read the checkpoint with our `CheckpointIO`."""
        return self.checkpoint_io.load_checkpoint(checkpoint_path)
