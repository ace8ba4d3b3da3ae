"""Losses of the documented trainings under Python's DDP on two ranks, thirty steps each; see make_golden.py."""

import os
import pathlib
import tempfile

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
import torchvision
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from golden_common import SAME_ON_EVERY_CPU, write_json

STEPS = 30
CIFAR10_SAMPLES, CIFAR10_BATCH, CIFAR10_LR = 240, 4, 0.01


def toy():
    data = [(torch.rand(20), torch.rand(1)) for _ in range(2048)]
    model = torch.nn.Linear(20, 1)
    return data, 32, model, torch.optim.SGD(model.parameters(), 1e-3), F.mse_loss, None


def linear():
    before = torch.Generator().manual_seed(0)  # the document draws the data before the ranks start
    data = TensorDataset(torch.randn(1000, 10, generator=before), torch.randint(0, 2, (1000, 1), generator=before).float())
    model = torch.nn.Linear(10, 1)
    return data, 32, model, torch.optim.Adam(model.parameters(), 1e-3), F.binary_cross_entropy_with_logits, None


def cifar10():
    """Made-up pictures, which the test writes into CIFAR-10's files."""
    model = torchvision.models.resnet18(num_classes=10)
    image, pixel = np.arange(CIFAR10_SAMPLES)[:, None], np.arange(3072)[None, :]
    raw = ((image * 37 + pixel * 11 + image * pixel // 5 % 97) % 256).astype(np.float32).reshape(-1, 3, 32, 32)
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2023, 0.1994, 0.2010])
    images = (torch.from_numpy(raw) / 255 - mean[:, None, None]) / std[:, None, None]
    data = TensorDataset(images, torch.arange(CIFAR10_SAMPLES) % 10)
    optimizer = torch.optim.SGD(model.parameters(), CIFAR10_LR * dist.get_world_size(), momentum=0.9, weight_decay=5e-4)
    return data, CIFAR10_BATCH, model, optimizer, F.cross_entropy, 1.0


def train(rank, store, folder, name):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data, batch_size, model, optimizer, loss_of, clip = {"toy": toy, "linear": linear, "cifar10": cifar10}[name]()
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=name == "cifar10")
    loader = DataLoader(data, batch_size, sampler=DistributedSampler(data))
    losses, epoch = [], 0
    while len(losses) < STEPS:
        loader.sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = loss_of(ddp(inputs), targets)
            loss.backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(ddp.parameters(), clip)
            optimizer.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            losses.append(mean.item() / 2)
        epoch += 1
    if rank == 0:
        write_json(pathlib.Path(folder) / f"{name}.json", dict(environment=SAME_ON_EVERY_CPU, losses=losses[:STEPS]))
    dist.barrier()
    dist.destroy_process_group()


def tasks(folder):
    os.environ.update(SAME_ON_EVERY_CPU)  # read by the ranks, which are new processes
    for name in ("toy", "linear", "cifar10"):
        with tempfile.TemporaryDirectory() as scratch:
            mp.spawn(train, (f"{scratch}/store", folder, name), nprocs=2)
