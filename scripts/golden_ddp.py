"""The golden groups of make_golden.py about worker/ddp: optimizers, gradient compression, buckets."""

import copy
import os
import pathlib
import tempfile
import unittest.mock

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
import torch.testing._internal.distributed.fake_pg
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from golden_common import SAME_ON_EVERY_CPU, write_json


def zero_partition(folder):
    """The owner of each parameter under ZeroRedundancyOptimizer, for made-up sizes."""
    cases = []
    store = torch.testing._internal.distributed.fake_pg.FakeStore()
    for ranks in (1, 2, 3, 4, 7):
        dist.init_process_group("fake", store=store, rank=0, world_size=ranks)
        for groups in ([[6]], [[5, 5, 5, 5]], [[1, 9, 4, 4, 7], [3, 8, 8]], [[(i * 37) % 23 + 1 for i in range(40)]]):
            parameters = [[nn.Parameter(torch.zeros(size)) for size in sizes] for sizes in groups]
            optimizer = ZeroRedundancyOptimizer([dict(params=p) for p in parameters], torch.optim.SGD, lr=0.1)
            owner = {id(p): rank for rank, parts in enumerate(optimizer._partition_parameters())
                     for part in parts for p in part["params"]}
            cases.append(dict(ranks=ranks, groups=groups, owners=[owner[id(p)] for ps in parameters for p in ps]))
        dist.destroy_process_group()
    write_json(folder / "owners.json", cases)


def optimizer_state(folder):
    """For each optimizer its state dict after two steps, and the parameters then and two steps later."""
    optim = torch.optim
    makers = dict(
        sgd=lambda g: optim.SGD(g, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
        sgd_plain=lambda g: optim.SGD(g, lr=0.1),
        adam=lambda g: optim.Adam(g, lr=0.1, betas=(0.8, 0.95), weight_decay=0.01),
        adam_amsgrad=lambda g: optim.Adam(g, lr=0.1, amsgrad=True),
        adamw=lambda g: optim.AdamW(g, lr=0.1, weight_decay=0.1),
        adagrad=lambda g: optim.Adagrad(g, lr=0.1, lr_decay=0.01, initial_accumulator_value=0.5),
        rmsprop=lambda g: optim.RMSprop(g, lr=0.1, alpha=0.9, momentum=0.5, centered=True),
        adadelta=lambda g: optim.Adadelta(g, lr=0.5),
        radam=lambda g: optim.RAdam(g),
    )
    for name, make in makers.items():
        torch.manual_seed(3)
        parameters = [nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in ((3, 2), (2,), (4,))]
        optimizer = make([dict(params=parameters[:2]), dict(params=parameters[2:], lr=0.05)])
        gradients = [[torch.randn_like(p) for p in parameters] for _ in range(4)]

        def step(of_step):
            for parameter, gradient in zip(parameters, of_step):
                parameter.grad = gradient
            optimizer.step()

        step(gradients[0])
        step(gradients[1])
        saved = {"optimizer": copy.deepcopy(optimizer.state_dict()), "before": [p.detach().clone() for p in parameters]}
        step(gradients[2])
        step(gradients[3])
        saved.update(gradients=gradients[2:], after=[p.detach().clone() for p in parameters])
        torch.save(saved, folder / f"{name}.pt")


class HookNet(nn.Module):
    """Convolutions, square layers of equal shape, and a layer without bias, in several buckets."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2)
        self.fc1 = nn.Linear(144, 64)
        self.fc2 = nn.Linear(64, 64)
        self.fc3 = nn.Linear(64, 64)
        self.fc4 = nn.Linear(64, 10, bias=False)

    def forward(self, x):
        x = torch.flatten(F.relu(self.conv2(F.relu(self.conv1(x)))), 1)
        for layer in (self.fc1, self.fc2, self.fc3):
            x = torch.tanh(layer(x))
        return self.fc4(x)


POWER_SGD = dict(
    powersgd_1=dict(matrix_approximation_rank=1, start_powerSGD_iter=2),
    powersgd_2=dict(matrix_approximation_rank=2, start_powerSGD_iter=2, random_seed=3),
    powersgd_4_batched=dict(matrix_approximation_rank=4, start_powerSGD_iter=5, min_compression_rate=1.5,
                            batch_tensors_with_same_shape=True),
    powersgd_1_memoryless=dict(matrix_approximation_rank=1, start_powerSGD_iter=0, use_error_feedback=False,
                               warm_start=False, orthogonalization_epsilon=1e-8))


def one_bucket_at_a_time(state, bucket):
    """PowerSGD with one bucket at a time, as in its authors' tests: with several, Gloo would mix up collectives."""
    future = powerSGD_hook.powerSGD_hook(state, bucket)
    future.wait()
    return future


def train_with_hook(rank, size, name, dtype):
    torch.manual_seed(7)
    ddp = DistributedDataParallel(HookNet().to(dtype), bucket_cap_mb=20_000 / 2**20)
    state = None
    if name in POWER_SGD:
        state = powerSGD_hook.PowerSGDState(None, **POWER_SGD[name])
        ddp.register_comm_hook(state, one_bucket_at_a_time)
    elif name != "none":
        ddp.register_comm_hook(None, getattr(default_hooks, f"{name}_compress_hook"))
    torch.manual_seed(11)
    images = torch.randn(480, 1, 8, 8)
    labels = F.avg_pool2d(images, 4).flatten(1).argmax(1)  # the brightest quarter
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1, momentum=0.9)
    losses = []
    for step in range(50):
        begin = step % 10 * 48 + rank * 16
        optimizer.zero_grad()
        loss = F.cross_entropy(ddp(images[begin:begin + 16].to(dtype)), labels[begin:begin + 16])
        loss.backward()
        optimizer.step()
        mean = loss.detach().double()
        dist.all_reduce(mean)
        losses.append(mean.item() / size)
    sizes = [int(size) for size in ddp._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(",")]
    run = dict(hook=name, size=size, dtype=str(dtype).removeprefix("torch."), losses=losses, bucket_bytes=sizes)
    if state is not None:
        run["elements"] = state.compression_stats()[1:]
    return run


