#!/usr/bin/env python3
"""The input pipeline of CIFAR-10 alone, side by side in one run: the program `loader` (bench/loader.cpp) against a DataLoader script.

usage: loader.py --data FOLDER --script PYTHON_SCRIPT [--python PYTHON] [--loader build/bench/loader] [--workers 2]
                 [--runs 5] [--epochs 20]

FOLDER holds CIFAR-10's binary files. The script gets FOLDER --loader-only --workers N, goes once through the training
images and prints a JSON line with images_per_second.

Runs take turns, so that a noisy neighbour disturbs all alike. CPU seconds are measured from outside, for all
processes of a program, including the DataLoader's workers. What a program needs before its first image (imports,
libraries) is measured with a folder of a few images and subtracted for both: the rest is the cost of the
images. Ours goes through the images --epochs times, or there would be too little to measure. Prints a Markdown table of
medians (min-max in brackets) and, last, the ratio of images per CPU second, whole programs' and pipelines'.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = 3073
NAMES = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
FEW = 256  # images per file of the small folder: a DataLoader needs a batch for each of its workers


def measure(command):
    """Runs it. returns  its JSON line's figures with `cpu`, seconds of all its processes"""
    process = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, text=True)
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit status {process.returncode}")
    figures = next(json.loads(line) for line in reversed(text.splitlines()) if line.startswith("{"))
    return figures | {"cpu": usage.ru_utime + usage.ru_stime, "peak": usage.ru_maxrss / 1024}


def small_copy(data, folder):
    for name in NAMES:
        pathlib.Path(folder, name).write_bytes(pathlib.Path(data, name).read_bytes()[:FEW * RECORD])


def cell(values, digits=0):
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f}-{max(values):,.{digits}f})"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--script", required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--loader", default=ROOT / "build/bench/loader")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    data, workers = pathlib.Path(arguments.data), str(arguments.workers)
    if not (data / NAMES[0]).exists() and (data / "cifar-10-batches-bin").is_dir():
        data = data / "cifar-10-batches-bin"
    images = sum((data / name).stat().st_size for name in NAMES[:5]) // RECORD

    def ours(folder, epochs):
        return measure([arguments.loader, "cifar10", "--data", folder, "--loader-threads", workers,
                        "--epochs", epochs])

    def theirs(folder, _):
        return measure([arguments.python, arguments.script, folder, "--loader-only", "--workers", workers])

    programs = {f"ours, {workers} loader threads": (ours, arguments.epochs),
                f"DataLoader, {workers} processes": (theirs, 1)}
    rows = {name: [] for name in programs}
    with tempfile.TemporaryDirectory() as few:
        small_copy(data, few)
        for _ in range(arguments.runs):
            for name, (run, epochs) in programs.items():
                start, once = run(few, 1)["cpu"], run(data, 1)
                many = run(data, epochs) if epochs > 1 else once
                rows[name].append(dict(rate=many["images_per_second"], peak=once["peak"], cpu=once["cpu"], start=start,
                                       whole=images / once["cpu"],
                                       pipeline=images * epochs / max(many["cpu"] - start, 1e-3)))
    print(f"{images:,} images an epoch, batches of 128, {arguments.runs} runs in turns\n")
    print("| pipeline | images/s | CPU s, one epoch, whole program | of it before the images | images per CPU s, whole "
          "program | images per CPU s, pipeline | peak MB of the largest process |\n|---|---|---|---|---|---|---|")
    for name, runs in rows.items():
        print(f"| {name} | " + " | ".join(cell([r[key] for r in runs], digits) for key, digits in
                                          [("rate", 0), ("cpu", 2), ("start", 2), ("whole", 0), ("pipeline", 0), ("peak", 0)])
              + " |")
    first, second = rows.values()
    for key, what in [("whole", "whole programs"), ("pipeline", "pipelines")]:
        ratio = statistics.median(o[key] / t[key] for o, t in zip(first, second))
        print(f"\nimages per CPU second, {what}: {ratio:.1f} times", end="")
    print()


if __name__ == "__main__":
    main()
