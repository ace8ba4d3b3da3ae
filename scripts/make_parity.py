#!/usr/bin/env python3
"""The golden groups ddp_parity and resnet of make_golden.py: Python's DistributedDataParallel on Gloo, and torchvision.

Weights and samples follow an integer hash that C++ computes as well (tests/worker/ddprun/ddp/parity_models.cpp), so that only
losses are committed. docs/runtime/proof.md says what is compared. Called by itself this makes ddp_parity with every
option for every model, which takes an hour.
"""

import contextlib
import math
import os
import pathlib
import tempfile

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
import torchvision
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from golden_common import SAME_ON_EVERY_CPU, write_json
from parity_models import MODELS, fill, formula, hashes

STEPS, BATCHES, EVAL_EVERY = 50, 5, 10
SAME = SAME_ON_EVERY_CPU | {"OMP_NUM_THREADS": "1"}

# Every option alone, by the names of the test program. "oracle": what Python runs instead of an option it lacks.
OPTIONS = [
    dict(option="default"),
    dict(option="adam", optimizer="adam"),
    dict(option="small buckets", bucket_bytes=True),
    dict(option="bucket view", gradient_as_bucket_view=True),
    dict(option="bucket view, small buckets", gradient_as_bucket_view=True, bucket_bytes=True),
    dict(option="find unused", find_unused_parameters=True, branches="turns"),
    dict(option="find unused, bucket view, small buckets", find_unused_parameters=True, branches="turns",
         gradient_as_bucket_view=True, bucket_bytes=True),
    dict(option="static graph", static_graph=True, branches="a"),
    dict(option="no sync", accumulate=2),
    dict(option="no buffers", broadcast_buffers=False),
    dict(option="join, initial world", join="initial"),
    dict(option="join, joined world", join="active"),
    dict(option="fp16 hook", hook="fp16"),
    dict(option="bf16 hook", hook="bf16"),
    dict(option="powersgd", hook="powersgd"),
    dict(option="sync bn", sync_bn=True, oracle="one process"),
    dict(option="zero1", zero1=True, optimizer="adam"),
    dict(option="fsdp", fsdp=True, optimizer="adam", broadcast_buffers=False, oracle="DDP"),
]
# What ddp_parity covers of each model: every option for at least one type and world.
CHOSEN = {
    "branched": [("every", dtype, world) for dtype in ("float64", "float32") for world in (2, 3)],
    "cnn": [("default", "float64", 2), ("adam", "float64", 2), ("every", "float32", 3)],
    "resnet18": [("default", "float64", 2), ("default", "float32", 3), ("every", "float32", 2)],
}
BUCKET_BYTES = {"cnn": 1 << 20, "resnet18": 5 << 20, "branched": 4096}
HOOKS = {"fp16": default_hooks.fp16_compress_hook, "bf16": lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket)}
POWER_SGD_START = 5


def cases(model, world, everything):
    for dtype in ("float64", "float32"):
        for option in OPTIONS:
            name = option["option"]
            if model == "cnn" and name in ("sync bn", "no buffers"):
                continue  # it has no BatchNorm
            if everything or (name, dtype, world) in CHOSEN[model] or ("every", dtype, world) in CHOSEN[model]:
                yield dict(option, model=model, dtype=dtype, world=world)
    if everything or model == "branched":
        yield dict(option="default", model=model, dtype="bfloat16", world=world)


def branches_of(case, step, rank):
    """Which branches the branched model takes: both; always a; or a and b in turns, the other one on odd ranks."""
    kind = case.get("branches", "ab")
    return "ab"[(step + rank) % 2] if kind == "turns" else kind


def batch(case, rank, step, ranks=1):
    """Samples and labels of a rank's step; `ranks`: those of this many ranks, from this one on, in turn."""
    _, shape, size, _ = MODELS[case["model"]]
    first = (step % BATCHES * case["world"] + rank) * size
    count, numel = size * ranks, math.prod(shape)
    labels = torch.from_numpy((hashes("label", first, count) % np.uint64(10)).astype(np.int64))
    return (4 * formula("image", (count, *shape), first * numel)).to(getattr(torch, case["dtype"])), labels


def loss_of(case, net, rank, step, ranks=1):
    images, labels = batch(case, rank, step, ranks)
    output = net(images, branches_of(case, step, rank))
    return F.nll_loss(output, labels) if case["model"] == "cnn" else F.cross_entropy(output, labels)


def wrap(case, module):
    keys = ("gradient_as_bucket_view", "find_unused_parameters", "static_graph", "broadcast_buffers")
    options = {key: case[key] for key in keys if key in case}
    if "bucket_bytes" in case:
        options["bucket_cap_mb"] = BUCKET_BYTES[case["model"]] / 2**20
    elif case.get("hook") == "powersgd":
        options["bucket_cap_mb"] = 100  # one bucket: on Gloo the hook mixes up the collectives of several
    ddp = DistributedDataParallel(module, **options)
    if case.get("hook") == "powersgd":
        ddp.register_comm_hook(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=POWER_SGD_START), powerSGD_hook.powerSGD_hook)
    elif "hook" in case:
        ddp.register_comm_hook(None, HOOKS[case["hook"]])
    return ddp


def make_optimizer(case, parameters):
    kind = case.get("optimizer", "sgd")
    rate = MODELS[case["model"]][3][kind]
    if case.get("zero1"):
        return ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=rate)
    return torch.optim.Adam(parameters, rate) if kind == "adam" else torch.optim.SGD(parameters, rate, momentum=0.9)


