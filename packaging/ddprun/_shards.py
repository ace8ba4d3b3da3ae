"""Keeps copies of each rank's shards of the state on another rank, for elastic.State(..., replicate=True)."""
import copy
import os
import pickle
import sys
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.distributed

from .elastic import _broadcast, _has_state, _mapped, _without_params

dist: Any = torch.distributed

_PIECE = 32 << 20  # bytes of a message


class _Leaf:
    """Stands for a tensor, or a rank's shard of one."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.sharded = _is_sharded(tensor)
        local = _local(tensor)
        self.shape, self.dtype = tuple(local.shape), local.dtype


class _Shard:
    """A rank's shard of a DTensor."""

    def __init__(self, local: torch.Tensor) -> None:
        self.local = local


class _Packed:
    """Nested dicts and lists with tensors, as bytes: the tensors one after the other, and everything else pickled."""

    def __init__(self, layout: torch.Tensor, data: torch.Tensor) -> None:
        self.layout, self.data = layout, data

    @staticmethod
    def of(value: Any) -> "_Packed":
        tensors: List[torch.Tensor] = []

        def leaf(tensor: torch.Tensor) -> _Leaf:
            tensors.append(_local(tensor).reshape(-1).view(torch.uint8))
            return _Leaf(tensor)

        layout = pickle.dumps(_mapped(value, torch.Tensor, leaf))
        data = torch.cat(tensors) if tensors else torch.empty(0, dtype=torch.uint8)
        return _Packed(torch.frombuffer(bytearray(layout), dtype=torch.uint8), data)

    def value(self) -> Any:
        begin = 0

        def tensor(leaf: _Leaf) -> Any:
            nonlocal begin
            first, begin = begin, begin + torch.Size(leaf.shape).numel() * leaf.dtype.itemsize
            local = self.data[first:begin].clone().view(leaf.dtype).view(leaf.shape)  # a clone is aligned
            return _Shard(local) if leaf.sharded else local

        return _mapped(pickle.loads(bytes(self.layout.tolist())), _Leaf, tensor)


class ShardsLost(RuntimeError):
    """Raised on all ranks: there is no step from which they could go on."""


