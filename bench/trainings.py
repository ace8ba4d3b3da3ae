#!/usr/bin/env python3
"""The documented trainings as whole jobs, side by side in one run: ddprun + worker against torchrun + Python.

usage: trainings.py --torchrun TORCHRUN --anchors FOLDER [--mnist FOLDER] [--cifar10 FOLDER] [--only toy,linear] [--runs 5]

FOLDER of --anchors holds the Python scripts toy.py, linear.py, mnist.py and cifar10.py, each of which prints a JSON
line with peak_mb. Runs take turns, so that a noisy neighbour disturbs all alike. Wall and CPU seconds cover the whole
job, from the launcher's start to its end; the ratios are medians of the ratios within a turn. Two ranks, one thread each.
"""
import argparse
import os
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from training import cell, run_script, run_worker  # noqa: E402

BARE = ["--no-report", "--no-tensorboard"]


def trainings(arguments):
    """name -> the worker's arguments, the script's"""
    folder = pathlib.Path(arguments.anchors)
    return {
        "toy, 50 epochs": (["toy", "50", "10", "--seed", "0"], [folder / "toy.py", "50", "10"]),
        "linear, 10 epochs": (["linear", "--epochs", "10"], [folder / "linear.py", "10"]),
        "mnist, 12,800 samples": (
            ["mnist", "--data", arguments.mnist, "--epochs", "1", "--batch-size", "128", "--limit-train", "12800"],
            [folder / "mnist.py", arguments.mnist, "--batch-size", "128", "--limit", "12800"]),
        # Python's has no validation, test or checkpoints; ours has few.
        "ResNet-18, 15 steps": (
            ["cifar10", "--data", arguments.cifar10, "--max-steps", "15", "--precision", "32", "--limit-val", "256",
             "--limit-test", "256"],
            [folder / "cifar10.py", arguments.cifar10, "--steps", "15", "--workers", "2"]),
    }


def ratio(ours, theirs, key):
    return f"{statistics.median(t[key] / o[key] for o, t in zip(ours, theirs)):.2f}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--torchrun", required=True)
    parser.add_argument("--anchors", required=True)
    parser.add_argument("--mnist", default="")
    parser.add_argument("--cifar10", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("LOGLEVEL", "ERROR")
    print("| training | program | wall s | times as fast | CPU s | peak MB per rank | of Python's memory |\n"
          "|---|---|---|---|---|---|---|")
    for name, (worker, script) in trainings(arguments).items():
        if arguments.only and name.split(",")[0] not in arguments.only.split(","):
            continue
        rows = {"worker": [], "worker, " + " ".join(BARE): [], "Python under torchrun": []}
        for _ in range(arguments.runs):
            for program, runs in rows.items():
                runs.append(run_script(arguments.torchrun, script, "samples_per_second") if program.startswith("Python")
                            else run_worker(worker + (BARE if "," in program else [])))
        python = rows["Python under torchrun"]
        for program, runs in rows.items():
            share = statistics.median(r["peak"] / p["peak"] for r, p in zip(runs, python))
            print(f"| {name} | {program} | {cell([r['wall'] for r in runs], 2)} | {ratio(runs, python, 'wall')} | "
                  f"{cell([r['cpu'] for r in runs], 1)} | {cell([r['peak'] for r in runs])} | {share:.0%} |", flush=True)


if __name__ == "__main__":
    main()
