"""Files that Python's training programs write, for the readers of worker/serialize and worker/train."""

import collections
import contextlib
import io
import os
import tempfile
import warnings

import torch


def views():
    """Tensors that share storages, which plain copies would lose."""
    base = torch.arange(24, dtype=torch.float32)
    return {
        "base": base,
        "matrix": base.view(4, 6),
        "columns": base.view(4, 6)[:, 1:3],
        "every_other": base[1::2],
        "transposed": base.view(2, 3, 4).permute(2, 0, 1),
        "expanded": base[5:6].expand(3),
        "channels_last": torch.arange(16.0).view(1, 4, 2, 2).to(memory_format=torch.channels_last),
    }


def inert():
    """Objects without tensors that are not plain values, but harmless to call."""
    return {
        "device": torch.device("cuda", 1),
        "cpu": torch.device("cpu"),
        "counter": collections.Counter([30, 80, 80]),
        "no_counter": collections.Counter(),
        "one": {"entry": 1},
        "ordered": collections.OrderedDict(one=1),
    }


def lightning_checkpoint(path):
    """What Lightning's Trainer saves after two steps of a module with hyperparameters and a schedule."""
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self, width=4):
            super().__init__()
            self.save_hyperparameters()
            self.model = torch.nn.Sequential(torch.nn.Linear(width, 3), torch.nn.BatchNorm1d(3))

        def training_step(self, batch, index):
            loss = self.model(batch).square().mean()
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
            return [optimizer], [torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2])]

    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        trainer = pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False,
                             enable_model_summary=False, default_root_dir=folder,
                             callbacks=[pl.callbacks.ModelCheckpoint(folder, monitor="train_loss"),
                                        pl.callbacks.EarlyStopping("train_loss", check_on_train_epoch_end=True)])
        trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=4))
        trainer.save_checkpoint(path)
    # Contains a path of this machine.
    checkpoint = torch.load(path)
    for callback in checkpoint["callbacks"].values():
        for key, value in callback.items():
            if isinstance(value, str) and folder in value:
                callback[key] = value.replace(folder, "checkpoints")
        if "best_k_models" in callback:
            callback["best_k_models"] = {k.replace(folder, "checkpoints"): v
                                         for k, v in callback["best_k_models"].items()}
    torch.save(checkpoint, path)


def generator():
    """A state of the CPU's generator, the five numbers drawn from it, and the state after that."""
    torch.manual_seed(5)
    torch.randn(7)
    state = torch.get_rng_state()
    return {"state": state, "next": torch.rand(5), "then": torch.get_rng_state()}


class Tied(torch.nn.Module):
    """Two layers that share one weight."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(5, 3)
        self.head = torch.nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


def python_files(folder):
    """.pt, .ckpt and .safetensors files as PyTorch, Lightning and safetensors write them."""
    warnings.simplefilter("ignore")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.save(views(), folder / "views.pt")
    torch.save(views(), folder / "views_legacy.pt", _use_new_zipfile_serialization=False)
    torch.save(inert(), folder / "inert.pt")
    torch.save({name: torch.tensor([0, 1, 2]).to(getattr(torch, name))
                for name in ("complex64", "complex128", "complex32", "uint16", "uint32", "uint64", "float8_e4m3fn",
                             "float8_e5m2")}, folder / "new_dtypes.pt")
    torch.save({"conjugate": torch.tensor([1 + 2j]).conj()}, folder / "conjugate.pt")
    torch.save({"sparse": torch.eye(2).to_sparse()}, folder / "sparse.pt")
    torch.save(generator(), folder / "generator.pt")
    lightning_checkpoint(folder / "trainer.ckpt")

    import safetensors.torch
    tied = Tied()
    with torch.no_grad():
        tied.embed.weight.copy_(torch.arange(15.0).view(5, 3))
    safetensors.torch.save_model(tied, folder / "tied.safetensors")  # metadata of two keys has them in any order
    averaged = torch.optim.swa_utils.AveragedModel(tied)
    torch.save({"format": 1, "step": 3, "ema": averaged.state_dict()}, folder / "averaged.pt")