class Shards:
    """The shards of this rank and of another one, after the last two steps."""

    def __init__(self) -> None:
        self.why_not = ""  # why no copies are kept
        self._held: Dict[Tuple[int, int], _Packed] = {}  # by step and by the rank whose shard it is
        self._common: Dict[int, Dict[str, Any]] = {}  # by step: what is the same on all ranks
        self._objects: Dict[str, Any] = {}  # those of this round
        self._parameters: Dict[str, List[torch.Tensor]] = {}
        self._agreed: Optional[int] = None  # the step that this round goes on from
        self._group: Any = None
        self._distance = 1  # to the rank whose shard this one keeps

    def agree(self, survivor: bool, timeout: Any) -> Optional[Tuple[int, Dict[str, Any]]]:
        """The newest step for which every rank's shard is known, and the values at that step. None: this is a new job. Every rank calls this first
        in a round.

        Raises ShardsLost if there is no such step.
        """
        self._agreed = None
        self._group = dist.new_group(backend="gloo", timeout=timeout)
        rank, world = dist.get_rank(), dist.get_world_size()
        everyone: List[Any] = [None] * world
        node = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
        dist.all_gather_object(everyone, (survivor, list(self._held), list(self._common), node), group=self._group)
        largest = max(one[3] for one in everyone)
        self._distance = largest if 2 * largest <= world else 1  # on another node
        if not any(one[0] for one in everyone):
            return None
        holders: Dict[Tuple[int, int], List[int]] = {}
        for i, (_, held, _, _) in enumerate(everyone):
            for key in held:
                holders.setdefault(key, []).append(i)
        sources = {step: i for i in reversed(range(world)) for step in everyone[i][2]}
        step = max((step for step in sources if all((owner, step) in holders for owner in range(world))), default=None)
        if step is None:
            raise ShardsLost(
                "elastic: a rank's shard was lost, and its copy too (or no commit() had made a copy yet): all ranks restart from your checkpoint"
            )
        said = []
        for owner in range(world):
            ranks = holders[owner, step]
            if owner in ranks:
                continue
            said.append(f"the shard of rank {owner} is from its copy on rank {ranks[0]}")
            packed = self._exchange(self._held[owner, step] if rank == ranks[0] else None, owner, ranks[0] if rank == owner else None)
            if packed is not None:
                self._held[owner, step] = packed
        if any(step not in one[2] for one in everyone):
            common = _broadcast(self._common[step] if rank == sources[step] else None, sources[step])
            self._common[step] = common
        # A later step may be repeated with different bits, so no rank leaves before all have forgotten that step.
        self._held = {(rank, step): self._held[rank, step]}
        self._common = {step: self._common[step]}
        self._agreed = step
        self._copy(step)
        dist.barrier(group=self._group)
        if rank == 0 and said:
            print("; ".join([f"elastic: going on after step {step}, for which every shard is known", *said]), file=sys.stderr, flush=True)
        return step, copy.deepcopy(self._common[step]["values"])

    def leave(self) -> None:
        """Lets go of the round's groups. A group closes its connections only when nothing refers to it; then the ranks that
        wait for this one leave."""
        self._objects, self._parameters, self._group = {}, {}, None

    def restore(self, objects: Dict[str, Any]) -> bool:
        """Takes this round's objects, and gives them the state of the agreed step if there is one."""
        if self._objects:
            raise RuntimeError("elastic: restore() was called a second time in this round: give it all modules and optimizers at once")
        self._objects, self._parameters = objects, {name: list(one.parameters()) for name, one in objects.items() if _is_module(one)}
        known = {id(parameter) for parameters in self._parameters.values() for parameter in parameters}
        for name, one in objects.items():
            if not _has_state(one):
                raise TypeError(f"elastic: restore() needs objects with state_dict() and load_state_dict(), but {name} is a {type(one).__name__}")
            if any(id(parameter) not in known for parameter in _parameters_of(one)):
                raise TypeError(f"elastic: {name} has parameters that do not belong to any of the modules given to restore()")
        self.why_not = next(filter(None, (_why_not(name, one) for name, one in objects.items())), "")
        if self._agreed is None:
            return False
        if self.why_not:
            raise RuntimeError(f"elastic: {self.why_not}, but copies were kept before this round")
        rank, step = dist.get_rank(), self._agreed
        common = self._common[step]
        kept = self._held[rank, step].value()
        if sorted(objects) != sorted([*common["small"], *kept]):
            raise RuntimeError(f"elastic: restore() got {sorted(objects)}, which differs from what it got in the previous round")
        with torch.no_grad():
            for name, one in objects.items():
                if _is_module(one):
                    _fill(name, self._parameters[name], common["whole"].get(name) or kept[name]["parameters"])
                    _fill(name, list(one.buffers()), kept[name]["buffers"])
                elif name in common["groups"]:
                    _restore_optimizer(name, one, kept[name])
        for name, small in common["small"].items():  # last, because a scheduler's constructor has changed the rates
            objects[name].load_state_dict(copy.deepcopy(small))
        for name, groups in common["groups"].items():
            for group, settings in zip(objects[name].param_groups, groups):
                group.update(copy.deepcopy(settings))
        return True

    def commit(self, step: int, values: Dict[str, Any]) -> None:
        """Keeps the state after a step, and sends this rank's shard to the one that keeps its copy."""
        if not self._objects:
            raise RuntimeError("elastic: commit() before restore(), which State(..., replicate=True) needs in each round")
        if self.why_not:
            return
        # All ranks have the copies of the previous step, because all have been in a collective since then.
        self._held = {key: packed for key, packed in self._held.items() if key[1] >= step - 1}
        self._common = {kept: common for kept, common in self._common.items() if kept >= step - 1}
        shard: Dict[str, Any] = {}
        common: Dict[str, Any] = {"values": copy.deepcopy(values), "small": {}, "groups": {}, "whole": {}}
        with torch.no_grad():
            for name, one in self._objects.items():
                if _is_module(one):
                    parameters = self._parameters[name]
                    whole = parameters and not any(map(_is_sharded, parameters))  # DistributedDataParallel's, the same on all ranks
                    if whole:
                        common["whole"][name] = [parameter.detach().clone() for parameter in parameters]
                    shard[name] = {"parameters": [] if whole else parameters, "buffers": list(one.buffers())}
                elif isinstance(one, torch.optim.Optimizer):
                    shard[name] = _state_of(name, one)
                    common["groups"][name] = [_mapped(_without_params(group), torch.Tensor, torch.clone) for group in one.param_groups]
                else:
                    common["small"][name] = _mapped(copy.deepcopy(one.state_dict()), torch.Tensor, torch.clone)
            self._held[dist.get_rank(), step], self._common[step] = _Packed.of(shard), common
        self._copy(step)

    def _copy(self, step: int) -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        if world > 1:
            owner = (rank + self._distance) % world
            packed = self._exchange(self._held[rank, step], (rank - self._distance) % world, owner)
            assert packed is not None
            self._held[owner, step] = packed

    def _exchange(self, packed: Optional[_Packed], to: int, source: Optional[int]) -> Optional[_Packed]:
        """Sends and receives at the same time, over a separate group."""
        mine = [] if packed is None else [packed.layout, packed.data]
        sizes = torch.zeros(0 if source is None else 2, dtype=torch.int64)
        self._move([torch.tensor([part.numel() for part in mine], dtype=torch.int64)], to, [sizes], source)
        theirs = [torch.empty(size, dtype=torch.uint8) for size in sizes.tolist()]
        self._move(mine, to, theirs, source)
        return _Packed(*theirs) if theirs else None

    def _move(self, out: List[torch.Tensor], to: int, into: List[torch.Tensor], source: Optional[int]) -> None:
        works = [dist.irecv(piece, source, group=self._group) for piece in _pieces(into)]
        works += [dist.isend(piece, to, group=self._group) for piece in _pieces(out)]
        for work in works:
            work.wait()


