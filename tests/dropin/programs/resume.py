"""Training that saves every step and goes on from there when it is started again. With --fail-once rank 1 is lost."""
import os
import pathlib
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, FAILS_AT = 6, 3


def main():
    file = pathlib.Path(os.environ["DROPIN_OUT"], "state.pt")
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    first = 0
    if file.exists():
        state = torch.load(file)
        first = state["step"] + 1
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    print(f"attempt {attempt} of {os.environ['TORCHELASTIC_MAX_RESTARTS']} begins at step {first}")
    print(f"port {os.environ['MASTER_PORT']}")
    parallel = DistributedDataParallel(model)
    for step in range(first, STEPS):
        if step == FAILS_AT and attempt == "0" and rank == 1 and "--fail-once" in sys.argv:
            sys.exit(9)
        loss = parallel(torch.randn(16, 8, generator=torch.Generator().manual_seed(10 * step + rank))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item().hex()}")
        if rank == 0:
            torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{file}.new")
            os.replace(f"{file}.new", file)
        dist.barrier()
    dist.destroy_process_group()


main()
