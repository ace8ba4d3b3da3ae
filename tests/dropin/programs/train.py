"""DDP training as tutorials have it: gloo, a DataLoader with worker processes, every loss in full precision."""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def say(line):
    print(line + "\n", end="", flush=True)  # one write: torchrun does not keep the ranks' lines apart


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    torch.set_num_threads(1)  # the order of sums is the threads'
    points = torch.randn(128, 8)
    dataset = TensorDataset(points, points.sum(1, keepdim=True).sin())
    sampler = DistributedSampler(dataset, seed=3)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler, num_workers=2)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for step, (inputs, targets) in enumerate(loader):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            say(f"rank {rank} of {dist.get_world_size()} epoch {epoch} step {step} loss {loss.item().hex()}")
    total = sum(parameter.double().sum() for parameter in model.parameters())
    say(f"rank {rank} parameters {total.item().hex()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