def _pieces(tensors: List[Any]) -> List[torch.Tensor]:
    return [piece for tensor in tensors for piece in tensor.split(_PIECE) if piece.numel() > 0]


def _is_module(one: Any) -> bool:
    return isinstance(one, torch.nn.Module)


def _is_sharded(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "device_mesh")


def _local(tensor: Any) -> torch.Tensor:
    local: torch.Tensor = tensor.detach()
    return local.to_local() if _is_sharded(local) else local  # type: ignore[attr-defined]


def _optimizer_of(one: Any) -> Any:
    """For a ZeroRedundancyOptimizer, the inner optimizer of this rank's parameters: the outer one has no state."""
    return one.optim if type(one).__name__ == "ZeroRedundancyOptimizer" else one


def _parameters_of(one: Any) -> List[torch.Tensor]:
    return [parameter for group in one.param_groups for parameter in group["params"]] if isinstance(one, torch.optim.Optimizer) else []


def _state_of(name: str, one: Any) -> List[Any]:
    optimizer = _optimizer_of(one)
    parameters = _parameters_of(optimizer)
    if sum(parameter in optimizer.state for parameter in parameters) != len(optimizer.state):
        raise RuntimeError(f"elastic: {name} has state that belongs to no parameter, which replicate=True cannot keep")
    states = []
    for parameter in parameters:
        state = dict(optimizer.state[parameter]) if parameter in optimizer.state else None
        for value in state.values() if state else ():
            if isinstance(value, torch.Tensor) and _is_sharded(value) and _spec(value) != _spec(parameter):
                raise RuntimeError(f"elastic: {name} shards its state differently from the parameters, which replicate=True cannot keep")
        states.append((tuple(_local(parameter).shape), state))
    return states


def _spec(tensor: Any) -> Any:
    return (tensor.device_mesh, tensor.placements, tensor.shape) if _is_sharded(tensor) else None


def _restore_optimizer(name: str, one: Any, kept: List[Any]) -> None:
    optimizer = _optimizer_of(one)
    parameters: List[Any] = _parameters_of(optimizer)
    if [tuple(_local(parameter).shape) for parameter in parameters] != [shape for shape, _ in kept]:
        raise RuntimeError(f"elastic: {name} has different parameters on this rank than in the previous round")
    optimizer.state.clear()
    for parameter, (_, state) in zip(parameters, kept):

        def sharded(shard: _Shard, like: Any = parameter) -> Any:
            from torch.distributed.tensor import DTensor

            return DTensor.from_local(shard.local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride())

        if state is not None:
            optimizer.state[parameter] = _mapped(state, _Shard, sharded)


def _fill(name: str, tensors: List[torch.Tensor], kept: List[Any]) -> None:
    values = [one.local if isinstance(one, _Shard) else one for one in kept]
    if [(_local(one).shape, one.dtype) for one in tensors] != [(one.shape, one.dtype) for one in values]:
        raise RuntimeError(f"elastic: {name} has different parameters or buffers on this rank than in the previous round")
    for tensor, value in zip(tensors, values):
        _local(tensor).copy_(value)
        tensor.grad = None


def _why_not(name: str, one: Any) -> str:
    """Why no copies of this object's shards are kept. Empty if they are kept."""
    world = dist.get_world_size()
    if type(one).__name__ == "ZeroRedundancyOptimizer" and (one._overlap_with_ddp or one.world_size != world):
        return f"{name} overlaps with DistributedDataParallel, or covers only some of the ranks; replicate=True keeps no copies of such an optimizer"
    if not _is_module(one):
        return ""
    parts = list(one.modules())
    kinds = [{base.__name__ for base in type(part).__mro__} for part in parts]
    if any("FullyShardedDataParallel" in kind for kind in kinds):
        return f"{name} is FSDP1's FullyShardedDataParallel: replicate=True keeps no copies of its shards; use fully_shard()"
    if any(type(part).get_extra_state is not torch.nn.Module.get_extra_state for part in parts):
        return f"{name} has a get_extra_state(): replicate=True keeps no copies of such a module"
    tensors: List[Any] = [*one.parameters(), *one.buffers()]
    if any(tensor.device.type != "cpu" for tensor in tensors):
        return f"{name} is not on the CPU, and replicate=True keeps copies only of modules and optimizers on the CPU"
    for tensor in filter(_is_sharded, tensors):
        mesh = tensor.device_mesh
        if mesh.ndim != 1 or mesh.size() != world or not tensor.placements[0].is_shard() or not any("FSDPModule" in kind for kind in kinds):
            return f"{name} is on an HSDP or TP mesh, or only on some of the ranks; replicate=True keeps no copies of such a module"
    return ""
