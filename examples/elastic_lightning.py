"""Lightning's Trainer under ddprun.elastic: lost ranks are replaced while the others go on, and no step is lost:

    ddprun --nproc-per-node=2 --recover=rank --max-restarts=10 --restart-on-codes=SIGKILL,SIGSEGV,SIGBUS examples/elastic_lightning.py

In each round, a new Trainer continues after the last step.
"""
import os

import lightning
import torch
from ddprun import elastic
from ddprun.lightning import Steps
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

epochs = int(os.environ.get("EPOCHS", 20))
torch.set_num_threads(1)
torch.manual_seed(0)  # the same data and first weights on every rank
data = TensorDataset(torch.randn(2000, 784), torch.randint(0, 10, (2000,)))


class Net(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(784, 256), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(256, 10))

    def training_step(self, batch, number):
        return torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def validation_step(self, batch, number):
        self.log("validation_loss", self.training_step(batch, number), sync_dist=True)

    def on_train_batch_end(self, outputs, *_):
        if self.global_rank == 0:
            print(f"step {state.commits}: loss {outputs['loss'].item():.9f}", flush=True)

    def configure_optimizers(self):
        return {"optimizer": optimizer, "lr_scheduler": schedule}  # the State's own


net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
state = elastic.State(model=net, optimizer=optimizer, schedule=schedule, loops=None, epoch=0, batch=0, memory_every=20)


@elastic.run(state)  # a standby process waits here: it does not know its rank yet
def train() -> None:
    steps = Steps(state, DataLoader(data, batch_size=20, sampler=DistributedSampler(data)))
    ranks, nodes = (int(os.environ.get(name, 1)) for name in ("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"))
    trainer = lightning.Trainer(
        accelerator="cpu", strategy="ddp", devices=ranks, num_nodes=nodes, max_epochs=epochs, callbacks=[steps],
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(net, steps, DataLoader(data, batch_size=100))
    weights = sum(parameter.double().sum() for parameter in net.parameters()).item()
    print(f"rank {trainer.global_rank}: weights {weights:.17g} after {state.commits} steps", flush=True)


train()
