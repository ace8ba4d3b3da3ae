#!/usr/bin/env python3
"""Measures what DDP adds to a step of a model of 100 small layers, our runtime and Python's side by side.

usage: ddp_overhead.py --python PYTHON [--build BUILD_FOLDER] [--runs 5] [--blocks 20]

PYTHON must have torch. Needs the target bench (build/bench/ddp_overhead). Both run on two ranks under ddprun, with
one thread per rank, and take turns: Python's ranks sum over Gloo, ours through shared memory (with
DDPRUN_SHARED_MEMORY=0 over Gloo too). Prints a Markdown table of medians (min-max in brackets); the overhead is
the median step with DDP minus the median bare step of the same run, and the ratio is ours to Python's in the same turn.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAYERS, WIDTH, BATCH, STEPS_PER_BLOCK = 100, 64, 8, 20


def cpu_ms():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return 1e3 * (usage.ru_utime + usage.ru_stime)


def run_block(module, optimizer, images, times):
    before = cpu_ms()
    for _ in range(STEPS_PER_BLOCK):
        begin = time.perf_counter()
        optimizer.zero_grad()
        module(images).square().mean().backward()
        optimizer.step()
        times["step"].append(1e3 * (time.perf_counter() - begin))
    times["cpu"] += cpu_ms() - before


def measure(blocks):
    """The same as ddp_overhead.cpp, on one rank."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    make = lambda: torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    images = torch.ones(BATCH, WIDTH)
    modules = dict(bare=make(), ddp=torch.nn.parallel.DistributedDataParallel(make()))
    optimizers = {name: torch.optim.SGD(module.parameters(), 1e-3) for name, module in modules.items()}
    times = {name: dict(step=[], cpu=0.0) for name in modules}
    for name in modules:
        run_block(modules[name], optimizers[name], images, dict(step=[], cpu=0.0))
    for _ in range(blocks):
        for name in modules:
            run_block(modules[name], optimizers[name], images, times[name])
            dist.all_reduce(torch.zeros(1))
    if dist.get_rank() == 0:
        figures = {f"{name}_ms": statistics.median(t["step"]) for name, t in times.items()}
        figures.update({f"{name}_cpu_ms": t["cpu"] / len(t["step"]) for name, t in times.items()})
        print(json.dumps(figures), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def run(build, program, blocks):
    done = subprocess.run([build / "bin/ddprun", "--nproc-per-node=2", *map(str, program), str(blocks)],
                          stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, program))}: exit status {done.returncode}")
    figures = next(json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    figures["overhead_ms"] = figures["ddp_ms"] - figures["bare_ms"]
    figures["overhead_cpu_ms"] = figures["ddp_cpu_ms"] - figures["bare_cpu_ms"]
    return figures


def cell(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", required=True)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--blocks", type=int, default=20)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    programs = {"ddprun::runtime": [arguments.build / "bench/ddp_overhead"],
                "Python DDP": [arguments.python, pathlib.Path(__file__).resolve(), "--measure"]}
    results = {name: [] for name in programs}
    for _ in range(arguments.runs):
        for name, program in programs.items():
            results[name].append(run(arguments.build, program, arguments.blocks))
    keys = ["bare_ms", "ddp_ms", "overhead_ms", "bare_cpu_ms", "ddp_cpu_ms", "overhead_cpu_ms"]
    print("| a step of 100 Linear(64, 64), 2 ranks | " + " | ".join(k.replace("_ms", ", ms").replace("_", " ") for k in keys) + " |")
    print("|---" * (len(keys) + 1) + "|")
    for name, runs in results.items():
        print(f"| {name} | " + " | ".join(cell([r[k] for r in runs]) for k in keys) + " |")
    ours, python = results.values()
    ratios = [statistics.median(o[k] / p[k] for o, p in zip(ours, python)) for k in keys]
    print("| ratio | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(int(sys.argv[2]))
    else:
        main()
