"""Hugging Face Accelerate under ddprun.elastic: lost ranks are replaced while the others go on, and no step is lost:

    ddprun --nproc-per-node=2 --recover=rank --max-restarts=10 --restart-on-codes=SIGKILL,SIGSEGV,SIGBUS examples/elastic_accelerate.py

Accelerator() and prepare() belong in the function, because they are for the process group of one round.
"""
import os

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from ddprun import elastic
from torch.utils.data import DataLoader, TensorDataset

epochs = int(os.environ.get("EPOCHS", 20))
torch.set_num_threads(1)
torch.manual_seed(0)  # the same data and first weights on every rank
data = TensorDataset(torch.randn(2000, 784), torch.randint(0, 10, (2000,)))
net = torch.nn.Sequential(torch.nn.Linear(784, 256), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(256, 10))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(data) // 40)

# The state of the training after a complete step: what prepare() is given, not what it returns.
state = elastic.State(model=net, optimizer=optimizer, schedule=schedule, epoch=0, batch=0, memory_every=20)


@elastic.run(state)  # a standby process waits here: it does not know its rank yet
def train() -> None:
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(),
        gradient_accumulation_steps=2,
        # The order of the samples stays the same when an epoch is continued in a new round:
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0),
    )
    model, stepper, rates, loader = accelerator.prepare(net, optimizer, schedule, DataLoader(data, batch_size=10, shuffle=True))
    for state.epoch in range(state.epoch, epochs):
        for images, labels in state.batches(loader):  # only the batches that are not done
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                accelerator.backward(loss)
                stepper.step()
                rates.step()
                stepper.zero_grad()
            if accelerator.sync_gradients:
                state.commit()  # this step is done
                accelerator.print(f"step {state.commits}: loss {loss.item():.9f}", flush=True)
    weights = sum(parameter.double().sum() for parameter in net.parameters()).item()
    print(f"rank {accelerator.process_index}: weights {weights:.17g} after {state.commits} steps", flush=True)


train()
