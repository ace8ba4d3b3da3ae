#!/usr/bin/env python3
"""What a launcher costs, side by side in one run: time to start two no-op workers and end, and its resident memory.

usage: launchers.py [--runs 15] [--workers 2] NAME=COMMAND ...

"{n}" in a command stands for the number of workers; the worker's argv is added to it. ddprun from build/bin and two
bare spawns by a shell are always measured. Launchers take turns; the table has medians (min-max in brackets).
Example: launchers.py "torchrun=torchrun --standalone --nproc_per_node={n} --no-python" "hydra=mpirun.mpich -n {n}"
"""
import argparse
import pathlib
import shlex
import signal
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def start_to_exit_ms(command):
    begin = time.perf_counter()
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - begin) * 1000


def resident_mb(command, workers):
    """Of the launcher's own process, once all its workers run."""
    with tempfile.TemporaryDirectory() as folder:
        job = subprocess.Popen(command + ["sh", "-c", f"echo > {folder}/$$; exec sleep 1000"], stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        deadline = time.time() + 60
        while len(list(pathlib.Path(folder).iterdir())) < workers and time.time() < deadline:
            time.sleep(0.01)
        status = pathlib.Path(f"/proc/{job.pid}/status").read_text()
        job.send_signal(signal.SIGTERM)
        job.wait(60)
        for mark in pathlib.Path(folder).iterdir():  # a launcher that leaves its workers behind
            subprocess.run(["kill", "-9", mark.name], stderr=subprocess.DEVNULL)
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("launchers", nargs="*")
    arguments = parser.parse_args()
    n = arguments.workers
    commands = {"ddprun": [str(ROOT / "build/bin/ddprun"), f"--nproc-per-node={n}"]}
    commands |= {name: shlex.split(c.format(n=n)) for name, c in (item.split("=", 1) for item in arguments.launchers)}
    floor = ["sh", "-c", "/bin/true & " * n + "wait"]
    times = {name: [] for name in ["bare spawns by sh", *commands]}
    for _ in range(arguments.runs):
        times["bare spawns by sh"].append(start_to_exit_ms(floor))
        for name, command in commands.items():
            times[name].append(start_to_exit_ms(command + ["/bin/true"]))
    print(f"| launcher | {n} no-op workers, start to exit, ms | RSS, MB |\n|---|---|---|")
    for name, values in times.items():
        memory = f"{resident_mb(commands[name], n):.1f}" if name in commands else ""
        print(f"| {name} | {statistics.median(values):.1f} ({min(values):.1f}-{max(values):.1f}) | {memory} |")


if __name__ == "__main__":
    main()
