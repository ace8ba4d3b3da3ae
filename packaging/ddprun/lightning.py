"""Lightning's Trainer in a function that ddprun.elastic runs: each round creates a Trainer, which continues after the last step.

>>> state = elastic.State(model=module, optimizer=optimizer, schedule=schedule, loops=None, epoch=0, batch=0)
>>> @elastic.run(state)
... def train():
...     steps = Steps(state, DataLoader(data, batch_size=20, sampler=DistributedSampler(data)))
...     trainer = Trainer(strategy="ddp", devices=2, max_epochs=epochs, callbacks=[steps])
...     trainer.fit(module, steps)

The module's configure_optimizers() returns the State's optimizer and schedule.
"""
from typing import TYPE_CHECKING, Any, Iterator, List, Tuple

from ddprun import elastic

if TYPE_CHECKING:
    Callback = object
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback

__all__ = ["Steps"]


class Steps(Callback):
    """Serves as both a Trainer's loader and its first callback: yields the batches that are not done yet, and reports when one is.

    state: has loops=None, epoch=0 and batch=0. loader: has a sampler for this rank, because Lightning does not give it one.
    """

    def __init__(self, state: elastic.State, loader: Any) -> None:
        self._state: Any = state
        self._loader = loader
        self._modes: List[Tuple[Any, bool]] = []
        if not all(hasattr(state, name) for name in ("loops", "epoch", "batch")):
            raise TypeError("ddprun.lightning: Steps needs State(..., loops=None, epoch=0, batch=0)")

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        if self._state.batch == len(self):  # Lightning takes only as many batches of an epoch as its length
            self._state.epoch, self._state.batch = self._state.epoch + 1, 0
        return iter(self._state.batches(self._loader))

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        self._modes = [(part, part.training) for part in module.modules()]
        if self._state.loops is not None:
            trainer.fit_loop.load_state_dict(self._state.loops)

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        if trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:  # that epoch is over, but Lightning would mistake the next one for it
            trainer.fit_loop.reset_restart_stage()

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        self._modes = [(part, part.training) for part in module.modules()]
        if trainer.global_step > self._state.commits:  # otherwise gradients are being accumulated
            self._state.loops = trainer.fit_loop.state_dict()
            self._state.commit()

    def on_exception(self, *_: Any) -> None:
        for part, training in self._modes:  # the next trainer does not undo what a validation has switched
            part.training = training
