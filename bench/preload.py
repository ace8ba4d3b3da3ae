#!/usr/bin/env python3
"""What ddprun --preload saves: launch, memory and restart of DistributedDataParallel with the MNIST CNN. Prints a table in Markdown.

usage: preload.py [--runs 5] [--workers 8] [--bin build/bin] [--python python3]

Launchers take turns: torchrun of that Python, ddprun, and ddprun --preload=torch. Medians (min-max) of
  launch   from the launcher's start to the end of the first step of the last of --workers ranks
  memory   of all of these processes and their launcher while they wait after that step: proportional set size, so shared pages count once
  restart  (hung: no such step within 30 s) two ranks, one of which exits after its first step: to the end of the first step of the last rank of the next attempt
"""
import argparse
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = f"""
import os, sys, time
sys.path.insert(0, {str(ROOT / "bench")!r})
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from mnist_ddp import Net
dist.init_process_group("gloo")
model = DistributedDataParallel(Net())
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
loss = torch.nn.functional.nll_loss(model(torch.randn(32, 1, 28, 28)), torch.randint(0, 10, (32,)))
loss.backward()
optimizer.step()
os.write(1, b"step %f\\n" % time.monotonic())  # whole lines, whoever else writes
if sys.argv[1:] == ["fail"]:
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        dist.barrier()
        if dist.get_rank() == 1:
            os.write(1, b"fails %f\\n" % time.monotonic())
            os._exit(3)
        time.sleep(60)
    dist.barrier()  # or a rank that is late may lose the other
    time.sleep(0.5)
    os._exit(0)
time.sleep(600)
"""


def descendants(pid):
    found, parents = [pid], [pid]
    while parents:
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", ",".join(map(str, parents))], capture_output=True, text=True).stdout
        parents = [int(each) for each in listed.split()]
        found += parents
    return [each for each in found if pathlib.Path(f"/proc/{each}/cmdline").exists()]


def proportional_set(pid):
    try:
        return int(re.search(r"^Pss:\s*(\d+)", pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)[1]) / 1024
    except (OSError, TypeError):  # it has ended: ps
        return 0


def launch(command, workers, program):
    """Seconds and MiB."""
    begin = time.monotonic()
    job = subprocess.Popen([*command, f"--nproc-per-node={workers}", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    ends = []
    while len(ends) < workers:
        line = job.stdout.readline()
        if not line:
            sys.exit(f"{command}: ended")
        if line.startswith("step"):
            ends.append(float(line.split()[1]))
    memory = sum(map(proportional_set, descendants(job.pid)))
    job.send_signal(signal.SIGTERM)
    job.communicate()
    return max(ends) - begin, memory


def restart(command, program):
    """Seconds; None: the ranks did not come up again."""
    job = subprocess.Popen([*command, "--nproc-per-node=2", program, "fail"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        out = job.communicate(timeout=30)[0]
    except subprocess.TimeoutExpired:
        for pid in descendants(job.pid):
            os.kill(pid, signal.SIGKILL)
        job.communicate()
        return None
    steps = [float(step) for step in re.findall(r"^step (\S+)", out, re.M)]
    fails = float(re.search(r"^fails (\S+)", out, re.M)[1])
    return max(steps) - fails if len(steps) == 4 and job.returncode == 0 else None


def shown(values, digits):
    hung, values = values.count(None), [value for value in values if value is not None]
    if not values:
        return "hung"
    return ("" if hung == 0 else f"hung {hung} times, else ") + f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin")
    parser.add_argument("--python", default="python3")
    arguments = parser.parse_args()
    os.environ |= {"PYTHON_EXEC": arguments.python, "OMP_NUM_THREADS": "1"}
    ddprun = [arguments.bin / "ddprun", "--max-restarts=1"]
    cases = {"torchrun": [arguments.python, "-m", "torch.distributed.run", "--standalone", "--max-restarts=1"], "ddprun": ddprun,
             "ddprun --preload=torch": [*ddprun, "--preload=torch"]}
    results = {name: ([], [], []) for name in cases}
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder, "program.py")
        program.write_text(PROGRAM)
        for _ in range(arguments.runs):
            for name, command in cases.items():
                seconds, memory = launch(command, arguments.workers, program)
                print(name, seconds, memory, file=sys.stderr, flush=True)
                for values, value in zip(results[name], (seconds, memory, restart(command, program))):
                    values.append(value)
    print(f"| | {arguments.workers} ranks: first step of the last, s | memory, MiB | restart of 2 ranks, s |\n|---|---|---|---|")
    for name, (seconds, memory, again) in results.items():
        print(f"| {name} | {shown(seconds, 2)} | {shown(memory, 0)} | {shown(again, 2)} |")


main()
