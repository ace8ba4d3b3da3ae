#!/usr/bin/env python3
"""mnist_recovering.py for torchft: two replicas that continue without each other, each under its own torchrun, and a lighthouse.

usage: mnist_torchft.py FOLDER STEPS SAVE_EVERY CHECKPOINT      # with a Python that has torchft
"""
import datetime
import os
import pathlib
import socket
import subprocess
import sys


def train(folder, steps, every, path):
    import torch
    import torchft
    from mnist_ddp import Net, read_idx
    from mnist_recovering import say_result, train_step

    os.makedirs(os.path.dirname(path), exist_ok=True)
    torch.manual_seed(0)
    images = read_idx(f"{folder}/train-images-idx3-ubyte.gz")
    labels = read_idx(f"{folder}/train-labels-idx1-ubyte.gz").long()
    replica, model = int(os.environ["REPLICA_GROUP_ID"]), Net()
    adam = torch.optim.Adam(model.parameters(), 1e-3)

    def state():
        return {"model": model.state_dict(), "optimizer": adam.state_dict()}

    def load(saved):
        model.load_state_dict(saved["model"])
        adam.load_state_dict(saved["optimizer"])

    five = datetime.timedelta(seconds=5)
    manager = torchft.Manager(pg=torchft.ProcessGroupGloo(timeout=five), load_state_dict=load, state_dict=state, min_replica_size=1,
                              timeout=five, replica_id=f"replica{replica}")
    ddp, optimizer = torchft.DistributedDataParallel(manager, model), torchft.Optimizer(manager, adam)
    path += f".{replica}"
    if os.path.exists(path):
        saved = torch.load(path)
        load(saved["default"])
        manager.load_state_dict(saved["torchft"])
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[replica::2]
    while (step := manager.current_step()) < steps:
        loss = train_step(ddp, optimizer, images, labels, order, step)
        if manager.current_step() > step:
            if manager.participating_rank() == 0:
                print("step", manager.current_step(), flush=True)
            if manager.current_step() % every == 0:
                torch.save({"default": state(), "torchft": manager.state_dict()}, path + ".new")
                os.replace(path + ".new", path)
    say_result(model, loss)
    os._exit(0)


def main():
    if "REPLICA_GROUP_ID" in os.environ:
        return train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    programs = pathlib.Path(sys.executable).parent
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    lighthouse = subprocess.Popen([programs / "torchft_lighthouse", f"--bind=[::]:{port}", "--min_replicas=1", "--join_timeout_ms=10000"])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=1", "--max_restarts=1000", *sys.argv]
    replicas = [subprocess.Popen(command, env=dict(os.environ, TORCHFT_LIGHTHOUSE=f"http://localhost:{port}", REPLICA_GROUP_ID=str(i),
                                                   NUM_REPLICA_GROUPS="2")) for i in range(2)]
    status = max([replica.wait() for replica in replicas], key=abs)
    lighthouse.kill()
    return status


if __name__ == "__main__":
    sys.exit(main())
