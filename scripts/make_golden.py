#!/usr/bin/env python3
"""Writes the files under tests/golden/, with what PyTorch itself computes and saves, for the C++ tests to compare with.

    scripts/make_golden.py            all groups
    scripts/make_golden.py GROUP...   only these

A group is a function here that fills tests/golden/GROUP/. Files are small (0.9 MB at most) and are committed, so the
tests need no Python. Made with the packages of tests/requirements.txt, which scripts/setup.sh --python installs. Every
group needs torch, torchvision, numpy and Pillow; only the groups about lightning, torchmetrics, monai, tensorboard,
safetensors and transformers need those. mnist_ddp reads Fashion-MNIST from the place of Debian's package.
"""

import argparse
import collections
import gzip
import importlib
import json
import os
import pathlib
import struct
import tempfile
import zlib

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

from golden_checkpoint import python_files
from golden_common import SAME_ON_EVERY_CPU, write_json
from golden_data import image_transform, random_split, toy_datasets
from golden_ddp import comm_hooks, ddp_buckets, optimizer_state, zero_partition
from golden_lightning import checkpoint_policy, early_stopping
from golden_rules import clip_gradients, ema, fused_optimizers, grad_scaler, losses_and_metrics, lr_schedule
from golden_report import jpeg, png, tensorboard
from golden_segmentation import dice_loss, npy, png_labels
from golden_tasks import tasks
from make_parity import ddp_parity, resnet

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"


def fill(tensors):
    """Element i of tensor k is k + i / 16 (rounded for integer dtypes)."""
    for k, tensor in enumerate(tensors):
        values = k + torch.arange(tensor.numel(), dtype=torch.float64) / 16
        tensor.data.copy_(values.reshape(tensor.shape))


def small_module():
    module = torch.nn.Sequential(
        collections.OrderedDict(conv=torch.nn.Conv2d(1, 2, 3), bn=torch.nn.BatchNorm2d(2), fc=torch.nn.Linear(4, 3))
    )
    fill(module.state_dict().values())
    return module


def state_dict_file(folder):
    """.pt and .safetensors files for worker/ddprun/train/state/state_dict_file, pt_file and unpickler."""
    module = small_module()
    weights = module.state_dict()
    torch.save(weights, folder / "state_dict.pt")
    torch.save(dict(weights), folder / "plain_dict.pt")
    torch.save({f"module.{name}": tensor for name, tensor in weights.items()}, folder / "ddp.pt")
    torch.save(dict(module.named_parameters()), folder / "parameters.pt")
    torch.save(weights, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    lightning = {
        "epoch": 3,
        "global_step": 400,
        "pytorch-lightning_version": "2.6.0",
        "state_dict": weights,
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 4}}}},
        "callbacks": {"ModelCheckpoint{'monitor': 'val_loss'}": {"best_model_score": torch.tensor(0.25)}},
        "optimizer_states": [adam(module).state_dict()],
        "lr_schedulers": [],
    }
    torch.save(lightning, folder / "lightning.ckpt")
    torch.save(adam(module).state_dict(), folder / "adam.pt")
    torch.save(values(), folder / "values.pt")
    torch.save({"many": [str(i) for i in range(300)], "again": ["299"]}, folder / "large_memo.pt")
    torch.save({"when": pathlib.PurePosixPath("x")}, folder / "unknown_global.pt")
    write_safetensors(weights, folder / "weights.safetensors")


def adam(module):
    """Adam after one step with gradients of 1: exp_avg is 0.1 everywhere, exp_avg_sq 0.001."""
    optimizer = torch.optim.Adam(module.parameters(), lr=0.0)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


