#!/usr/bin/env python3
"""mnist_ddp.py with a checkpoint every few steps and resume, as people write it for torchrun. For bench/recovery.py.

usage: mnist_recovering.py FOLDER STEPS SAVE_EVERY CHECKPOINT
"""
import hashlib
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from mnist_ddp import Net, read_idx


def say_result(model, loss):
    weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    print("Loss: %.6f" % loss.item(), "weights:", hashlib.sha256(weights).hexdigest(), flush=True)


def train_step(ddp, optimizer, images, labels, order, step):
    """The loss of this rank's batch of 128, before the step."""
    picks = order[step * 128 % (len(order) - 128):][:128]
    batch = images[picks].float().div_(255).sub_(0.1307).div_(0.3081).unsqueeze(1)
    optimizer.zero_grad()
    loss = F.nll_loss(ddp(batch), labels[picks])
    loss.backward()
    optimizer.step()
    return loss


def main():
    folder, steps, every, path = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    os.makedirs(os.path.dirname(path), exist_ok=True)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    images = read_idx(f"{folder}/train-images-idx3-ubyte.gz")
    labels = read_idx(f"{folder}/train-labels-idx1-ubyte.gz").long()
    ddp = DistributedDataParallel(Net())
    optimizer = torch.optim.Adam(ddp.parameters(), 1e-3)
    rank, size, step = dist.get_rank(), dist.get_world_size(), 0
    if os.path.exists(path):
        state = torch.load(path)
        ddp.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[rank::size]
    while step < steps:
        loss = train_step(ddp, optimizer, images, labels, order, step)
        step += 1
        if rank == 0:
            print("step", step, flush=True)
            if step % every == 0:
                torch.save({"model": ddp.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path + ".new")
                os.replace(path + ".new", path)
    dist.barrier()
    if rank == 0:
        say_result(ddp.module, loss)
    os._exit(0)


if __name__ == "__main__":
    main()
