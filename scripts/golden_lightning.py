"""The golden groups of make_golden.py about Lightning's callbacks: EarlyStopping and ModelCheckpoint."""

import logging
import os
import random
import tempfile
import types
import warnings

import torch

from golden_common import number, write_json


def early_stopping(folder):
    """Random sequences of a metric, with NaN, infinities and ties, and EarlyStopping's verdict on each value."""
    from lightning.pytorch.callbacks import EarlyStopping

    draw = random.Random(1)
    cases = []
    for _ in range(80):
        options = dict(mode=draw.choice(["min", "max"]), min_delta=draw.choice([0.0, 0.0, 0.001, 0.1]),
                       patience=draw.choice([0, 1, 2, 3, 5]), check_finite=draw.random() < 0.7,
                       stopping_threshold=draw.choice([None, None, 0.2, 0.8]),
                       divergence_threshold=draw.choice([None, None, 0.1, 0.9]))
        stopping = EarlyStopping("val", **options)
        steps = []
        for epoch in range(12):
            value = draw.choice([draw.random(), round(draw.random(), 1), round(draw.random(), 3)])
            if draw.random() < 0.05:
                value = draw.choice([float("nan"), float("inf"), float("-inf")])
            trainer = types.SimpleNamespace(
                callback_metrics={"val": torch.tensor(value)}, fast_dev_run=False, should_stop=False,
                current_epoch=epoch,
                strategy=types.SimpleNamespace(reduce_boolean_decision=lambda decision, all: decision))
            stopping._run_early_stopping_check(trainer)
            state = stopping.state_dict()
            steps.append([number(value), trainer.should_stop, state["wait_count"], state["stopped_epoch"],
                          number(state["best_score"].item()), state["stopping_reason"]])
        cases.append(dict(options=options, steps=steps))
    write_json(folder / "sequences.json", cases)


def checkpoint_policy(folder):
    """What ModelCheckpoint keeps on disk in real trainings with random metrics, and the names it gives."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    write_json(folder / "names.json", names())
    draw = random.Random(2)
    cases = []
    for i in range(27):
        mode, top_k = draw.choice(["min", "max"]), draw.choice([-1, 0, 1, 2, 3])
        values = [draw.choice([round(draw.random(), 1), draw.random(), float("nan")] if draw.random() < 0.3 else
                              [round(draw.random(), 1)]) for _ in range(7)]
        options = dict(filename=draw.choice([None, "m-{val:.1f}", "{epoch:02d}-{val:.2f}", "{other}"]), monitor="val",
                       mode=mode, save_top_k=top_k, save_last=draw.random() < 0.5)
        if i % 5 == 0:
            draw.choice([-1, 0, 1])  # once of a run without a metric: the numbers of the others stay as they are
            continue
        if i % 5 == 1:
            options.update(monitor="train", every_n_train_steps=draw.choice([2, 3]))
        if i % 5 == 2:
            options.update(every_n_train_steps=draw.choice([2, 3]), save_on_train_epoch_end=False)
        cases.append(run(options, values, validates=i % 5 != 1))
    write_json(folder / "runs.json", cases)


def names():
    from lightning.pytorch.callbacks import ModelCheckpoint

    metrics = {"val_acc": 0.8567, "val/loss": 1.25, "loss": 12345.678, "tiny": 1e-7, "huge": 3e20, "one": 1.0,
               "nan": float("nan"), "epoch_loss": -0.5}
    patterns = ["", "ddp-cifar10-{epoch:02d}-{val_acc:.2f}", "{epoch}", "{step:06d}", "{epoch:d}_{step:+d}", "plain",
                "{val_acc}", "{val_acc:.3f}x{val/loss:.1f}", "{loss:.3e}", "{loss:g}", "{loss:10.2f}", "{loss:010.2f}",
                "{tiny}", "{huge}", "{one}", "{one:.0f}", "{nan:.2f}", "{missing}", "{missing:.2f}", "{missing:03d}",
                "{epoch}{epoch:03d}", "{epoch_loss:.1f}-{epoch}", "{val_acc:.1%}", "{val_acc:E}", "{loss: .1f}",
                "{nan}"]
    cases = []
    for pattern in patterns:
        callback = ModelCheckpoint(filename=pattern or None)
        tensors = {name: torch.tensor(value) for name, value in metrics.items()}
        tensors.update(epoch=torch.tensor(7), step=torch.tensor(4321))
        cases.append([pattern, callback.format_checkpoint_name(tensors)])
    return dict(metrics={name: number(value) for name, value in metrics.items()}, epoch=7, step=4321, cases=cases)


def run(options, values, validates):
    """Trains with two batches per epoch. Returns the files after each call of ModelCheckpoint; null: unchanged."""
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Observed(ModelCheckpoint):
        def setup(self, trainer, module, stage):
            self.events, self.previous = [], None
            super().setup(trainer, module, stage)

        def observe(self, occasion, trainer, last_batch=False):
            known = {name: number(value.item()) for name, value in trainer.callback_metrics.items()}
            base = os.path.basename
            kept = [[base(path), number(score.item())] for path, score in self.best_k_models.items()]
            after = dict(files=sorted(os.listdir(self.dirpath)) if os.path.isdir(self.dirpath) else [], kept=kept,
                         best=base(self.best_model_path), kth=base(self.kth_best_model_path),
                         last=base(self.last_model_path),
                         best_score=None if self.best_model_score is None else number(self.best_model_score.item()))
            unchanged = after == self.previous
            self.previous = after
            self.events.append([occasion, trainer.current_epoch, trainer.global_step, last_batch, known,
                                None if unchanged else after])

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            super().on_train_batch_end(trainer, module, outputs, batch, batch_idx)
            if self._every_n_train_steps and trainer.global_step % self._every_n_train_steps == 0:
                self.observe("step", trainer, trainer.fit_loop.epoch_loop.batch_progress.is_last_batch)

        def on_train_epoch_end(self, trainer, module):
            super().on_train_epoch_end(trainer, module)
            if self._should_save_on_train_epoch_end(trainer):
                self.observe("epoch", trainer)

        def on_validation_end(self, trainer, module):
            super().on_validation_end(trainer, module)
            if not self._should_save_on_train_epoch_end(trainer):
                self.observe("epoch", trainer)

        def on_train_end(self, trainer, module):
            super().on_train_end(trainer, module)
            self.observe("end", trainer)

    class Logged(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, index):
            self.log("train", torch.tensor(values[(2 * self.current_epoch + index) % len(values)]), on_step=True)
            return self.layer(batch[0]).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    if validates:
        Logged.validation_step = lambda self, batch, index: self.log("val", torch.tensor(values[self.current_epoch]))
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(2, 1)))
    with tempfile.TemporaryDirectory() as scratch:
        callback = Observed(dirpath=scratch, **options)
        trainer = pl.Trainer(max_epochs=len(values), accelerator="cpu", logger=False, callbacks=[callback],
                             enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0)
        trainer.fit(Logged(), data, data if validates else None)
        return dict(options=options, validates=validates, events=callback.events)