def train_step(case, net, optimizer, rank, step, ranks):
    """One optimizer step over `accumulate` batches; returns their mean loss."""
    micro, total = case.get("accumulate", 1), 0.0
    optimizer.zero_grad()
    for i in range(micro):
        net.require_backward_grad_sync = i == micro - 1  # what no_sync() sets
        loss = loss_of(case, net, rank, step * micro + i, ranks) / micro
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total


def train(case, rank, world):
    """This rank's losses of all steps, and after every tenth one in eval mode."""
    module = fill(MODELS[case["model"]][0]()).to(getattr(torch, case["dtype"]))
    net = wrap(case, module) if case.get("oracle") != "one process" else module
    ranks = case["world"] if net is module else 1
    optimizer = make_optimizer(case, net.parameters())
    losses, evaluated = [], []
    uneven = "join" in case
    with Join([net], divide_by_initial_world_size=case["join"] == "initial") if uneven else contextlib.nullcontext():
        for step in range(STEPS - (12 * rank if uneven else 0)):
            losses.append(train_step(case, net, optimizer, rank, step, ranks))
            if step % EVAL_EVERY == EVAL_EVERY - 1 and case["model"] != "cnn" and not uneven:
                net.eval()
                with torch.no_grad():
                    evaluated.append(loss_of(case, net, rank, step + 1, ranks).item())
                net.train()
    return losses, evaluated


def means(lists):
    """The mean of each step over the ranks that have it. Nine digits are more than the tolerances need."""
    length = max(map(len, lists))
    columns = [[own[i] for own in lists if i < len(own)] for i in range(length)]
    return [float(f"{sum(column) / len(column):.9g}") for column in columns]


def run_cases(rank, world, store, arguments, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    models, everything = arguments
    for model in models or MODELS:
        done = []
        for case in cases(model, world, everything):
            everyone = [None] * world
            one = case.get("oracle") == "one process"  # on every rank the same, with the samples of all
            dist.all_gather_object(everyone, train(case, 0 if one else rank, world))
            losses, evaluated = (means(part) for part in zip(*everyone))
            done.append(dict(case, losses=losses, eval_losses=evaluated))
            if rank == 0:
                print(f"{model} {world} {case['dtype']} {case['option']}: {losses[0]} ... {losses[-1]}", flush=True)
        if rank == 0:
            _, shape, size, rates = MODELS[model]
            write_json(folder / f"{model}_{world}.json", dict(
                steps=STEPS, batches=BATCHES, eval_every=EVAL_EVERY, batch_size=size, image=shape, lr=rates,
                bucket_bytes=BUCKET_BYTES[model], powersgd_start=POWER_SGD_START, environment=SAME, cases=done))
    dist.barrier()
    dist.destroy_process_group()


def plan(module, shape, **options):
    """Bucket sizes in bytes, at first and after the rebuild, from _get_ddp_logging_data."""
    ddp = DistributedDataParallel(fill(module), **options)
    for _ in range(3):
        ddp(torch.zeros(2, *shape), "ab").sum().backward()
    data = ddp._get_ddp_logging_data()
    sizes = {key: [int(size) for size in data.get(key, "").split(", ") if size] for key in ("bucket_sizes", "rebuilt_bucket_sizes")}
    return dict(initial=sizes["bucket_sizes"], rebuilt=sizes["rebuilt_bucket_sizes"])


def make_plans(rank, world, store, arguments, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    plans = []
    for model in ("cnn", "resnet18"):
        kind, shape, _, _ = MODELS[model]
        for unused in (False, True):
            for cap in (None, 1 << 12, 1 << 20, 5 << 20, 100 << 20):
                sizes = plan(kind(), shape, find_unused_parameters=unused, bucket_cap_mb=cap and cap / 2**20)
                plans.append(dict(model=model, bucket_bytes=cap, find_unused_parameters=unused, **sizes))
    if rank == 0:
        write_json(folder / "bucket_plans.json", plans)
    dist.barrier()
    dist.destroy_process_group()


def run_ranks(function, world, arguments, folder):
    os.environ.update(SAME)  # read by the ranks, which are new processes
    with tempfile.TemporaryDirectory() as scratch:
        mp.spawn(function, (world, f"{scratch}/store", arguments, folder), nprocs=world)


def ddp_parity(folder, models=(), everything=False):
    """Losses of 50 steps by model, option, type and world, a file for each model and world; and bucket plans."""
    run_ranks(make_plans, 2, (), folder)
    for world in (2, 3):
        run_ranks(run_cases, world, (models, everything), folder)


def resnet(folder):
    """torchvision's ResNet-18: its initial weights for a seed; with made-up weights the output and every gradient."""
    torch.manual_seed(7)
    module = torchvision.models.resnet18(num_classes=10)
    digest = lambda tensor: [tensor.double().sum().item(), tensor.double().norm().item()]
    initial = {name: digest(parameter.detach()) for name, parameter in module.named_parameters()}
    fill(module.double())
    images, labels = (2 * formula("image", (2, 3, 32, 32))).double(), torch.tensor([3, 7])
    output = module(images)
    F.cross_entropy(output, labels).backward()
    gradients = {name: digest(parameter.grad) for name, parameter in module.named_parameters()}
    buffers = {name: digest(buffer) for name, buffer in module.named_buffers()}
    write_json(folder / "batch.json", dict(initial=initial, output=output.tolist(), gradients=gradients, buffers=buffers))


if __name__ == "__main__":
    ddp_parity(pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "ddp_parity", everything=True)
