"""For PyTorch programs: if a rank is lost, ddprun replaces only that rank, and the others keep their processes and their state.

>>> state = elastic.State(model=net, optimizer=optimizer, epoch=0, batch=0)
>>> @elastic.run(state)
... def train():                                    # called again in each round, with a process group that works
...     model = DistributedDataParallel(net)
...     for state.epoch in range(state.epoch, epochs):
...         for images, labels in state.batches(loader):
...             optimizer.zero_grad()
...             loss(model(images), labels).backward()
...             optimizer.step()
...             state.commit()                      # this step is done
>>> train()

ddprun --nproc-per-node=2 --recover=rank --max-restarts=10 --restart-on-codes=SIGKILL,SIGSEGV,SIGBUS train.py

When a rank is lost, the others leave `train` through an exception at their next collective or commit(), connect to the new process, and take the
state of the rank that has done the most steps. No step is lost, and none is done twice. Under torchrun, or without a launcher, `train` is called
once.
"""
import array
import contextlib
import copy
import ctypes
import datetime
import functools
import gc
import glob
import hashlib
import inspect
import io
import itertools
import json
import operator
import os
import pathlib
import pickle
import random
import signal
import socket
import stat
import struct
import sys
import textwrap
import threading
import time
import traceback
import types
import zlib
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, TypeVar, Union

import ddprun
import torch
import torch.distributed

dist: Any = torch.distributed  # the module does not export everything that its documentation lists

