#!/usr/bin/env python3
"""Two ddprun programs side by side, such as one before a change and one after it. Prints a Markdown table.

usage: compare.py [--runs 1.0] [--cases start,output,...] OLD NEW

The two take turns (old new, new old, ...), and the ratio new/old is the median over these pairs, with its quartiles: it stays true when the
machine's speed drifts. Beside each figure is the CPU time of the whole job, workers included, in seconds. --runs multiplies the number of
pairs. A part of a case's name chooses it.
"""
import argparse
import os
import pathlib
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import launchers


def throughput(command, megabytes, sink="/dev/null"):
    """Two workers write 64-byte lines: MB/s until ddprun has ended."""
    worker = ["sh", "-c", f"yes {'x' * 63} | head -c {megabytes * 500_000}"]
    with open(sink, "wb") as out:
        begin = time.perf_counter()
        subprocess.run(command + worker, check=True, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL)
        return megabytes / (time.perf_counter() - begin)


def to_files(command, megabytes):
    with tempfile.TemporaryDirectory() as folder:
        speed = throughput([*command[:1], f"--log-dir={folder}", *command[1:]], megabytes)
        written = sum(path.stat().st_size for path in pathlib.Path(folder).rglob("stdout.log"))
        assert written >= megabytes * 1_000_000, f"output was lost: {written} bytes"
        return speed


def sigterm(command, workers):
    """From SIGTERM to ddprun's exit, once all workers are there."""
    job = subprocess.Popen(command + ["sh", "-c", "echo; exec sleep 1000"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    for _ in range(workers):
        job.stdout.readline()
    begin = time.perf_counter()
    job.send_signal(signal.SIGTERM)
    job.wait()
    return (time.perf_counter() - begin) * 1000


# Name, unit, pairs, and the figure for [ddprun].
CASES = [
    ("start to exit, 2 no-op workers", "ms", 41, lambda ddprun: launchers.start([*ddprun, "--nproc-per-node=2"])),
    ("start to exit, 64 no-op workers", "ms", 15, lambda ddprun: launchers.start([*ddprun, "--nproc-per-node=64"])),
    ("memory of ddprun", "MB", 5, lambda ddprun: launchers.memory([*ddprun, "--nproc-per-node=2"], 2)),
    ("memory of ddprun, 64 workers", "MB", 5, lambda ddprun: launchers.memory([*ddprun, "--nproc-per-node=64"], 64)),
    ("failure of a worker to exit", "ms", 15, lambda ddprun: launchers.failure([*ddprun, "--nproc-per-node=2"])),
    ("failure to the next attempt's first line", "ms", 15, lambda ddprun: launchers.restart([*ddprun, "--nproc-per-node=2", "--max-restarts=1"])),
    ("SIGTERM to exit", "ms", 25, lambda ddprun: sigterm([*ddprun, "--nproc-per-node=2"], 2)),
    ("SIGKILL to all gone", "ms", 15, lambda ddprun: launchers.sigkill([*ddprun, "--nproc-per-node=2"], 2)),
    ("output to /dev/null", "MB/s", 15, lambda ddprun: throughput([*ddprun, "--nproc-per-node=2"], 1000)),
    ("output with a prefix to a pipe", "MB/s", 15, lambda ddprun: launchers.output([*ddprun, "--prefix", "--nproc-per-node=2"])),
    ("output to log files", "MB/s", 15, lambda ddprun: to_files([*ddprun, "--redirects=3", "--nproc-per-node=2"], 400)),
    ("output to log files and with a prefix to /dev/null", "MB/s", 15, lambda ddprun: to_files([*ddprun, "--tee=3", "--nproc-per-node=2"], 400)),
]


def measured(figure, ddprun):
    """The figure, and CPU seconds of the processes that ended meanwhile."""
    cpu = lambda usage: usage.ru_utime + usage.ru_stime
    before = cpu(resource.getrusage(resource.RUSAGE_CHILDREN))
    value = figure([ddprun])
    return value, cpu(resource.getrusage(resource.RUSAGE_CHILDREN)) - before


def cell(values, digits=1):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def ratio(old, new):
    ratios = [b / a for a, b in zip(old, new) if a > 0]
    if not ratios:
        return "-"
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=float, default=1)
    parser.add_argument("--cases", default="")
    parser.add_argument("old", type=os.path.abspath)
    parser.add_argument("new", type=os.path.abspath)
    arguments = parser.parse_args()
    print("| | pairs | old | new | new/old | CPU s, old | new | new/old |\n|" + "---|" * 8)
    for name, unit, pairs, figure in CASES:
        if not any(part in name for part in arguments.cases.split(",")):
            continue
        results = {arguments.old: [], arguments.new: []} if arguments.old != arguments.new else sys.exit("the same program twice: copy one")
        for program in results:
            measured(figure, program)  # not counted: what is read from disk for the first time
        pairs = max(1, round(pairs * arguments.runs))
        for i in range(pairs):
            for program in list(results)[::-1 if i % 2 else 1]:
                results[program].append(measured(figure, program))
        (old, old_cpu), (new, new_cpu) = (zip(*results[program]) for program in (arguments.old, arguments.new))
        cells = [f"{name}, {unit}", pairs, cell(old), cell(new), ratio(old, new), cell(old_cpu, 3), cell(new_cpu, 3), ratio(old_cpu, new_cpu)]
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
