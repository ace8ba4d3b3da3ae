"""Lightning's Trainer resumes from the worker's .ckpt files and the worker from Lightning's, with equal losses.

usage: lightning_test.py WORKER      (exit status 4: skipped)
"""
import csv
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

python = os.environ.get("DDPRUN_TEST_PYTHON")
if not python:
    print("skipped: DDPRUN_TEST_PYTHON names no Python with Lightning")
    sys.exit(4)
if pathlib.Path(sys.executable) != pathlib.Path(python):
    os.execv(python, [python, *sys.argv])
os.environ["CUDA_VISIBLE_DEVICES"] = ""
try:
    import lightning.pytorch as pl
    import safetensors.torch
    import torch
    import torchmetrics
    import torchvision
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
except ImportError as error:
    print(f"skipped: {python}, which DDPRUN_TEST_PYTHON names: {error}")
    sys.exit(4)
warnings.simplefilter("ignore")

BATCH, TRAIN, TEST, EPOCHS, LR = 16, 60, 20, 3, 0.01
PER_EPOCH = 4  # steps
MIDDLE, BETWEEN = 6, 2 * PER_EPOCH  # steps in the middle of the second epoch, and after it
MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
STD = torch.tensor([0.2023, 0.1994, 0.2010]).view(3, 1, 1)
CLOSE = dict(rtol=2e-3, atol=1e-5)


class Net(pl.LightningModule):
    """The walkthrough's DDPResNet."""

    def __init__(self, num_classes=10, learning_rate=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.backbone = torchvision.models.resnet18(num_classes=num_classes)
        self.criterion = torch.nn.CrossEntropyLoss()
        self.val_acc = torchmetrics.Accuracy(task="multiclass", num_classes=num_classes)
        self.losses = {}

    def training_step(self, batch, _):
        loss = self.criterion(self.backbone(batch[0]), batch[1])
        self.losses[self.global_step + 1] = loss.item()
        return loss

    def validation_step(self, batch, _):
        logits = self.backbone(batch[0])
        self.val_acc(logits, batch[1])
        self.log("val_loss", self.criterion(logits, batch[1]))
        self.log("val_acc", self.val_acc)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.learning_rate, momentum=0.9, weight_decay=5e-4)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)]


class Sampler(torch.utils.data.DistributedSampler):
    """Goes on where the trainer is in its epoch, as Lightning asks of a loader that resumes."""

    trainer = None

    def __iter__(self):
        yield from list(super().__iter__())[self.trainer.fit_loop.epoch_loop.batch_progress.current.ready * BATCH:]


def write_data(folder):
    folder.mkdir()
    sets = []
    generator = torch.Generator().manual_seed(1)
    for count, names in (TRAIN, [f"data_batch_{i}.bin" for i in range(1, 6)]), (TEST, ["test_batch.bin"]):
        labels = torch.arange(count) % 10
        pixels = torch.randint(0, 256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8) // 2
        pixels[torch.arange(count), labels % 3] += (labels * 12).to(torch.uint8).view(-1, 1, 1)
        rows = torch.cat([labels.to(torch.uint8).view(-1, 1), pixels.flatten(1)], 1)
        for name, part in zip(names, rows.chunk(len(names))):
            (folder / name).write_bytes(part.numpy().tobytes())
        sets.append(torch.utils.data.TensorDataset((pixels / 255 - MEAN) / STD, labels))
    return sets


def fit(sets, folder, checkpoint=None, callbacks=(), net=None, **options):
    """Trains with Lightning. Returns the module, whose `losses` are by step, and the trainer."""
    net = net or Net(learning_rate=LR)
    sampler = Sampler(sets[0], num_replicas=1, rank=0, seed=0)
    trainer = pl.Trainer(max_epochs=EPOCHS, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
                         enable_model_summary=False, num_sanity_val_steps=0, gradient_clip_val=1.0,
                         default_root_dir=folder, enable_checkpointing=bool(callbacks), callbacks=list(callbacks), **options)
    sampler.trainer = trainer
    trainer.fit(net, torch.utils.data.DataLoader(sets[0], BATCH, sampler=sampler),
                torch.utils.data.DataLoader(sets[1], TEST), ckpt_path=checkpoint)
    return net, trainer


class Worker:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder

    def call(self, *words):
        ended = subprocess.run([self.program, *map(str, words)], capture_output=True, text=True, cwd=self.folder, timeout=300)
        assert ended.returncode == 0, ended.stderr
        return ended

    def train(self, out, *flags):
        """Returns the losses by step and stderr."""
        ended = self.call("cifar10", f"--data={self.folder / 'data'}", f"--out={self.folder / out}", "--precision=32",
                          "--device=cpu", "--no-augment", "--val-on-test", f"--batch-size={BATCH}", f"--epochs={EPOCHS}",
                          f"--lr={LR}", "--log-interval=1", "--no-report", *flags)
        rows = list(csv.DictReader((self.folder / out / "metrics.csv").open()))
        return {int(row["step"]): float(row["train_loss"]) for row in rows if row["train_loss"]}, ended.stderr


def check_equal(got, expected, first):
    assert sorted(got) == list(range(first, PER_EPOCH * EPOCHS + 1)), sorted(got)
    for step in got:
        torch.testing.assert_close(torch.tensor(got[step]), torch.tensor(expected[step]), **CLOSE, msg=lambda m: f"step {step}: {m}")