__all__ = ["RoundOver", "State", "run"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

_HINT_AFTER = 60.0  # seconds after which a rank that has not left its round says so
_PATIENCE_WITH_PEERS = 15.0  # seconds to wait, after a collective has failed, for ddprun to say why
_ABORT_AFTER = 0.3  # seconds; needed because a silent host does not close its connections
_STORE_PATIENCE = datetime.timedelta(seconds=5)  # for one try to reach a round's store
_STEPS_WITHOUT_COMMIT = 100  # in a round, after which rank 0 prints a line
_BUCKET = 32 << 20  # bytes per broadcast
_LOOK_EVERY = 0.002  # seconds between two looks at which ranks have arrived
_REMOVE_INIT = "remove your call of init_process_group, because elastic.run() makes a group in each round"


_OF_PEERS: Tuple[type, ...] = tuple(getattr(dist, name) for name in ("DistBackendError", "DistNetworkError", "DistStoreError") if hasattr(dist, name))


class RoundOver(Exception):
    """Another rank was lost. Ends the function, so that elastic.run() can call it again; do not swallow this exception."""


class State:
    """The state of a training run after a complete step; it is the same on all ranks.

    Objects with state_dict() and load_state_dict() (modules, optimizers, schedulers, scalers) are broadcast to new ranks. So is every other
    value, which must be small and picklable. All entries are attributes. `batch`, if given, counts the epoch's batches that are done.

    memory_every=N: every N steps, the node's first rank also copies the state to memory that ddprun holds, in case all ranks are lost
    or restarted; 0: never. The copy is written in the background. If the next copy is due before that is finished, it is skipped.

    replicate: for FSDP2 and ZeroRedundancyOptimizer, where each rank has a shard of the state: each commit() copies that shard to another rank.
    Modules and optimizers are then made in the function and given to restore(), and the State gets only plain values.

    Raises TypeError for a module that is wrapped for a process group: the group ends with its round, so wrap the module in the function.
    """

    def __init__(self, *, memory_every: int = 0, replicate: bool = False, **entries: Any) -> None:
        for name, entry in entries.items():
            if hasattr(type(self), name) or name.startswith("_"):
                raise TypeError(f"elastic.State: '{name}' is a name that State itself uses: choose another one")
            if type(entry).__name__ in ("DistributedDataParallel", "FullyShardedDataParallel"):
                raise TypeError(f"elastic.State: {name} is wrapped in {type(entry).__name__}: give the bare module, and wrap it in each round")
        self._objects = [name for name, entry in entries.items() if _has_state(entry)]
        self._values = [name for name in entries if name not in self._objects]
        self._commits = 0
        self._steps_since = 0  # steps of optimizers that have begun since the last commit
        self._rounds: Optional[_Rounds] = None
        self._memory = _Memory()
        self._memory_every = memory_every
        self._position: Optional[int] = None  # the batches of the epoch that are done once the current one is
        self._connected = False  # this process has been in a round
        self._show_at = 0.0  # time.monotonic() from which commit() reports the progress again
        self._looked = False  # commit() has looked, in this round, whether the state can go on in place
        self._hinted = False  # rank 0 has printed that there are steps without a commit
        # As they were at the last commit, because what follows may be half a step:
        self._kept: Dict[str, Any] = {}  # the values
        self._small: Dict[str, Any] = {}  # states of schedulers, scalers and the like, which may change between steps
        self._groups: List[Any] = []  # the optimizers' rates and other settings, which schedulers change
        self._slots: List[Tuple[Dict[str, Any], str]] = []  # where modules have their buffers
        self._layout: Dict[str, Tuple[str, str]] = {}  # parameters and optimizers: shapes, which a kept state must match, and types
        self._copies: List[torch.Tensor] = []  # of the buffers, because a forward pass changes them
        self._originals: List[torch.Tensor] = []  # the buffers that were copied
        # On accelerators, where the CPU does not wait for what it starts:
        self._accelerators: Optional[List[torch.device]] = None  # those that have parameters; None: not known yet in this round
        self._first: Optional[List[torch.Tensor]] = None  # the parameters when the round begins: DistributedDataParallel overwrites them
        self._captured = False  # a step is in a CUDA graph
        vars(self).update(entries)
        self._shards: Any = None
        if replicate:
            if memory_every > 0 or self._objects:
                also = "memory_every" if memory_every > 0 else self._objects[0]
                raise TypeError(f"elastic.State: replicate=True cannot be used with {also}: make modules and optimizers in the function, and give "
                                "them to restore()")
            from ._shards import Shards

            self._shards = Shards()
        self._optimizers = self._all(torch.optim.Optimizer)
        large = [*self._optimizers, *self._all(torch.nn.Module)]
        self._small_objects = [name for name in self._objects if not any(vars(self)[name] is one for one in large)]
        for optimizer in self._optimizers:
            optimizer.register_step_pre_hook(self._before_step)
            optimizer.register_step_post_hook(self._after_step)
        self._keep()

    @property
    def commits(self) -> int:
        """How many steps are done."""
        return self._commits

    def commit(self) -> None:
        """Declares this step done. Call it right after the last optimizer step, with no collective between them. Do not add parts to a module after
        the first commit() of a round.

        Raises RuntimeError outside of the function that elastic.run() calls; RoundOver if another rank was lost.
        """
        if self._rounds is None:
            raise RuntimeError("elastic: commit() outside of the function that elastic.run() calls")
        if self._steps_since == 0:  # a GradScaler skipped the step, perhaps because of arbitrary numbers
            self._wait()
        self._steps_since += 1  # until _keep() has all: a signal handler that calls save() would get parts of two steps
        self._commits += 1
        if self._position is not None:
            self.batch = self._position
        self._keep(look=not self._looked)
        if self._shards is not None:
            self._shards.commit(self._commits, self._kept)
        if self._memory_every > 0 and self._commits % self._memory_every == 0 and _Rounds.owns_memory():
            self._memory.keep(self._commits, self._payload)
        if not self._looked:  # the function may have moved or sharded the model
            self._looked = True
            self._rounds.announce(self)
        self._show_progress()
        self._rounds.check()

    def _show_progress(self) -> None:
        """Tells ddprun the step and the epoch, a few times a second, unless the program does so itself."""
        now = time.monotonic()
        if now < self._show_at or ddprun._reports_steps:
            return
        self._show_at = now + 0.2
        epoch = vars(self).get("epoch")
        ddprun._send_status({"step": self._commits, **({"epoch": epoch} if type(epoch) is int and epoch >= 0 else {})})

    def batches(self, loader: Any, seed: int = 0) -> Iterator[Any]:
        """Yields the batches of the epoch that are not done yet, from a DataLoader or another iterable. At the end, `batch` is 0 again.

        The order and the random numbers of a batch depend only on the seed, the rank, `epoch` and the batch's number: the set_epoch() of the
        loader or its sampler is called, and the generators of torch, random and NumPy are seeded before a batch is drawn and again before it is
        yielded. If a batch_sampler draws the batches, those that are done are not loaded again. If a rank was lost after the epoch's last batch,
        nothing is left to yield: the code after the loop runs again, without the loop's variables.
        """
        if "batch" not in self._values:
            raise RuntimeError("elastic: batches() needs State(..., batch=0)")
        epoch = int(getattr(self, "epoch", 0))
        samplers: List[Any] = [loader, getattr(loader, "sampler", None), getattr(getattr(loader, "batch_sampler", None), "sampler", None)]
        for sampler in samplers:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        done = int(self.batch)
        _seed(seed, epoch, -1)
        for number, batch in enumerate(_without_first(loader, done, seed, epoch), done):
            if self._rounds is not None:
                self._rounds.check()
            _seed(seed, epoch, number)
            self._position = number + 1
            yield batch
        self._position = None
        self.batch = 0

    def restore(self, **objects: Any) -> bool:
        """With replicate=True: gives the round's new modules, optimizers and schedulers the state of the last step. (This State already has the
        step's number and values.) Every rank calls it in each round, once it has made all of these objects. Returns False if there is no state, as in
        a new job; then load your checkpoint.

        Raises TypeError for an object that cannot be restored, RuntimeError if the objects are not those of the last round.
        """
        if self._shards is None or self._rounds is None:
            raise RuntimeError("elastic: restore() needs State(..., replicate=True), in the function that elastic.run() calls")
        restored: bool = self._shards.restore(objects)
        self._rounds.announce(self)
        return restored

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """On rank 0, writes the state of the last commit, for torch.load(). An existing file is replaced once the new one is complete.

        Raises RuntimeError between an optimizer's step and the end of the commit(), because the weights are then not those of the last commit; and
        with replicate=True, because rank 0 has only its shard; TypeError for a value that resume() could not read.
        """
        if self._shards is not None:
            raise RuntimeError("elastic: save() does not write shards: use torch.distributed.checkpoint for a State(..., replicate=True)")
        if self._rounds is not None and self._steps_since > 0:
            raise RuntimeError("elastic: save() between an optimizer's step and commit(), or within that: call it after the next commit()")
        rank = dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK") or 0)  # also before and after the function
        if rank != 0:
            return
        payload = self._payload(saving=True)
        _check_readable(payload)
        file = pathlib.Path(os.path.realpath(path))  # what a link leads to is replaced, not the link
        part = file.with_name(f".{file.name}.tmp.{os.getpid()}")
        for left in file.parent.glob(f".{glob.escape(file.name)}.tmp.*"):  # by processes that were killed
            if left.suffix[1:].isdigit() and not os.path.exists("/proc/" + left.suffix[1:]):
                left.unlink(missing_ok=True)
        try:
            with open(part, "wb") as out:
                torch.save(payload, out)
                out.flush()
                os.fsync(out.fileno())
            os.replace(part, file)
            folder = os.open(file.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        finally:
            with contextlib.suppress(FileNotFoundError):
                part.unlink()

    def resume(self, path: Union[str, "os.PathLike[str]"]) -> bool:
        """Takes the state from a file that save() has written, and returns whether there is one. Call it on every rank, before the function that
        elastic.run() decorates.

        Raises ValueError, which names the file, if the file cannot be looked up or read, or has a different state.
        """
        try:
            os.stat(path)
        except FileNotFoundError:
            place = pathlib.Path(os.path.abspath(path))
            for part in (place, *place.parents):
                if part.is_symlink() and not part.exists():  # its disk may be missing
                    raise ValueError(f"{os.fspath(path)}: {part} is a link to {os.readlink(part)}, which is not there") from None
            return False
        except OSError as error:  # it may be there: save() would replace it by a new training's state
            raise ValueError(f"{os.fspath(path)}: {error.strerror}") from None
        try:
            payload = torch.load(path, map_location="cpu", weights_only=True)
            self._restore_all(payload)
        except Exception as error:  # torch.load raises a dozen kinds
            raise ValueError(f"{os.fspath(path)}: {_one_line(error)}") from None
        return True

    # What follows is for _Rounds and run().

    def _all(self, kind: Any) -> List[Any]:
        return [vars(self)[name] for name in self._objects if isinstance(vars(self)[name], kind)]

    def _before_step(self, optimizer: Any, arguments: Any, keywords: Any) -> Any:
        closure = keywords.get("closure") or (arguments[1] if len(arguments) > 1 else None)
        # The closure, which Lightning gives, makes the gradients. PyTorch's own optimizers write to parameters only once it has returned.
        if closure is None or not type(optimizer).__module__.startswith("torch.optim."):
            self._wait()
            self._steps_since += 1
            return None
        begun = False

        def with_gradients() -> Any:
            nonlocal begun
            loss = closure()
            if not begun:
                self._wait()
                self._steps_since, begun = self._steps_since + 1, True
            return loss

        return (optimizer,), {**keywords, "closure": with_gradients}

    def _after_step(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        if len(arguments) > 1 or keywords.get("closure") is not None:  # more gradients
            self._wait()
        if self._steps_since >= _STEPS_WITHOUT_COMMIT:
            self._hint_at_commit()

    def _hint_at_commit(self) -> None:
        """Tells a program that steps and has not committed in this round: otherwise this shows only when a rank is lost."""
        if self._steps_since == 0 or self._looked or self._rounds is None or self._hinted:
            return
        self._hinted = True
        if os.environ.get("RANK", "0") == "0":
            print(f"elastic: {self._steps_since} optimizer step{'s' if self._steps_since > 1 else ''} and no commit() in this round: if a rank is "
                  "lost, all ranks lose them. Call state.commit() right after each optimizer.step()", file=sys.stderr, flush=True)

    def _wait(self) -> None:
        """On an accelerator: waits until everything that was started is done, and raises RoundOver if the round is over. An aborted collective leaves
        arbitrary values and raises no error, but it is aborted only after the round is known to be over."""
        if self._rounds is None or not self._rounds.recovering:
            return
        if self._accelerators is None:
            devices = {parameter.device for parameter in self._parameters()}
            self._accelerators = [device for device in devices if _runs_ahead(device)]
        for device in self._accelerators:
            if not _wait_for(device) and not self._captured:
                self._captured = True
                self._rounds.announce(self)
        if self._accelerators:
            self._rounds.check()
        self._first = None

    def _parameters(self) -> List[torch.Tensor]:
        return [parameter for module in self._all(torch.nn.Module) for parameter in module.parameters()]

    def _look(self) -> None:  # takes longer than everything else in a commit()
        self._layout = self._layout_now()
        self._slots = [(part._buffers, name) for module in self._all(torch.nn.Module) for part in module.modules() for name in part._buffers]

    def _buffers_now(self) -> List[torch.Tensor]:
        return [buffer for held, name in self._slots if (buffer := held.get(name)) is not None]

    def _keep(self, look: bool = True) -> None:
        self._steps_since += 1
        if look:
            self._look()
        self._kept = {name: _copied(vars(self)[name]) for name in self._values}
        self._small = {name: _mapped(vars(self)[name].state_dict(), torch.Tensor, torch.clone) for name in self._small_objects}
        self._groups = [[_without_params(group) for group in optimizer.param_groups] for optimizer in self._optimizers]
        buffers = self._buffers_now()
        with torch.no_grad():
            if len(buffers) != len(self._originals) or not all(map(operator.is_, buffers, self._originals)):
                self._copies, self._originals = [buffer.clone() for buffer in buffers], buffers
            elif buffers:
                torch._foreach_copy_(self._copies, buffers)
        self._steps_since = 0

    def _go_back(self) -> None:
        """Returns to the last commit from somewhere in the step after it."""
        self._position = None
        vars(self).update(copy.deepcopy(self._kept))
        for name, kept in self._small.items():
            vars(self)[name].load_state_dict(copy.deepcopy(kept))
            vars(vars(self)[name]).get("_per_optimizer_states", {}).clear()  # GradScaler's notes on the step
        for optimizer, groups in zip(self._optimizers, self._groups):
            for group, kept in zip(optimizer.param_groups, groups):
                group.update(kept)
        self._look()
        with torch.no_grad():
            for buffer, kept in zip(self._buffers_now(), self._copies):
                buffer.copy_(kept)
            for parameter, kept in zip(self._parameters(), self._first or []):
                parameter.copy_(kept)
        self._first = None
        for parameter in self._parameters():
            parameter.grad = None

    def _take_from_memory(self) -> None:
        """In a new process: takes the state that ddprun holds, if that is newer."""
        kept = None if self._connected or not _Rounds.owns_memory() else self._memory.newest(self._commits)
        if kept is not None:
            try:
                self._restore_all(torch.load(io.BytesIO(kept), map_location="cpu", weights_only=True))
            except Exception as error:  # torch.load raises a dozen kinds
                print(f"elastic: cannot use the state in ddprun's memory: {_one_line(error)}", file=sys.stderr, flush=True)

    def _payload(self, saving: bool = False) -> Dict[str, Any]:
        return {
            "commits": self._commits,
            "values": dict(self._kept),
            "shapes": {name: shape for name, (shape, _) in self._layout_now().items()},
            "objects": {name: self._state_of(name, saving) for name in self._objects},
        }

    def _state_of(self, name: str, saving: bool) -> Any:
        """Of the last commit, if the round has had one: what follows may have changed buffers, rates and schedulers."""
        entry = vars(self)[name]
        state = entry.state_dict()
        if self._rounds is None or not self._looked:
            return state
        if name in self._small:
            return self._small[name]
        if isinstance(entry, torch.nn.Module):
            is_average = saving and isinstance(entry, torch.optim.swa_utils.AveragedModel)  # its weights, too, may be newer
            if isinstance(state, dict) and not is_average:
                kept = dict(zip(map(id, self._originals), self._copies))
                state.update((key, kept[id(buffer)]) for key, buffer in entry.named_buffers(remove_duplicate=False)
                             if key in state and id(buffer) in kept)
            return state
        for optimizer, groups in zip(self._optimizers, self._groups):
            if optimizer is entry:  # a group may have been added since
                now = state["param_groups"]
                state["param_groups"] = [{**group, **kept} for group, kept in zip(now, groups)] + now[len(groups):]
        return state

    def _restore_all(self, payload: Dict[str, Any]) -> None:
        """Restores the whole state, or nothing of it."""
        names = sorted([*payload["objects"], *payload["values"]])
        if names != sorted([*self._objects, *self._values]):
            raise ValueError(f"expected the state of {sorted([*self._objects, *self._values])}, got that of {names}")
        self._look()  # the optimizer may have got another group
        shapes = {name: shape for name, (shape, _) in self._layout.items()}
        lazy = {name for name, shape in shapes.items() if shape == "uninitialized"}  # these take any shape
        if difference := _difference({name: shape for name, shape in payload.get("shapes", shapes).items() if name not in lazy},
                                     {name: shape for name, shape in shapes.items() if name not in lazy}):
            raise ValueError(f"a different state: {difference}")
        before = None if lazy else _on_cpu(self._payload())
        try:
            self._restore(payload)
        except Exception:
            if before is not None:
                self._restore({**before, "values": {name: vars(self)[name] for name in self._values}})
            raise

    def _restore(self, payload: Dict[str, Any]) -> None:
        for name, kept in payload["objects"].items():
            vars(self)[name].load_state_dict(kept)
        vars(self).update(payload["values"])
        self._commits, self._first = payload["commits"], None
        self._keep()

    def _why_not(self) -> str:
        """Why the survivors' state cannot be trusted, or is not complete, when a rank is lost. Empty if they can go on with it."""
        if self._shards is not None:
            return str(self._shards.why_not)
        for name in self._objects:
            if isinstance(vars(self)[name], torch.nn.Module):
                for parameter in vars(self)[name].parameters():
                    if hasattr(parameter, "device_mesh"):
                        return f"{name} has DTensors, whose shards are lost with their rank (replicate=True copies them)"
                    if _runs_ahead(parameter.device) and torch.__version__ < "2.11":
                        return f"{name} is on a GPU, where recovery needs PyTorch 2.11"
            if type(vars(self)[name]).__name__ == "ZeroRedundancyOptimizer":
                return f"{name} shards its state, and a part is lost with its rank (replicate=True copies it)"
        return "a step is captured in a CUDA graph, which cannot be interrupted" if self._captured else ""

    def _layout_now(self) -> Dict[str, Tuple[str, str]]:
        found = {name: ("", type(vars(self)[name]).__name__) for name in self._objects}
        found.update((name, ("", "a value")) for name in self._values)
        for name in self._objects:
            one = vars(self)[name]
            if isinstance(one, torch.nn.Module):
                found.update((f"{name}.{key}", _described(value)) for key, value in one.named_parameters())
            for number, group in enumerate(one.param_groups if isinstance(one, torch.optim.Optimizer) else ()):
                found[f"{name}, group {number}"] = (f"{len(group['params'])} parameters", "")
        return found

    def _beginning(self) -> Dict[str, Any]:
        """What must be the same on all ranks only until one rank sends it to the others: buffers, which may grow, and values."""
        modules = [(name, vars(self)[name]) for name in self._objects if isinstance(vars(self)[name], torch.nn.Module)]
        found: Dict[str, Any] = {f"{name}.{key}": _described(buffer) for name, module in modules for key, buffer in module.named_buffers()}
        for name, value in self._kept.items():
            with contextlib.suppress(Exception):  # this value cannot be sent
                found[name] = pickle.dumps(_mapped(value, torch.Tensor, _listed))  # a tensor's own bytes contain addresses
        return found

    def _check_alike(self, everyone: List[Any], what: str, mine: Dict[str, Any]) -> None:
        """Raises RuntimeError, on all ranks, if a rank's description (mine) differs from rank 0's. everyone: includes its digests."""
        rank = dist.get_rank()
        for other in [i for i, one in enumerate(everyone) if one[what] != everyone[0][what]]:
            first, theirs = (_broadcast(mine if rank == i else None, i) for i in (0, other))
            if difference := _difference(theirs, first):
                raise RuntimeError(f"elastic: the state of rank {other} is not that of rank 0: {difference}")

    def _agree(self) -> None:
        """Takes the state of the rank that has done the most steps. Every rank calls this first in a round."""
        rank = dist.get_rank()
        self._looked = False
        self._accelerators = None
        self._go_back()
        if self._shards is not None:
            self._agree_on_shards()
            return
        whole = self._steps_since == 0 and not self._captured
        beginning = {} if self._connected else self._beginning()
        mine = {"commits": self._commits, "whole": whole, "connected": self._connected, "layout": _digest(self._layout), "beginning": _digest(beginning)}
        everyone: List[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, mine)
        self._check_alike(everyone, "layout", self._layout)
        going_on = any(one["connected"] for one in everyone)  # a new process has only the state that it begins with
        sources = [i for i, one in enumerate(everyone) if one["whole"] and one["connected"] == going_on]
        if not sources:
            raise RuntimeError(
                "elastic: no rank has the state of a whole step: an optimizer had stepped, and the code between that and commit() failed on every "
                "rank. Call commit() right after the last optimizer.step()"
            )
        source = max(sources, key=lambda i: (everyone[i]["commits"], -i))
        if going_on or any(one["commits"] != everyone[source]["commits"] for one in everyone):
            payload = _broadcast(self._payload() if rank == source else None, source)
            if rank != source:
                self._restore(payload)
        else:
            self._check_alike(everyone, "beginning", beginning)
        self._connected = True
        if _runs_ahead(None) and self._rounds is not None and self._rounds.recovering:
            self._first = [parameter.detach().to("cpu", copy=True) for parameter in self._parameters()]

    def _agree_on_shards(self) -> None:
        from ._shards import ShardsLost

        assert self._rounds is not None
        try:
            agreed = self._shards.agree(self._connected, self._rounds._timeout)
        except ShardsLost:
            self._rounds._say(False)  # or ddprun would replace, one by one, the ranks that this ends
            raise
        if agreed is not None:
            self._commits, values = agreed
            vars(self).update(values)
            self._keep()
        self._connected = True


def run(
    state: State, *, backend: Optional[str] = None, timeout: datetime.timedelta = datetime.timedelta(minutes=30)
) -> Callable[[_Function], _Function]:
    """Decorates a function so that it is called in each round of the job. torch.distributed's default group is initialized before each call, and
    destroyed after it.

    backend: as for init_process_group; by default Gloo for tensors on CPUs, NCCL for those on GPUs. The group always has a backend for CPU
    tensors, too, over which the state is sent. timeout: that of the group's collectives.
    Under ddprun --recover=rank the function is called again after a rank is lost. Everything that it creates for the group (a
    DistributedDataParallel, a subgroup) must stay inside it and be created again in each call.

    Raises RuntimeError if a process group is already initialized, or on a second call while the first is still running.
    """
    if not isinstance(state, State):
        raise TypeError("elastic.run: expected a State: @elastic.run(state)")

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def rounds_of(*arguments: Any, **keywords: Any) -> Any:
            if state._rounds is not None:
                raise RuntimeError("elastic: run() was called again for this State while the first call is still running")
            if dist.is_initialized():
                raise RuntimeError(f"elastic: torch.distributed is initialized already: {_REMOVE_INIT}")
            _destroy_in_rounds_only()
            frozen, rounds = gc.get_freeze_count() > 0, None
            if not frozen:
                gc.collect()  # or garbage would be kept, too
                gc.freeze()  # imports and objects: looking through them takes 0.1 s when a rank is lost
            try:
                _stand_by()
                state._rounds = rounds = _Rounds(_backend_of(backend), timeout)
                rounds.hint(state)
                rounds.announce(state)
                if not state._connected:
                    state._keep()  # the program may have loaded a checkpoint of its own since it made the State
                state._take_from_memory()
                while True:
                    try:
                        return rounds.one(state, function, arguments, keywords)
                    except Exception as error:
                        if not rounds.next(error):
                            raise
                        traceback.clear_frames(error.__traceback__)  # or what the frames made for the group would live on
                        if state._shards is not None:
                            state._shards.leave()
                    gc.collect()
                    _mark_kept()
            finally:
                state._rounds = state._first = None
                if state._shards is not None:
                    state._shards.leave()
                if rounds is not None:
                    rounds.end()
                if not frozen:
                    gc.unfreeze()

        return rounds_of  # type: ignore[return-value]

    return decorate


_destroy: Any = dist.destroy_process_group  # PyTorch's own


def _destroy_in_rounds_only() -> None:
    """From now on, the program's destroy_process_group() leaves a round's group to elastic.run(), and is no error after it. The function object stays
    the same, because programs import it by name."""
    global _destroy
    if _destroy is not dist.destroy_process_group:  # done before
        return
    function: Any = inspect.unwrap(_destroy)
    before = getattr(function, "_ddprun_original", None)
    if before is not None:  # this module was loaded again
        _destroy = before
        return

    def ours(*arguments, **keywords):  # type: ignore[no-untyped-def]  # its global names are those of torch
        from ddprun import elastic

        elastic._destroy_for_program(*arguments, **keywords)

    with contextlib.suppress(AttributeError, TypeError, ValueError):  # somebody else has replaced it
        original = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
        function.__code__ = ours.__code__
        function._ddprun_original = _destroy = original


def _destroy_for_program(group: Any = None, *arguments: Any, **keywords: Any) -> None:
    default = dist.group.WORLD
    if (group is None or group is default) and (default is None or _Rounds.running):
        return
    _destroy(group, *arguments, **keywords)


def _passed_through(error: BaseException, function: Any) -> bool:
    code = inspect.unwrap(function).__code__
    return any(frame.f_code is code for frame, _ in traceback.walk_tb(error.__traceback__))


def _mark_kept() -> None:
    """Makes what the program has kept from the previous round raise an error when it is used: otherwise it would wait for a group that is gone, or
    fail there."""
    for one in gc.get_objects():
        if issubclass(type(one), torch.nn.parallel.DistributedDataParallel) and not vars(one).get("_ddprun_kept"):
            vars(one)["_ddprun_kept"] = True
            with contextlib.suppress(Exception):  # its own __init__ has failed
                one.register_forward_pre_hook(_refuse)


def _refuse(*_: Any) -> None:
    raise RuntimeError("elastic: this DistributedDataParallel belongs to a round that is over: create it again in the function that elastic.run() "
                       "calls")


class _Memory:
    """The newest state, in an unnamed file that ddprun holds and that outlives this process (DDPRUN_STATE_FD). Its layout is that of `worker`: two
    slots, so that the older state stays intact while the newer one is written. A slot has the offset of its head and state."""

    _SLOT = struct.Struct("<6Qi4x")  # magic, sequence, offset, sizes of head and state, checksum, index
    _MAGIC = 0x31534E5552504444  # "DDPRUNS1"
    _FIRST = 4096

    def __init__(self) -> None:
        self._writing: Optional[threading.Thread] = None
        self._warned = False

    def newest(self, beyond: int) -> Optional[bytes]:
        """The newest complete state with more commits than this."""
        for slot in self._slots(self._fd()):
            content = self._content(slot)
            if content is not None and content[0].get("commits", 0) > beyond:
                return content[1]
        return None

    def keep(self, commits: int, payload: Callable[[], Dict[str, Any]]) -> None:
        if os.environ.get("LOCAL_RANK", "0") != "0" or self._fd() is None or self._warned or (self._writing and self._writing.is_alive()):
            return
        self._writing = threading.Thread(target=self._write, args=(commits, _on_cpu(payload())), name="ddprun-memory")
        self._writing.start()

    def _fd(self) -> Optional[int]:
        with contextlib.suppress(OSError, ValueError):
            descriptor = int(os.environ.get("DDPRUN_STATE_FD", "-1"))
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return descriptor
        return None

    def _slots(self, descriptor: Optional[int]) -> List[Tuple[int, ...]]:
        """Newest first."""
        if descriptor is None:
            return []
        texts = [os.pread(descriptor, self._SLOT.size, i * self._SLOT.size) for i in range(2)]
        slots = [self._SLOT.unpack(text) for text in texts if len(text) == self._SLOT.size]
        return sorted((slot for slot in slots if slot[0] == self._MAGIC), key=lambda slot: -slot[1])

    def _content(self, slot: Tuple[int, ...]) -> Optional[Tuple[Dict[str, Any], bytes]]:
        _, _, offset, head_size, state_size, checksum, _ = slot
        descriptor = self._fd()
        assert descriptor is not None
        content = b""
        while len(content) < head_size + state_size:
            part = os.pread(descriptor, head_size + state_size - len(content), offset + len(content))
            if not part:
                return None
            content += part
        with contextlib.suppress(ValueError):
            if zlib.crc32(content) == checksum:
                return json.loads(content[:head_size]), content[head_size:]
        return None

    def _write(self, commits: int, payload: Dict[str, Any]) -> None:
        try:
            _check_readable(payload)
            state = io.BytesIO()
            torch.save(payload, state)
            head = json.dumps({"program": "ddprun.elastic", "commits": commits}).encode()
            content = head + state.getbuffer()
            descriptor = self._fd()
            if descriptor is None:
                return
            slots = self._slots(descriptor)
            sequence, index, offset = 1, 0, self._FIRST
            if slots:
                _, newest, begin, head_size, state_size, _, other = slots[0]
                sequence, index = newest + 1, 1 - other
                if begin < self._FIRST + len(content):  # before the other one if there is room, else after it
                    offset = begin + head_size + state_size
            _write_all(descriptor, content, offset)
            slot = self._SLOT.pack(self._MAGIC, sequence, offset, len(head), len(state.getbuffer()), zlib.crc32(content), index)
            _write_all(descriptor, slot, index * self._SLOT.size)
        except Exception as error:  # out of memory, or a value that cannot be pickled
            self._warned = True
            print(f"elastic: the state is no longer copied to ddprun's memory: {error}", file=sys.stderr, flush=True)


def _write_all(descriptor: int, content: bytes, offset: int) -> None:
    view = memoryview(content)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


class _Rounds:
    """This rank's rounds: docs/recovery.md, "The protocol"."""

    _calls = 0  # calls of decorated functions under --recover=rank
    _hinted = False
    running = False  # a decorated function is

    @classmethod
    def owns_memory(cls) -> bool:
        """Whether the state in ddprun's memory is of the call that runs. A new process begins with the first call, so only that one's is kept: the
        State of a later call, as of another fold, must not begin with it."""
        return cls._calls <= 1

    def __init__(self, backend: str, timeout: datetime.timedelta) -> None:
        self._backend, self._timeout = backend, timeout
        self._round = int(os.environ.get("DDPRUN_ROUND") or 0)
        self._socket = _socket_of("DDPRUN_ROUND_FD", socket.SOCK_SEQPACKET)
        self._told = threading.Condition()
        self._newest: Optional[Tuple[Dict[str, Any], Optional[int]]] = None  # a later round, and rank 0's socket
        self._abort_at = self._hint_at = self._leave_until = float("inf")
        self._over = self._ended = self._warned = False
        self.recovering = self._socket is not None  # this rank would go on if another one were lost
        self._store: Any = None
        self._forming: Optional[int] = None  # the port of the store in which the ranks look for each other
        if self._socket is not None or _Rounds._calls > 0:
            _Rounds._calls += 1
        if self._socket is None:
            return
        del os.environ["DDPRUN_ROUND_FD"]  # it ends with this call
        os.set_inheritable(self._socket.fileno(), False)
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # or NCCL's watchdog aborts collectives first, and ends the process
        if "TORCH_NCCL_DUMP_ON_TIMEOUT" not in os.environ:  # or the watchdog dumps its flight recorder, and sleeps 60 s for that
            os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "0"
            os.environ.setdefault("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "0")
        self._wake, self._waker = socket.socketpair()
        threading.Thread(target=self._watch, name="ddprun-rounds", daemon=True).start()

    def announce(self, state: State) -> None:
        """Tells ddprun whether this rank can go on when another one is lost."""
        why_not = "this is a second run(), and a new process would begin with the first. Do everything in one call" if _Rounds._calls == 2 else ""
        if self._socket is not None:
            why_not = state._why_not()
        if why_not and not self._warned and os.environ.get("RANK") == "0":
            last = "the state in memory" if state._memory_every > 0 and _Rounds.owns_memory() else "your checkpoint"
            print(f"elastic: if a rank is lost, all start again from {last}: {why_not}", file=sys.stderr, flush=True)
        self._warned = self._warned or bool(why_not)
        self.recovering = self._socket is not None and not why_not
        self._say(not why_not)

    def hint(self, state: State) -> None:
        """Under ddprun with restarts, but without --recover=rank: that this program could do more."""
        told = os.environ.get
        by_ddprun = "DDPRUN_JOB_ID" in os.environ and told("TORCHELASTIC_USE_AGENT_STORE") == "False"  # torchrun says True
        restarts = told("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
        recovers = "DDPRUN_ROUND_FD" in os.environ or told("WORLD_SIZE") == "1"
        first = told("TORCHELASTIC_RESTART_COUNT") == "0" and _Rounds._calls == 0 and not _Rounds._hinted
        if by_ddprun and restarts and first and not recovers and told("RANK") == "0" and not state._why_not():
            _Rounds._hinted = True
            print("elastic: if a rank is lost, all restart; with --recover=rank ddprun would replace only that rank", file=sys.stderr, flush=True)

    def check(self) -> None:
        if self._over:
            raise RoundOver("another rank was lost")

    def one(self, state: State, function: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
        self._connect()
        state._agree()
        _Rounds.running = True
        try:
            result = function(*arguments, **keywords)
        except ValueError as error:
            if _passed_through(error, dist.init_process_group):
                raise RuntimeError(f"elastic: torch.distributed is initialized already: {_REMOVE_INIT}") from error
            raise
        finally:
            _Rounds.running = False
        state._hint_at_commit()
        dist.barrier()  # a rank that is lost before this still needs this one
        self._say(False)
        return result

    def next(self, error: Exception) -> bool:
        """After an exception: whether the loss of a rank caused it. If so, the next round begins."""
        if self._socket is None:
            return False
        patience = 3.0 if int(os.environ.get("GROUP_WORLD_SIZE") or 1) > 1 else 0.5
        if isinstance(error, _OF_PEERS) or "gloo" in str(error).lower():  # ddprun may be waiting for a disk before it tells
            patience = _PATIENCE_WITH_PEERS
        with self._told:
            if not self._told.wait_for(lambda: self._newest is not None, patience):
                return False
            notice, listening = self._newest  # type: ignore[misc]
            self._newest = None
            self._abort_at = self._hint_at = self._leave_until = float("inf")
            self._over, self._forming = False, None
        self._leave()
        self._round = notice["round"]
        os.environ.update(
            DDPRUN_ROUND=str(notice["round"]),
            TORCHELASTIC_RESTART_COUNT=str(notice["restart_count"]),
            MASTER_ADDR=notice["master_addr"],
            MASTER_PORT=str(notice["master_port"]),
        )
        os.environ.pop("DDPRUN_STORE_FD", None)
        if listening is not None:
            os.environ["DDPRUN_STORE_FD"] = str(listening)
        return True

    def end(self) -> None:
        with self._told:
            self._ended = True
        if self._socket is not None:
            self._say(False)
            with contextlib.suppress(OSError):
                self._waker.send(b".")
        if dist.is_initialized():
            with contextlib.suppress(Exception):
                _destroy()
        self._store = None

    def _say(self, recovers: bool) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):  # ddprun is gone
                self._socket.send(json.dumps({"recovers": recovers, "stands_by": True}).encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def _connect(self) -> None:
        if "RANK" not in os.environ:  # alone
            dist.init_process_group(self._backend, store=dist.HashStore(), rank=0, world_size=1, timeout=self._timeout)
            return
        if self._socket is None:
            dist.init_process_group(self._backend, timeout=self._timeout)
            return
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        listening = _socket_fd("DDPRUN_STORE_FD") if rank == 0 else None
        older = {"use_libuv": False} if torch.__version__ < "2.11" else {}  # its libuv store refuses a socket that listens already

        def connects(timeout: datetime.timedelta) -> bool:
            self._store = dist.TCPStore(
                address, port, world, is_master=rank == 0, timeout=timeout, wait_for_workers=False, master_listen_fd=listening, **older
            )
            self._store.set_timeout(self._timeout)
            return True

        def reaches_store() -> bool:  # rank 0 may be lost meanwhile, and PyTorch would try again until the timeout
            with contextlib.suppress(RuntimeError):
                return _listens(address, port) and connects(_STORE_PATIENCE)
            return False

        self._forming = port
        if rank == 0:
            connects(self._timeout)
        else:
            self._until(reaches_store)
        store = dist.PrefixStore(f"ddprun/{self._round}", self._store)
        store.add("here", 1)
        self._until(lambda: store.add("here", 0) >= world)
        with contextlib.suppress(AttributeError):
            dist.distributed_c10d._world.group_count = 0  # it names keys of the store, and counts a group that could not be formed
        dist.init_process_group(self._backend, store=store, rank=rank, world_size=world, timeout=self._timeout)
        self._forming = None

    def _until(self, there: Callable[[], bool]) -> None:
        """Waits for the other ranks of the round. Some may take minutes to start, and others may be lost meanwhile."""
        deadline = time.monotonic() + self._timeout.total_seconds() + 30  # longer than a rank may take to leave the round before
        while not there():
            self.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"elastic: not all ranks reached round {self._round} within {self._timeout}")
            time.sleep(_LOOK_EVERY)

    def _leave(self) -> None:
        _shut_down(_connections(_groups(), self._timeout))  # or a group would wait for data from a silent host
        if dist.is_initialized():
            for leave in (getattr(dist.distributed_c10d, "_abort_process_group", None), _destroy):
                with contextlib.suppress(Exception):
                    if leave is not None and dist.is_initialized():
                        leave()
        self._store = None

    def _watch(self) -> None:
        assert self._socket is not None
        import select

        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        poll.register(self._wake.fileno(), select.POLLIN)
        while True:
            waits = self._abort_at != float("inf")
            ready = poll.poll(100 if waits else None)
            if self._ended:
                return
            for descriptor, _ in ready:
                if descriptor == self._socket.fileno() and not self._take():
                    poll.unregister(self._socket.fileno())  # ddprun is gone
            if not ready:
                self._make_leave()

    def _take(self) -> bool:
        text, descriptors = _receive(self._socket, wait=False)
        if text is None:
            return True
        if not text:
            return False
        with contextlib.suppress(ValueError, KeyError, TypeError):
            notice = json.loads(text)
            with self._told:
                if notice["round"] > self._round:
                    if self._newest is not None and self._newest[1] is not None:  # others wait there
                        os.close(self._newest[1])
                    self._newest = (notice, descriptors.pop(0) if descriptors else None)
                    self._over = True
                    self._abort_at = min(self._abort_at, time.monotonic() + _ABORT_AFTER)
                    self._leave_until = min(self._leave_until, time.monotonic() + self._timeout.total_seconds())
                    self._hint_at = min(self._hint_at, time.monotonic() + _HINT_AFTER)
                    self._told.notify_all()
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _make_leave(self) -> None:
        """Makes the main thread leave a collective, once its round is over."""
        with self._told:
            now = time.monotonic()
            if now < self._abort_at:
                return
            self._abort_at = now + 1
            late, hint = now > self._leave_until, now > self._hint_at
            self._hint_at = float("inf") if hint else self._hint_at
            groups = _groups()  # under the lock: later, these might be the groups of the next round
            connections = _connections(groups, self._timeout, self._forming)
        _shut_down(connections)
        _abort(groups)
        if hint:
            print(f"elastic: another rank was lost, and rank {os.environ.get('RANK')} has not left its round after {_HINT_AFTER:.0f} s: the others wait "
                  "until it calls commit() or a collective", file=sys.stderr, flush=True)
        if late:
            print(f"elastic: another rank was lost, and this one could not leave its round within {self._timeout}", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)  # a lost rank, for --restart-on-codes too


def _groups() -> List[Any]:
    names = list(getattr(dist.distributed_c10d._world, "pg_names", {}).items())
    return [group for group, _ in sorted(names, key=lambda item: item[1], reverse=True)]


def _connections(groups: List[Any], timeout: datetime.timedelta, store: Optional[int] = None) -> List[int]:
    """The groups' connections over Gloo. Gloo does not expose them, but only its sockets have a group's timeout for both receiving and sending.
    store: while a group forms, its store's port; those who look for the others there wait on connections to it."""
    timeouts = {timeout.total_seconds()} if groups or store is not None else set()
    for group in groups:
        with contextlib.suppress(Exception):  # this group has no Gloo
            gloo = group._get_backend(torch.device("cpu"))
            timeouts.add(getattr(gloo, "wrapped_pg", gloo).options._timeout.total_seconds())
    timeouts.discard(0.0)

    def is_connection(descriptor: int) -> bool:
        if store is not None and _peer_port(descriptor) == store:
            return True
        limits = [_limit(descriptor, option) for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO)]
        return limits[0] == limits[1] and any(-1e-5 < limits[0] - seconds < 0.011 for seconds in timeouts)  # or up to one tick more

    found: List[int] = []
    with contextlib.suppress(OSError):  # no descriptor is free to list the folder with
        for name in os.listdir("/proc/self/fd") if timeouts else ():
            with contextlib.suppress(OSError):  # it was closed meanwhile
                if not is_connection(int(name)):  # asked before it is copied: closing a copy would release a file's locks
                    continue
                held = os.dup(int(name))
                if is_connection(held):  # the number may have a new meaning by now
                    found.append(held)
                else:
                    os.close(held)
    return found


def _limit(descriptor: int, option: int) -> float:
    """A socket's timeout in seconds; 0: none, or not a socket. A Python socket object may change the descriptor that it is created from."""
    limit, size = (ctypes.c_long * 2)(), ctypes.c_uint(ctypes.sizeof(ctypes.c_long) * 2)
    ctypes.CDLL(None).getsockopt(descriptor, socket.SOL_SOCKET, option, limit, ctypes.byref(size))
    return limit[0] + limit[1] / 1e6


def _peer_port(descriptor: int) -> int:
    """0: not connected, or not over IP. As _limit(), it leaves the descriptor as it is."""
    address, size = (ctypes.c_uint8 * 28)(), ctypes.c_uint(28)
    failed = ctypes.CDLL(None).getpeername(descriptor, address, ctypes.byref(size))
    family = int.from_bytes(bytes(address[:2]), sys.byteorder)
    return 0 if failed or family not in (socket.AF_INET, socket.AF_INET6) else int.from_bytes(bytes(address[2:4]), "big")


def _shut_down(connections: List[int]) -> None:
    """Wakes everyone who is waiting for the connections. Gloo's abort() does not: a silent host closes nothing, and its peers would wait until
    the timeout."""
    for held in connections:
        ctypes.CDLL(None).shutdown(held, socket.SHUT_RD)  # then Gloo closes it; SHUT_WR could end the process by SIGPIPE
        os.close(held)


def _abort(groups: List[Any]) -> None:
    nccl: Any = None
    with contextlib.suppress(Exception):  # there is none
        nccl = groups[0]._get_backend(torch.device("cuda"))
    together = hasattr(nccl, "_group_start")  # or a communicator would wait for another one's kernels
    if together:
        nccl._group_start()
    for group in groups:
        with contextlib.suppress(Exception):  # old versions have no abort() for Gloo
            group.abort()
    if together:
        nccl._group_end()


def _runs_ahead(device: Optional[torch.device]) -> bool:
    """Whether the CPU continues without waiting for what it starts on the device. None: on any device of this host."""
    return torch.cuda.is_available() if device is None else device.type not in ("cpu", "meta")


def _wait_for(device: torch.device) -> bool:
    """Waits until everything that was started on the device is done. False: it did not, because a CUDA graph is being captured."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return False
    torch.accelerator.synchronize(device)
    return True


def _backend_of(wanted: Optional[str]) -> str:
    if wanted == "nccl" or (wanted is None and torch.cuda.is_available()):
        return "cpu:gloo,cuda:nccl"
    return wanted or "gloo"


def _has_state(entry: Any) -> bool:
    return callable(getattr(entry, "state_dict", None)) and callable(getattr(entry, "load_state_dict", None))


def _seed(seed: int, epoch: int, number: Union[int, str]) -> None:
    rank = int(os.environ.get("RANK") or 0)
    digest = hashlib.sha256(f"{seed} {rank} {epoch} {number}".encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    random.seed(digest)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(int.from_bytes(digest[:4], "little"))


def _described(tensor: torch.Tensor) -> Tuple[str, str]:
    return ("uninitialized", "") if torch.nn.parameter.is_lazy(tensor) else (str(tuple(tensor.shape)), str(tensor.dtype))


def _listed(tensor: torch.Tensor) -> Tuple[str, str, Any]:
    return (*_described(tensor), tensor.detach().cpu().tolist())


def _digest(described: Dict[str, Any]) -> str:
    return hashlib.sha256(repr(sorted(described.items())).encode()).hexdigest()


def _difference(theirs: Dict[str, Any], first: Dict[str, Any]) -> str:
    """The first entry that differs, in words."""
    for name in {**first, **theirs}:
        one, other = theirs.get(name), first.get(name)
        if one == other:
            continue
        if isinstance(one, bytes) or isinstance(other, bytes):
            try:
                one, other = (pickle.loads(value or b"") for value in (one, other))
                if one == other or getattr(type(one), "__eq__") is object.__eq__:  # the order in a set does not matter; or it cannot be told
                    continue
            except Exception:  # nor can it here: arrays, and what a rank could not send
                continue
            one, other = textwrap.shorten(repr(one), 60), textwrap.shorten(repr(other), 60)
        return f"{name}: {_in_words(one)}, not {_in_words(other)}"
    return ""


def _in_words(described: Any) -> str:
    return described if isinstance(described, str) else " ".join(filter(None, described or ["none"]))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _copied(value: Any) -> Any:
    return value if type(value) in (bool, float, int, str) else copy.deepcopy(value)


def _without_params(group: Dict[str, Any]) -> Dict[str, Any]:
    return {key: _mapped(value, torch.Tensor, torch.clone) for key, value in group.items() if key != "params"}


class _Later:
    """A batch sampler that skips its first batches. Each batch is drawn with its own random numbers, however far ahead the loader's workers are."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self.first = self.seed = self.epoch = 0

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(_drawn(self._sampler, self.seed, self.epoch)):
            if number >= self.first:
                yield batch

    def __len__(self) -> int:
        return max(0, len(self._sampler) - self.first)

    def __getattr__(self, name: str) -> Any:  # batch_size, which Accelerate asks for
        return getattr(vars(self).get("_sampler"), name)


def _drawn(batches: Any, seed: int, epoch: int) -> Iterator[Any]:
    rest = iter(batches)
    for number in itertools.count():
        _seed(seed, epoch, f"drawn {number}")
        try:
            batch = next(rest)
        except StopIteration:
            return
        yield batch


def _without_first(loader: Any, first: int, seed: int, epoch: int) -> Iterator[Any]:
    around = type(loader).__name__ == "DataLoaderShard"  # Accelerate's, which is not a DataLoader, although isinstance() says so
    inner = loader.base_dataloader if around else loader
    torch_data = torch.utils.data
    draws = issubclass(type(inner), torch_data.DataLoader) and inner.batch_sampler is not None
    if not draws or isinstance(inner.dataset, torch_data.IterableDataset):
        return itertools.islice(_drawn(loader, seed, epoch), first, None)
    later: Any = vars(inner).get("_ddprun_later")
    if later is None:
        later = copy.copy(inner)
        vars(later).update(batch_sampler=_Later(inner.batch_sampler), _iterator=None)
        if inner.persistent_workers:  # they live as long as the loader
            vars(inner)["_ddprun_later"] = later
    vars(later.batch_sampler).update(first=first, seed=seed, epoch=epoch)
    if not around:
        return iter(later)
    whole = object.__new__(type(loader))
    vars(whole).update(vars(loader), base_dataloader=later)
    return iter(whole)


class _Tensor:
    """Stands for a tensor that is sent separately."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype

    def __call__(self) -> torch.Tensor:
        return torch.empty(self.shape, dtype=self.dtype)


def _mapped(value: Any, of: Any, function: Callable[[Any], Any]) -> Any:
    """A copy of nested dicts, lists and tuples, with function(x) in place of each x of the given type."""
    if isinstance(value, of):
        return function(value)
    if isinstance(value, dict):
        mapped = copy.copy(value)
        for key, item in value.items():
            mapped[key] = _mapped(item, of, function)
        return mapped
    if type(value) in (list, tuple):
        return type(value)(_mapped(item, of, function) for item in value)
    return value


def _check_readable(payload: Dict[str, Any]) -> None:
    """Raises TypeError, which names it, for a value that torch.load(weights_only=True) refuses: it would be missed when it is needed."""
    plain = _mapped(payload, torch.Tensor, lambda tensor: None)

    def is_readable(value: Any) -> bool:
        written = io.BytesIO()
        torch.save(value, written)
        written.seek(0)
        with contextlib.suppress(Exception):  # torch.load raises a dozen kinds
            torch.load(written, weights_only=True)
            return True
        return False

    if is_readable(plain):
        return
    for name, value in {**plain["values"], **plain["objects"]}.items():
        if not is_readable(value):
            raise TypeError(f"elastic.State: {name}, a {type(value).__name__}, could not be read again: give tensors, numbers, text, and lists, "
                            "tuples or dicts of them (float(x) for a number of numpy's)")


def _on_cpu(payload: Dict[str, Any]) -> Any:
    return _mapped(payload, torch.Tensor, lambda tensor: tensor.detach().to("cpu", copy=True))


def _broadcast(payload: Any, source: int) -> Any:
    """The source's nested value, on every rank. Tensors are sent as tensors on the CPU, many in one piece, and everything else is pickled."""
    tensors: List[torch.Tensor] = []

    def taken_out(tensor: torch.Tensor) -> _Tensor:
        tensors.append(tensor.detach())
        return _Tensor(tensor)

    def made(described: _Tensor) -> torch.Tensor:
        tensors.append(described())
        return tensors[-1]

    box = [_mapped(payload, torch.Tensor, taken_out)]
    dist.broadcast_object_list(box, src=source)
    if payload is None:
        box = [_mapped(box[0], _Tensor, made)]
    with torch.no_grad():
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.reshape(-1).cpu() for tensor in bucket])
            dist.broadcast(flat, src=source)
            if payload is None:
                begin = 0
                for tensor in bucket:
                    tensor.copy_(flat[begin : begin + tensor.numel()].view(tensor.shape))
                    begin += tensor.numel()
    return payload or box[0]


def _buckets(tensors: List[torch.Tensor]) -> Iterator[List[torch.Tensor]]:
    kinds: Dict[Any, List[torch.Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault(tensor.dtype, []).append(tensor)
    for alike in kinds.values():
        bucket: List[torch.Tensor] = []
        size = 0
        for tensor in alike:
            bucket.append(tensor)
            size += tensor.numel() * tensor.element_size()
            if size >= _BUCKET:
                yield bucket
                bucket, size = [], 0
        if bucket:
            yield bucket


def _socket_fd(variable: str) -> Optional[int]:
    """The descriptor that a variable names, if it is a socket. The variable may be left over from elsewhere."""
    with contextlib.suppress(OSError, ValueError):
        descriptor = int(os.environ.get(variable, "-1"))
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return descriptor
    return None


def _socket_of(variable: str, kind: int) -> Optional[socket.socket]:
    descriptor = _socket_fd(variable)
    if descriptor is None:
        return None
    found = socket.socket(fileno=descriptor)
    if found.type == kind:
        return found
    found.detach()
    return None


def _receive(sender: Any, wait: bool) -> Tuple[Optional[str], List[int]]:
    """The next packet's text and descriptors. If the text is None, there is no packet; if it is empty, the sender is gone."""
    descriptors = array.array("i")
    try:
        data, control, _, _ = sender.recvmsg(1 << 16, socket.CMSG_SPACE(16 * descriptors.itemsize), 0 if wait else socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None, []
    except OSError:
        return "", []
    for level, kind, content in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return data.decode(errors="replace"), list(descriptors)


def _listens(address: str, port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection((address, port), timeout=1).close()
        return True
    return False


def _stand_by() -> None:
    """In a standby process (ddprun --standby): waits until it is needed, and then becomes the rank that it replaces."""
    order = _socket_of("DDPRUN_STANDBY_FD", socket.SOCK_SEQPACKET)
    if order is None:
        return
    text, descriptors = _receive(order, wait=True)
    if not text:
        os._exit(0)  # not needed any more
    del os.environ["DDPRUN_STANDBY_FD"]
    order.close()
    told = json.loads(text)
    os.environb.update({name.encode(): value.encode() for name, value in told["env"].items()})  # whatever the locale
    for name, descriptor in zip(told["fds"], descriptors):
        if name in ("0", "1", "2"):
            os.dup2(descriptor, int(name))
            os.close(descriptor)
        else:
            os.set_inheritable(descriptor, True)
            os.environ[name] = str(descriptor)
