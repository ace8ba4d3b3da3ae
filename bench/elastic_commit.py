#!/usr/bin/env python3
"""What State.commit() of ddprun.elastic costs a step: its median and longest time on rank 0 over the steps of a training on made-up pictures.

    ddprun --nproc-per-node=2 --recover=rank --max-restarts=1 bench/elastic_commit.py mnist|resnet18|resnet50 [--steps 200]    # the latter need torchvision
"""
import argparse
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "packaging"))
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddprun import elastic
from mnist_ddp import Net

parser = argparse.ArgumentParser()
parser.add_argument("model", choices=["mnist", "resnet18", "resnet50"])
parser.add_argument("--steps", type=int, default=200)
arguments = parser.parse_args()
torch.set_num_threads(1)
shape = (32, 1, 28, 28)
if arguments.model == "mnist":
    net = Net()
else:
    import torchvision

    net, shape = getattr(torchvision.models, arguments.model)(num_classes=10), (4, 3, 32, 32)
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 50)
state = elastic.State(model=net, optimizer=optimizer, schedule=schedule, epoch=0, batch=0)


@elastic.run(state)
def train():
    model, seconds, begin = DistributedDataParallel(net), [], time.perf_counter()
    for _ in range(arguments.steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(torch.randn(shape)), torch.zeros(shape[0], dtype=torch.long)).backward()
        optimizer.step()
        before = time.perf_counter()
        state.commit()
        seconds.append(time.perf_counter() - before)
    if dist.get_rank() == 0:
        step = (time.perf_counter() - begin) / arguments.steps
        print(f"{arguments.model}: a step {step * 1e3:.0f} ms, commit {statistics.median(seconds) * 1e3:.3f} ms, at most {max(seconds) * 1e3:.2f}", flush=True)


train()