def lightning_resumes_from_ours(worker, sets):
    whole, _ = worker.train("whole")
    for steps in MIDDLE, BETWEEN:
        worker.train(f"part{steps}", f"--max-steps={steps}")
        last = worker.folder / f"part{steps}/checkpoints/last.ckpt"
        stopping = EarlyStopping("val_acc", mode="max", min_delta=0.001, patience=10)
        net, trainer = fit(sets, worker.folder, last, [stopping, ModelCheckpoint(worker.folder / "kept", monitor="val_acc", mode="max")])
        check_equal(net.losses, whole, steps + 1)
        assert trainer.global_step == PER_EPOCH * EPOCHS and trainer.current_epoch == EPOCHS

        state = torch.load(last)
        theirs = state["callbacks"][stopping.state_key]
        assert len(state["callbacks"]) == 2 and theirs["patience"] == 10, state["callbacks"].keys()
        assert stopping.best_score >= theirs["best_score"] >= 0
        loaded = Net.load_from_checkpoint(last)
        assert loaded.hparams.learning_rate == LR
        for name, tensor in loaded.state_dict().items():
            assert torch.equal(tensor, state["state_dict"][name]), name
    resumed, _ = worker.train("resumed", "--resume", worker.folder / f"part{MIDDLE}/checkpoints/last.ckpt")
    assert resumed == {step: loss for step, loss in whole.items() if step > MIDDLE}  # bit for bit


def we_resume_from_lightning(worker, sets):
    folder = worker.folder / "theirs"
    torch.manual_seed(3)
    callbacks = [ModelCheckpoint(folder, "{step}", every_n_train_steps=MIDDLE, save_top_k=-1), ModelCheckpoint(folder, "{epoch}", save_top_k=-1),
                 EarlyStopping("val_acc", mode="max", patience=100)]
    net, trainer = fit(sets, folder, callbacks=callbacks)
    for name, step in (f"step={MIDDLE}", MIDDLE), ("epoch=1", BETWEEN):
        losses, log = worker.train(f"from-{name}", "--resume", folder / f"{name}.ckpt")
        check_equal(losses, net.losses, step + 1)
        assert log.count('the prefix "backbone." of all names is dropped') == 1, log
    # The newest weights, with the settings that the file implies, and what the user states instead.
    assert "lr = 0.01" in (worker.folder / "from-epoch=1/config.toml").read_text()
    _, log = worker.train("other", "--resume", folder / "epoch=1.ckpt", "--lr=0.5")
    assert "--lr 0.5 replaces the checkpoint's 0.01" in log, log

    validated = trainer.validate(net, torch.utils.data.DataLoader(sets[1], TEST), ckpt_path=folder / "epoch=2.ckpt", verbose=False)[0]
    out = worker.call("cifar10", f"--data={worker.folder / 'data'}", "--precision=32", "--device=cpu", "--eval", folder / "epoch=2.ckpt").stdout
    figures = json.loads(out.splitlines()[-1])
    assert figures["samples"] == TEST and abs(figures["test_loss"] - validated["val_loss"]) < 1e-4 * validated["val_loss"]


def names_have_prefixes(worker):
    folder = worker.folder
    ours, theirs = folder / f"part{MIDDLE}/checkpoints/last.ckpt", folder / "theirs/epoch=1.ckpt"
    for number, source in enumerate((ours, theirs)):
        worker.call("export", source, folder / "plain.pt")
        torchvision.models.resnet18(num_classes=10).load_state_dict(torch.load(folder / "plain.pt"))
        worker.call("export", source, folder / "prefixed.safetensors", "--prefix=backbone.")
        Net().load_state_dict(safetensors.torch.load_file(folder / "prefixed.safetensors"))
        worker.call("export", source, folder / f"again{number}.ckpt", "--prefix=net.backbone.")
        again, before = torch.load(folder / f"again{number}.ckpt"), torch.load(source)
        assert all(name.startswith("net.backbone.conv1") for name in list(again["state_dict"])[:1])
        assert again["global_step"] == before["global_step"]
        assert again["lr_schedulers"][0]["last_epoch"] == before["lr_schedulers"][0]["last_epoch"]
    losses, _ = worker.train("again", "--resume", folder / "again0.ckpt")
    assert min(losses) == MIDDLE + 1
    # A .pt of any task becomes a file for Lightning.
    worker.call("toy", "2", "1", f"--out={folder / 'toy'}")
    worker.call("export", folder / "toy/checkpoints/last.pt", folder / "toy.ckpt", "--prefix=model.")
    toy = torch.load(folder / "toy.ckpt")
    assert list(toy["state_dict"]) == ["model.weight", "model.bias"] and toy["loops"]["fit_loop"]["epoch_progress"]["total"]["completed"] == 2

    nested = {"_orig_mod.model.net." + name: tensor for name, tensor in torch.load(folder / "plain.pt").items()}
    torch.save(nested, folder / "nested.pt")
    _, log = worker.train("nested", "--max-steps=1", "--init-weights", folder / "nested.pt")
    assert log.count('nested.pt: the prefix "_orig_mod.model.net." of all names is dropped') == 1, log


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        sets = write_data(folder / "data")
        worker = Worker(sys.argv[1], folder)
        lightning_resumes_from_ours(worker, sets)
        we_resume_from_lightning(worker, sets)
        names_have_prefixes(worker)
    print("passed")


main()
