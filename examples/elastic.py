"""A training in which ddprun replaces lost ranks while the others go on, and no step is lost:

    ddprun --nproc-per-node=2 --recover=rank --max-restarts=10 --restart-on-codes=SIGKILL,SIGSEGV,SIGBUS examples/elastic.py

In another terminal, end the process of any rank with kill -9. The example needs PyTorch and ddprun's Python package
(pip install . in this repository, or PYTHONPATH=packaging).
"""
import os

import torch
from ddprun import elastic
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

epochs = int(os.environ.get("EPOCHS", 20))
torch.set_num_threads(1)
torch.manual_seed(0)  # the same data and first weights on every rank
data = TensorDataset(torch.randn(2000, 784), torch.randint(0, 10, (2000,)))
net = torch.nn.Sequential(torch.nn.Linear(784, 256), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(256, 10))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)

# The state of the training after a complete step. Everything else is created again in each round.
state = elastic.State(model=net, optimizer=optimizer, schedule=schedule, epoch=0, batch=0, memory_every=20)


@elastic.run(state)  # a standby process waits here: it does not know its rank yet
def train() -> None:
    rank = torch.distributed.get_rank()
    model = DistributedDataParallel(net)
    loader = DataLoader(data, batch_size=20, sampler=DistributedSampler(data))
    for state.epoch in range(state.epoch, epochs):
        loss = None  # the loop's body does not run if a rank was lost after the epoch's last step
        for images, labels in state.batches(loader):  # only the batches that are not done
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            state.commit()  # this step is done
            if rank == 0:
                print(f"step {state.commits}: loss {loss.item():.9f}", flush=True)
        schedule.step()
        if rank == 0:
            print(f"epoch {state.epoch} is done" + (f": loss {loss.item():.9f}" if loss is not None else ""), flush=True)
    weights = sum(parameter.double().sum() for parameter in net.parameters()).item()
    print(f"rank {rank}: weights {weights:.17g} after {state.commits} steps", flush=True)


train()