def values():
    """What a pickle may hold besides weights."""
    base = torch.arange(6, dtype=torch.float32)
    dtypes = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
    return {
        "integers": [0, 255, 256, 65535, 65536, -1, 2**31 - 1, -(2**31), 2**31, 5_000_000_000, -(2**63), 2**63 - 1],
        "size": torch.Size([2, 3]),
        "dtype": torch.bfloat16,
        "set": {7},
        "empty": [{}, [], (), ""],
        "tuples": ((1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
        "constants": [None, True, False, 0.5, float("inf")],
        "text": "größer",
        1: "an int's key",
        "base": base,
        "slice": base[2:4],
        "transposed": base.view(2, 3).t(),
        "expanded": torch.ones(1).expand(3),
        "scalar": torch.tensor(2.5),
        "no_elements": torch.empty(0, 3),
        "dtypes": {name: torch.tensor([0, 1, 1]).to(getattr(torch, name)) for name in dtypes},
    }


def write_safetensors(tensors, path):
    """The format written by hand: header length, JSON header padded with spaces, data without holes."""
    names = {torch.float32: "F32", torch.int64: "I64"}
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, tensor in tensors.items():
        raw = tensor.contiguous().numpy().tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def sampler(folder):
    """Every rank's order: all of it if short, else its length, first indices and CRC-32 of the int64 values."""
    cases = []
    for size in (1, 7, 10, 1000):
        for replicas in (1, 2, 3, 4, 5):
            for shuffle in (False, True):
                for drop_last in (False, True):
                    for seed, epoch in ((0, 0), (0, 3), (1234567, 1)):
                        ranks = []
                        for rank in range(replicas):
                            replica = DistributedSampler(range(size), replicas, rank, shuffle, seed, drop_last)
                            replica.set_epoch(epoch)
                            order = list(replica)
                            ranks.append([len(order), order[:10], zlib.crc32(np.array(order, "<i8").tobytes())])
                        if not shuffle and (seed, epoch) != (0, 0):
                            continue
                        cases.append(dict(size=size, replicas=replicas, shuffle=shuffle, drop_last=drop_last,
                                          seed=seed, epoch=epoch, ranks=ranks))
    write_json(folder / "orders.json", cases)


class Net(nn.Module):
    """The MNIST CNN of PyTorch's examples."""

    def __init__(self, dropout1=0.25, dropout2=0.5):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(dropout1)
        self.dropout2 = nn.Dropout(dropout2)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = torch.flatten(self.dropout1(x), 1)
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


def digest(tensor):
    """Sum, norm and 50 evenly spread values of a tensor, in double precision."""
    flat = tensor.detach().double().flatten()
    picks = [i * (flat.numel() - 1) // 49 for i in range(50)]
    return dict(shape=list(tensor.shape), sum=flat.sum().item(), norm=flat.norm().item(), values=flat[picks].tolist())


def mnist_cnn(folder):
    """Weights drawn from seed 7, their digests, and for one batch the output and every gradient (no dropout)."""
    torch.manual_seed(7)
    net = Net()
    torch.manual_seed(11)
    images = torch.randn(4, 1, 28, 28)
    labels = torch.tensor([3, 0, 9, 3])
    net.eval()
    output = net(images)
    loss = F.nll_loss(output, labels)
    loss.backward()
    write_json(folder / "batch.json", dict(
        weights={n: digest(p) for n, p in net.named_parameters()}, images=digest(images),
        output=output.tolist(), loss=loss.item(), gradients={n: digest(p.grad) for n, p in net.named_parameters()}))


FASHION_MNIST = "/usr/share/datasets/fashion-mnist"
SAMPLES, BATCH, EPOCHS, SEED, LR = 960, 32, 2, 5, 1e-4


def read_idx(path):
    with gzip.open(path, "rb") as f:
        dims = struct.unpack(">4B", f.read(4))[3]
        shape = struct.unpack(">" + "I" * dims, f.read(4 * dims))
        return torch.from_numpy(np.frombuffer(f.read(), np.uint8).reshape(shape).copy())


def train_ddp(rank, store, folder):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    images = read_idx(f"{FASHION_MNIST}/train-images-idx3-ubyte.gz")[:SAMPLES]
    labels = read_idx(f"{FASHION_MNIST}/train-labels-idx1-ubyte.gz")[:SAMPLES].long()
    images = images.float().div(255).sub(0.1307).div(0.3081).unsqueeze(1)
    torch.manual_seed(SEED)
    ddp = DistributedDataParallel(Net(0, 0))
    optimizer = torch.optim.Adam(ddp.parameters(), LR)
    order = DistributedSampler(range(SAMPLES), seed=SEED)
    losses = []
    for epoch in range(EPOCHS):
        order.set_epoch(epoch)
        for picks in torch.tensor(list(order)).split(BATCH):
            optimizer.zero_grad()
            loss = F.nll_loss(ddp(images[picks]), labels[picks])
            loss.backward()
            optimizer.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            losses.append(mean.item() / 2)
    data = ddp._get_ddp_logging_data()
    buckets = [int(size) for size in data["rebuilt_bucket_sizes"].split(",")]
    if rank == 0:
        write_json(folder / "losses.json", dict(samples=SAMPLES, batch_size=BATCH, epochs=EPOCHS, seed=SEED, lr=LR,
                                                   environment=SAME_ON_EVERY_CPU, losses=losses,
                                                   rebuilt_bucket_bytes=buckets))
    dist.barrier()
    dist.destroy_process_group()


def mnist_ddp(folder):
    """Losses (mean over ranks) of 30 steps on two ranks, Adam, no dropout, on Fashion-MNIST's first images."""
    os.environ.update(SAME_ON_EVERY_CPU)  # read by the ranks, which are new processes
    with tempfile.TemporaryDirectory() as scratch:
        mp.spawn(train_ddp, (f"{scratch}/store", folder), nprocs=2)


def sam(name):
    """A group of golden_sam.py, imported only when needed because transformers loads slowly."""
    def group(folder):
        getattr(importlib.import_module("golden_sam"), name)(folder)
    group.__name__ = name
    return group


GROUPS = {function.__name__: function
          for function in (state_dict_file, python_files, sampler, mnist_cnn, mnist_ddp, ddp_buckets, zero_partition,
                           optimizer_state, comm_hooks, resnet, ddp_parity, image_transform, random_split, toy_datasets,
                           early_stopping, checkpoint_policy, fused_optimizers, lr_schedule, grad_scaler, clip_gradients,
                           ema, losses_and_metrics, dice_loss, npy, png_labels, jpeg, png, tensorboard, tasks,
                           sam("sam_model"), sam("sam_processor"))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    groups = parser.parse_args().groups or list(GROUPS)
    unknown = [name for name in groups if name not in GROUPS]
    if unknown:
        parser.error(f"unknown group {unknown[0]!r}, expected one of {', '.join(GROUPS)}")
    for name in groups:
        folder = GOLDEN / name
        folder.mkdir(parents=True, exist_ok=True)
        GROUPS[name](folder)
        print(f"{folder}: {sum(1 for _ in folder.iterdir())} files")


if __name__ == "__main__":
    main()