def train_with_hooks(rank, size, store, out):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    torch.set_num_threads(1)
    runs = [train_with_hook(rank, size, name, dtype) for name in ("none", "fp16", "bf16", *POWER_SGD)
            for dtype in (torch.float32, torch.float64)]
    if rank == 0:
        write_json(pathlib.Path(out), runs)
    dist.barrier()
    dist.destroy_process_group()


def comm_hooks(folder):
    """Losses (mean over ranks) of 50 steps with each gradient compression, on two and three ranks."""
    os.environ.update(SAME_ON_EVERY_CPU)
    for size in (2, 3):
        with tempfile.TemporaryDirectory() as scratch:
            mp.spawn(train_with_hooks, (size, f"{scratch}/store", str(folder / f"losses_{size}.json")), nprocs=size)


class Stack(nn.Module):
    """Like tests/worker/ddprun/ddp/layer_stack.h: layers of [in, out, dtype, uses in the forward pass]."""

    def __init__(self, layers):
        super().__init__()
        self.uses = [uses for _, _, _, uses in layers]
        self.layers = nn.ModuleList(nn.Linear(i, o).to(getattr(torch, dtype)) for i, o, dtype, _ in layers)

    def forward(self, x):
        for layer, uses in zip(self.layers, self.uses):
            for _ in range(uses):
                x = layer(x.to(layer.weight.dtype)).tanh()
        return x


STACKS = {
    "small": [[20, 50, "float32", 1], [50, 50, "float32", 1], [50, 10, "float32", 1]],
    "wide": [[100, 700, "float32", 1], [700, 700, "float32", 1], [700, 10, "float32", 1]],
    "mixed": [[20, 30, "float32", 1], [30, 30, "float64", 2], [30, 30, "float32", 1], [30, 5, "float64", 1]],
    "unused": [[20, 30, "float32", 1], [30, 30, "float32", 0], [30, 30, "float64", 0], [30, 40, "float32", 1]],
}
CAPS = [dict(), dict(bucket_bytes=4096), dict(bucket_bytes=100000), dict(bucket_bytes_list=[2000, 10000])]
MODES = [dict(), dict(gradient_as_bucket_view=True), dict(find_unused_parameters=True), dict(static_graph=True)]


def bucket_plan(name, options):
    torch.manual_seed(5)
    layers, python = STACKS[name], dict(options)
    if "bucket_bytes" in python:
        python["bucket_cap_mb"] = python.pop("bucket_bytes") / 2**20
    if "bucket_bytes_list" in python:
        python["bucket_cap_mb_list"] = [size / 2**20 for size in python.pop("bucket_bytes_list")]
    stack = Stack(layers)
    first = python.pop("first_bucket_bytes", dist._DEFAULT_FIRST_BUCKET_BYTES)
    with unittest.mock.patch.object(dist, "_DEFAULT_FIRST_BUCKET_BYTES", first):
        ddp = DistributedDataParallel(stack, **python)
    sizes = lambda text: [int(size) for size in text.split(",")]
    initial = sizes(ddp._get_ddp_logging_data()["bucket_sizes"])
    for _ in range(4):
        ddp(torch.ones(2, layers[0][0])).sum().backward()
    data = ddp._get_ddp_logging_data()
    names = [name for name, _ in stack.named_parameters()]
    case = dict(layers=layers, options=options, initial_bytes=initial)
    if data["has_rebuilt_buckets"]:
        case["rebuilt_bytes"] = sizes(data["rebuilt_bucket_sizes"])
        case["rebuilt_parameters"] = [[names[int(i)] for i in bucket.split()]
                                      for bucket in data["rebuilt_per_bucket_param_indices"].split(",")]
    case["unused_bytes"] = data["unused_parameter_size"]
    return case


def ddp_buckets(folder):
    """Buckets of Python's DDP for several models, bucket sizes and options: at first, and after the first backward."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    cases = [bucket_plan(name, {**caps, **mode}) for name in STACKS for caps in CAPS for mode in MODES
             if name != "unused" or "find_unused_parameters" in mode or "static_graph" in mode]
    cases += [bucket_plan("wide", {"first_bucket_bytes": 300000, **mode}) for mode in (dict(), dict(find_unused_parameters=True))]
    dist.destroy_process_group()
    write_json(folder / "plans.json", cases)
