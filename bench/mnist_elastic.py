#!/usr/bin/env python3
"""mnist_recovering.py on ddprun.elastic, without checkpoints. For bench/recovery.py.

usage: mnist_elastic.py FOLDER STEPS
"""
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "packaging"))
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddprun import elastic
from mnist_ddp import Net, read_idx
from mnist_recovering import say_result, train_step

folder, steps = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
images = read_idx(f"{folder}/train-images-idx3-ubyte.gz")
labels = read_idx(f"{folder}/train-labels-idx1-ubyte.gz").long()
net = Net()
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
state = elastic.State(model=net, optimizer=optimizer)


@elastic.run(state)
def train():
    model, rank = DistributedDataParallel(net), dist.get_rank()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[rank::dist.get_world_size()]
    loss = None
    while state.commits < steps:
        torch.manual_seed(state.commits * 1000 + rank)
        loss = train_step(model, optimizer, images, labels, order, state.commits)
        state.commit()
        if rank == 0:
            print("step", state.commits, flush=True)
    if rank == 0 and loss is not None:
        say_result(net, loss)


train()
os._exit(0)
