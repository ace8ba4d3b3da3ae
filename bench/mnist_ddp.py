#!/usr/bin/env python3
"""The worker's mnist task in Python, as lean as possible: images in memory as one tensor, no PIL, no loader process.

For bench/training.py; runs under torchrun or ddprun. usage: mnist_ddp.py FOLDER [--epochs 1] [--batch-size 128]
"""
import argparse
import gzip
import json
import os
import resource
import struct
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler


def read_idx(path):
    with gzip.open(path, "rb") as f:
        dimensions = struct.unpack(">4B", f.read(4))[3]
        shape = struct.unpack(">" + "I" * dimensions, f.read(4 * dimensions))
        return torch.frombuffer(bytearray(f.read()), dtype=torch.uint8).reshape(shape)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = torch.flatten(self.dropout1(F.max_pool2d(x, 2)), 1)
        return F.log_softmax(self.fc2(self.dropout2(F.relu(self.fc1(x)))), dim=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--limit", type=int, default=60000)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    images = read_idx(f"{arguments.folder}/train-images-idx3-ubyte.gz")[: arguments.limit]
    labels = read_idx(f"{arguments.folder}/train-labels-idx1-ubyte.gz")[: arguments.limit].long()
    ddp = DistributedDataParallel(Net())
    optimizer = torch.optim.Adam(ddp.parameters(), 1e-3)
    sampler = DistributedSampler(range(len(images)))
    begin, samples = time.time(), 0
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        for picks in torch.tensor(list(sampler)).split(arguments.batch_size):
            batch = images[picks].float().div_(255).sub_(0.1307).div_(0.3081).unsqueeze(1)
            optimizer.zero_grad()
            loss = F.nll_loss(ddp(batch), labels[picks])
            loss.backward()
            optimizer.step()
            loss.item()
            if samples == 0 and dist.get_rank() == 0:
                print("first step", flush=True)
            samples += len(picks)
    seconds = time.time() - begin
    if dist.get_rank() == 0:
        print(json.dumps(dict(samples_per_second=samples * dist.get_world_size() / seconds,
                              peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # Gloo's destructor can hang at interpreter end


if __name__ == "__main__":
    main()
