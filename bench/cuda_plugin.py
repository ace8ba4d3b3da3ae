#!/usr/bin/env python3
"""Start-up time and memory of the worker with and without the CUDA plug-in, in turns. Needs no GPU.

usage: cuda_plugin.py [--runs N] WORKER PLUGIN

The worker runs `env --device cpu`. With the plug-in means: preloaded and bound at once, as the worker itself loads it when a GPU is
requested. NVIDIA's libraries must be where libtorch_cuda finds them (scripts/setup.sh --cuda), or in LD_LIBRARY_PATH.
"""
import argparse
import os
import statistics
import subprocess
import time


def run(worker, plugin):
    """Seconds from start to exit, CPU seconds, and peak resident memory in MB of one run."""
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    if plugin:
        env["LD_PRELOAD"] = plugin
    begin = time.perf_counter()
    child = subprocess.Popen([worker, "env", "--device", "cpu"], env=env, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - begin
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise SystemExit(f"{worker} env: exit status {child.returncode}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("worker")
    parser.add_argument("plugin")
    parser.add_argument("--runs", type=int, default=11)
    args = parser.parse_args()
    plugin = os.path.realpath(args.plugin)
    results = {"without": [], "with": []}
    for _ in range(args.runs + 1):  # the first of each warms the page cache
        results["without"].append(run(args.worker, None))
        results["with"].append(run(args.worker, plugin))
    for name, values in results.items():
        for unit, column in (("s", 0), ("CPU s", 1), ("MB", 2)):
            numbers = [v[column] for v in values[1:]]
            print(f"{name} the plug-in: {statistics.median(numbers):.2f} {unit} ({min(numbers):.2f}-{max(numbers):.2f})")


if __name__ == "__main__":
    main()
