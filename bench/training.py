#!/usr/bin/env python3
"""Training speed and memory, side by side in one run: ddprun + worker against torchrun + Python.

usage: training.py --torchrun TORCHRUN [--script NAME=PYTHON_SCRIPT ...] [--data FOLDER] [--limit 12800] [--runs 5]

Runs take turns, so that a noisy neighbour disturbs all alike. Prints a Markdown table of medians (min-max in brackets)
and, for each, the median of the ratios to the worker in the same turn. CPU time covers all processes of the job, from its
start to its end; CPU time per sample is that divided by --limit. Python's ranks sum over Gloo, ours through memory.
A script gets FOLDER --batch-size 128 --limit N --epochs 1, prints "first step" after its first optimizer step
(optional) and a JSON line with samples_per_second and peak_mb.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RANKS = 2


def measure(command, first_step, read_figures):
    """first_step: what the first line after the first optimizer step begins with, after the launcher's prefix"""
    before, begin, first = resource.getrusage(resource.RUSAGE_CHILDREN), time.time(), None
    with tempfile.TemporaryFile("w+") as errors:
        job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        lines = []
        for line in job.stdout:
            lines.append(line)
            if first is None and line.split("]:")[-1].startswith(first_step):
                first = time.time() - begin
        if job.wait() != 0:
            errors.seek(0)
            sys.exit(f"{' '.join(map(str, command))}: exit status {job.returncode}\n{''.join(lines)}\n{errors.read()}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    rate, peak = read_figures(lines)
    return dict(rate=rate, peak=peak, cpu=cpu, wall=time.time() - begin, first=first)


def run_worker(arguments, first_step="\0"):
    """arguments: of the worker. On RANKS ranks"""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "run")

        def read(_):
            summary = json.loads((out / "summary.json").read_text())
            return summary["samples_per_second"], summary["peak_rss_mb"]
        return measure([ROOT / "build/bin/ddprun", f"--nproc-per-node={RANKS}", ROOT / "build/bin/worker", *arguments, "--out", out],
                       first_step, read)


def run_script(torchrun, command, rate, first_step="\0"):
    """command: a script and its arguments; rate: the key of its line of JSON for what run_worker's samples_per_second is"""
    def read(lines):
        figures = next(json.loads(line) for line in reversed(lines) if line.startswith("{"))
        return figures.get(rate), figures["peak_mb"]
    return measure([torchrun, "--standalone", f"--nproc_per_node={RANKS}", *command], first_step, read)


def cell(values, digits=0):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--torchrun", required=True)
    parser.add_argument("--script", action="append", default=[])
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--limit", type=int, default=12800)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("LOGLEVEL", "ERROR")
    scripts = dict([("Python, lean", str(ROOT / "bench/mnist_ddp.py"))] + [s.split("=", 1) for s in arguments.script])
    results = {"ddprun worker": []} | {name: [] for name in scripts}
    limit = str(arguments.limit)
    for _ in range(arguments.runs):
        results["ddprun worker"].append(run_worker(
            ["mnist", "--data", arguments.data, "--limit-train", limit, "--limit-test", "500", "--epochs", "1",
             "--batch-size", "128"], "Train Epoch"))
        for name, script in scripts.items():
            results[name].append(run_script(
                arguments.torchrun, [script, arguments.data, "--batch-size", "128", "--limit", limit, "--epochs", "1"],
                "samples_per_second", "first step"))
    ours = results["ddprun worker"]
    print("| job | samples/s | ratio | peak MB per rank | CPU s, whole job | CPU ms a sample | wall s, whole job | "
          "s to the first step |\n|---|---|---|---|---|---|---|---|")
    for name, runs in results.items():
        ratio = statistics.median(r["rate"] / o["rate"] for r, o in zip(runs, ours))
        print(f"| {name} | {cell([r['rate'] for r in runs])} | {ratio:.2f} | {cell([r['peak'] for r in runs])} | "
              f"{cell([r['cpu'] for r in runs], 1)} | {cell([1e3 * r['cpu'] / arguments.limit for r in runs], 2)} | "
              f"{cell([r['wall'] for r in runs], 1)} | "
              + (cell([r["first"] for r in runs], 2) if runs[0]["first"] else "") + " |")


if __name__ == "__main__":
    main()
