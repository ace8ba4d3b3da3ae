#!/usr/bin/env python3
"""A training under a list of faults that comes from a seed, beside an undisturbed one. Prints a table in Markdown.

usage: chaos.py [--faults 20] [--gap 10] [--seed 1] [--steps 900] [--bin build/bin] [--data FOLDER] [--picture FILE.svg]
                [--torchrun torchrun] [--ft-launcher ft_launcher] [--python python3] [--cases TEXT]

Faults, at random moments `gap` seconds apart on average: a rank gets SIGKILL or SIGSEGV, both get SIGKILL (the OOM killer),
a rank stops for a second, a rank aborts. Programs and launchers are those of recovery.py; the Python program saves
every 10 steps. Columns: seconds undisturbed and disturbed, goodput (their ratio), seconds from a fault to the next new step (median and
longest), steps done again, and whether the final weights are bit for bit those of the undisturbed run.
"""
import argparse
import hashlib
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import recovery

FAULTS = ["kill", "kill", "kill", "segfault", "kill all", "stop", "abort"]


def strike(job, fault, rank):
    """Whether the fault hit somebody."""
    pids = job.ranks()
    numbers = {"kill": signal.SIGKILL, "segfault": signal.SIGSEGV, "kill all": signal.SIGKILL, "stop": signal.SIGSTOP, "abort": signal.SIGABRT}
    hit = [pids[each] for each in ([0, 1] if fault == "kill all" else [rank]) if each in pids]
    for pid in hit:
        try:
            os.kill(pid, numbers[fault])
        except ProcessLookupError:
            return False
    if fault == "stop":
        threading.Timer(1, lambda: os.kill(hit[0], signal.SIGCONT) if os.path.exists(f"/proc/{hit[0]}") else None).start()
    return bool(hit)


def run(command, folder, steps, planned):
    """The times of new steps, the faults with their times, steps done again, and the exit status."""
    job = recovery.Job([str(word) for word in command], recovery.environment(), folder / "events")
    job.wait_beyond(0)
    struck = []
    for wait, fault, rank in planned:
        until = time.monotonic() + wait
        while time.monotonic() < until and job.process.poll() is None:
            time.sleep(0.02)
        if job.newest() >= steps - 10 or job.process.poll() is not None:
            break
        at, before = time.monotonic(), job.newest()
        if strike(job, fault, rank):
            struck.append((at, fault))
            job.wait_beyond(before)
    status = job.process.wait()
    job.thread.join()
    if status != 0:
        sys.exit("the job has failed:\n" + "".join(line for _, line in job.lines[-20:]))
    new, newest, again = [], 0, 0
    for at, step in job.steps:
        if step > newest:
            newest = step
            new.append((at, step))
        else:
            again += 1
    return new, struck, again


def weights(arguments, folder):
    """A digest of the worker's final weights; None for another program."""
    last = folder / "run/checkpoints/last.pt"
    if not last.exists():
        return None
    subprocess.run([arguments.bin / "worker", "export", last, folder / "weights.pt"], check=True, stdout=subprocess.DEVNULL)
    return hashlib.sha256((folder / "weights.pt").read_bytes()).hexdigest()


def picture(path, runs):
    """Steps over time, a line for each run, with a mark at each fault."""
    width, height, colours = 900, 420, ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b"]
    longest = max(new[-1][0] - new[0][0] for _, new, _ in runs)
    most = max(new[-1][1] for _, new, _ in runs)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + 60} {height + 50}" font-family="sans-serif" font-size="13">',
             f'<rect width="{width + 60}" height="{height + 50}" fill="white"/>']
    for i, (name, new, struck) in enumerate(runs):
        place = lambda at, step: (50 + width * (at - new[0][0]) / longest, 10 + height * (1 - step / most))
        points = " ".join("%.1f,%.1f" % place(at, step) for at, step in new)
        parts.append(f'<polyline fill="none" stroke="{colours[i % 6]}" stroke-width="1.5" points="{points}"/>')
        parts.append(f'<text x="70" y="{30 + 18 * i}" fill="{colours[i % 6]}">{name}</text>')
        for at, _ in struck:
            x, y = place(at, max([step for when, step in new if when <= at], default=0))
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colours[i % 6]}"/>')
    parts.append(f'<text x="50" y="{height + 40}">0 s</text><text x="{width}" y="{height + 40}">{longest:.0f} s</text>')
    parts.append(f'<text x="5" y="20">{most}</text><text x="5" y="{height + 10}">step</text></svg>')
    path.write_text("\n".join(parts))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--gap", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--picture", type=pathlib.Path)
    recovery.add_arguments(parser)
    arguments = parser.parse_args()
    print("| | undisturbed, s | disturbed, s | faults | goodput | next new step, s | longest | done again | weights |\n|---|---|---|---|---|---|---|---|---|",
          flush=True)
    runs = []
    for name, (make_command, ranks) in recovery.cases(arguments, every=10).items():
        if arguments.cases not in name or ranks > 1:
            continue
        chance = random.Random(arguments.seed)
        planned = [(chance.expovariate(1 / arguments.gap), chance.choice(FAULTS), chance.randrange(2)) for _ in range(arguments.faults)]
        took, digests = [], []
        for faults in ([], planned):
            with tempfile.TemporaryDirectory() as folder:
                folder = pathlib.Path(folder)
                new, struck, again = run(make_command(folder, arguments.steps), folder, arguments.steps, faults)
                took.append(new[-1][0] - new[0][0])
                digests.append(weights(arguments, folder))
        blinks = [next((when - at for when, _ in new if when > at), 0) for at, _ in struck]
        runs.append((name, new, struck))
        same = "-" if digests[0] is None else "equal" if digests[0] == digests[1] else "differ"
        print(f"| {name} | {took[0]:.1f} | {took[1]:.1f} | {len(struck)} | {100 * took[0] / took[1]:.1f} % | {statistics.median(blinks):.2f} |"
              f" {max(blinks):.2f} | {again} | {same} |", flush=True)
    if arguments.picture:
        picture(arguments.picture, runs)


if __name__ == "__main__":
    main()
