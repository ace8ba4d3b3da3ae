#!/usr/bin/env python3
"""What a lost rank costs: SIGKILL of one rank of two, or of both, in an MNIST training. Prints a table in Markdown.

usage: recovery.py [--kills 8] [--rounds 1] [--bin build/bin] [--data FOLDER] [--torchrun torchrun] [--python python3]
                   [--ft-launcher ft_launcher] [--torchft PYTHON] [--limit 60] [--cases EXPRESSION] [--worker-flags='FLAG...'] [--batch-size 128]
                   [--goodput SECONDS --steps 900] [--cost PAIRS]

Cases: the worker and a Python program on ddprun.elastic under `ddprun --recover=rank`, the worker with all ranks killed and, for root, on two
nodes and a spare, the worker and a Python program restarted as a whole from a checkpoint every 5 steps (the Python programs also with
--preload=torch) and, if they are given, the Python program under torchrun and under ft_launcher of nvidia-resiliency-ext, and one for torchft under
a Python that has it. In each of --rounds all take their turn, with as many of the --kills. A venv for both (torch is the other Python's):

    python3 -m venv peers && dirname $(dirname $(PYTHON_WITH_TORCH -c 'import torch; print(torch.__file__)')) >$(echo peers/lib/*/site-packages)/torch.pth
    peers/bin/pip install --no-deps nvidia-resiliency-ext==0.4.1 torchft==0.2.0
    peers/bin/pip install defusedxml psutil packaging pyyaml opentelemetry-sdk opentelemetry-exporter-otlp

Columns: a step before the kill; the time from the signal to the first line about it, and to the first new step (one beyond the newest before
the kill); the repeated steps; how often the job hung (no new step for --limit seconds) or ended, after which it starts over.
With --goodput SECONDS, compares a fault at that interval with none over the same number of steps. With --cost PAIRS, compares the CPU
seconds of 100 steps with and without --recover=rank, without faults: both jobs run at once, on a core each, and swap cores.
"""
import argparse
import contextlib
import itertools
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEP = re.compile(r"^step (\d+)$|Train Epoch: (\d+) \[(\d+)/60000")
samples = 256  # a step of both ranks


def variable(pid, name):
    """The value of a process's environment variable, or None."""
    try:
        variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((each.split(b"=", 1)[1].decode() for each in variables if each.startswith(name.encode() + b"=")), None)


class Job:
    """A running job: its lines and steps, and when they came."""

    def __init__(self, command, environment, events=None):
        self.events = events
        self.lines, self.steps, self.changed = [], [], threading.Condition()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        for line in self.process.stdout:
            now, found = time.monotonic(), STEP.search(line.rstrip())
            with self.changed:
                self.lines.append((now, line))
                if found:
                    step = int(found[1]) if found[1] else (int(found[2]) - 1) * -(-60000 // samples) + int(found[3]) // samples + 1
                    self.steps.append((now, step))
                self.changed.notify_all()
        with self.changed:
            self.changed.notify_all()

    def newest(self):
        return max((step for _, step in self.steps), default=0)

    def pace(self):
        """Seconds from one of the last steps to the next."""
        ends = [when for when, _ in self.steps[-10:]]
        return median([b - a for a, b in itertools.pairwise(ends)])

    def wait_beyond(self, step, limit=float("inf")):
        """Until a later step than this one is done: when, or None at the job's end or after that many seconds."""
        until = time.monotonic() + limit
        with self.changed:
            while self.newest() <= step:
                if self.process.poll() is not None and not self.thread.is_alive() or time.monotonic() > until:
                    return None
                self.changed.wait(1)
            return next(at for at, done in self.steps if done > step)

    def ranks(self):
        """Process ids by rank: of ddprun's events, else of all descendants that have one."""
        if self.events and self.events.exists():
            events = [json.loads(line) for line in self.events.read_text().splitlines() if line.endswith("}")]
            return {event["rank"]: event["pid"] for event in events if event["event"] == "started"}
        found = {}
        for pid in self.descendants():
            rank = variable(pid, "RANK")
            if rank:
                found.setdefault(int(variable(pid, "REPLICA_GROUP_ID") or rank), pid)
        return found

    def descendants(self):
        found, parents = [], [self.process.pid]
        while parents:
            listed = subprocess.run(["ps", "-o", "pid=", "--ppid", ",".join(map(str, parents))], capture_output=True, text=True).stdout
            parents = [int(pid) for pid in listed.split()]
            found += parents
        return found

    def end(self):
        """Its exit status; kills whatever is left of it."""
        left = [*self.descendants(), self.process.pid] if self.process.poll() is None else []
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.thread.join(10)  # a process that it left behind may hold the pipe
        return self.process.wait()


def environment():
    return dict(os.environ, OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")


def worker(arguments, folder, flags, launcher, steps):
    return [arguments.bin / "ddprun", "--max-restarts=1000", *launcher, arguments.bin / "worker", "mnist", "--data", arguments.data,
            "--epochs=9", f"--max-steps={steps}", "--log-interval=1", "--no-report", "--no-progress", "--no-tensorboard",
            "--limit-test=500", "--save-every=1000", "--out", folder / "run", f"--batch-size={arguments.batch_size}", *arguments.worker_flags, *flags]


def cases(arguments, every=5):
    one = lambda folder: ["--nproc-per-node=2", "--events-json", folder / "events"]
    recover = lambda folder: [*one(folder), "--recover=rank"]
    several = ["--nproc-per-node=1", "--nnodes=2", "--spares=1", "--recover=rank", "--node-timeout=2", "--rdzv-id=bench",
               "--rdzv-endpoint=10.97.0.1,10.97.0.2,10.97.0.3"]
    saving = [f"--checkpoint-every-steps={every}", "--resume=auto"]
    python = [ROOT / "bench/mnist_recovering.py", arguments.data]
    saved = lambda folder, steps: [steps, every, folder / "run/last.pt"]
    found = {
        "ddprun --recover=rank, worker": (lambda folder, steps: worker(arguments, folder, [], recover(folder), steps), 1),
        "ddprun --recover=rank --standby=1, worker": (lambda folder, steps: worker(arguments, folder, [], [*recover(folder), "--standby=1"], steps), 1),
        "ddprun --recover=rank, worker, both ranks": (lambda folder, steps: worker(arguments, folder, [], recover(folder), steps), 2),
        "ddprun, worker": (lambda folder, steps: worker(arguments, folder, saving, one(folder), steps), 1),
        "ddprun, Python": (lambda folder, steps: [arguments.bin / "ddprun", "--nproc-per-node=2", "--max-restarts=1000", arguments.python, *python,
                                                  *saved(folder, steps)], 1),
    }
    for standby in [], ["--standby=1"]:
        found[" ".join(["ddprun --recover=rank", *standby]) + ", ddprun.elastic"] = (
            lambda folder, steps, standby=standby: [arguments.bin / "ddprun", *recover(folder), *standby, "--max-restarts=1000", arguments.python,
                                                    ROOT / "bench/mnist_elastic.py", arguments.data, steps], 1)
    warm = ["env", f"PYTHON_EXEC={arguments.python}", arguments.bin / "ddprun", "--max-restarts=1000", "--preload=torch"]
    found["ddprun --recover=rank --preload=torch, ddprun.elastic"] = (
        lambda folder, steps: [*warm, *recover(folder), ROOT / "bench/mnist_elastic.py", arguments.data, steps], 1)
    found["ddprun --preload=torch, Python"] = (lambda folder, steps: [*warm, *one(folder), *python, *saved(folder, steps)], 1)
    if os.geteuid() == 0:
        found["ddprun --recover=rank, worker, 2 nodes and a spare"] = (
            lambda folder, steps: ["unshare", "--net", ROOT / "bench/several_nodes.py", 3, *worker(arguments, folder, [], several, steps)], 1)
    if arguments.torchrun:
        found["torchrun, Python"] = (lambda folder, steps: [arguments.torchrun, "--standalone", "--nproc_per_node=2", "--max_restarts=1000",
                                                            *python, *saved(folder, steps)], 1)
    if arguments.ft_launcher:
        found["ft_launcher, Python"] = (lambda folder, steps: [arguments.ft_launcher, "--standalone", "--nproc_per_node=2", "--max_restarts=1000",
                                                               "--ignore-missing-fault-tol-cfg", *python, *saved(folder, steps)], 1)
    if arguments.torchft:
        found["torchft, Python"] = (lambda folder, steps: [arguments.torchft, ROOT / "bench/mnist_torchft.py", arguments.data, *saved(folder, steps)], 1)
    return {name: case for name, case in found.items() if re.search(arguments.cases, name)}


def measure(make_command, ranks, kills, limit):
    """For each kill: seconds to the launcher's first line about it (if any) and to the next new step, repeated steps, and seconds a step took before.
    And how often no new step followed for `limit` seconds, or the job ended; then another begins."""
    results, hung, failed = [], 0, 0
    while len(results) + hung + failed < kills:
        with tempfile.TemporaryDirectory() as folder:
            job, new = Job([str(word) for word in make_command(pathlib.Path(folder), 100000)], environment(), pathlib.Path(folder) / "events"), None
            while len(results) + hung + failed < kills:
                if not all(job.wait_beyond(job.newest(), limit) for _ in range(12)):
                    new = None
                    break
                if new:
                    time.sleep(max(0, new + random.uniform(3, 5) - time.monotonic()))  # another process stands by
                pids, pace, had, at = job.ranks(), job.pace(), job.newest(), time.monotonic()
                for rank in range(ranks):
                    os.kill(pids[1 - rank], signal.SIGKILL)
                time.sleep(pace / 2)  # the lost rank may have had its part in the step that ends now
                before = job.newest()
                new = job.wait_beyond(before, limit)
                if new is None:
                    break
                told = next((when - at for when, line in job.lines if when > at and re.search("fail|SIGKILL|-9", line)), None)
                again = [step for when, step in job.steps if at < when < new]
                results.append((told, new - at, len([step for step in again if step <= before]) - (before - had), pace))
            if new is None and job.process.poll() is None:
                hung += 1
            elif new is None:
                failed += 1
            job.end()
    return results, hung, failed


def goodput(make_command, gap, steps):
    """Seconds for this many steps, with a fault every `gap` seconds; 0: none. And the number of faults."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        job = Job([str(word) for word in make_command(pathlib.Path(folder), steps)], environment(), pathlib.Path(folder) / "events")
        job.wait_beyond(0)
        faults = 0
        while gap and job.newest() < steps and job.process.poll() is None:
            time.sleep(gap)
            pid = job.ranks().get(faults % 2)
            if pid and job.newest() < steps - 1:
                os.kill(pid, signal.SIGKILL)
                faults += 1
        job.process.wait()
        job.thread.join()
        first, last = job.steps[0][0], next(when for when, step in job.steps if step >= steps)
        return last - first, faults


def cpu_seconds(commands):
    """Of jobs that run at the same time, each on one core."""
    pids = [os.posix_spawnp("taskset", ["taskset", "--cpu-list", str(core), *map(str, command)], environment(),
                            file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]) for core, command in enumerate(commands)]
    seconds = []
    for pid in pids:
        _, status, usage = os.wait4(pid, 0)
        if status:
            sys.exit(f"a job has failed: {os.waitstatus_to_exitcode(status)}")
        seconds.append(usage.ru_utime + usage.ru_stime)
    return seconds


def cost(arguments, steps=100):
    """For each pair, the CPU seconds of the steps with --recover=rank divided by those without. Two cores take turns with two jobs of two ranks."""
    launchers, ratios = (["--nproc-per-node=2"], ["--nproc-per-node=2", "--recover=rank"]), []
    for pair in range(arguments.cost):
        with tempfile.TemporaryDirectory() as folder:
            order = [pair % 2, 1 - pair % 2]  # by core
            once, all_steps = (cpu_seconds([worker(arguments, pathlib.Path(folder, str(which)), ["--overwrite"], launchers[which], count)
                                            for which in order]) for count in (1, steps))
            taken = dict(zip(order, (whole - start for whole, start in zip(all_steps, once))))
            ratios.append(taken[1] / taken[0])
            print(f"{taken[1]:.2f} s / {taken[0]:.2f} s", flush=True)
    return ratios


def median(values):
    return statistics.median(values) if values else 0


def add_arguments(parser):
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin")
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--torchrun", default="")
    parser.add_argument("--ft-launcher", default="")
    parser.add_argument("--torchft", default="", metavar="PYTHON")
    parser.add_argument("--batch-size", type=int, default=128, help="the worker's, per rank: for a step of another length")
    parser.add_argument("--worker-flags", type=str.split, default=[], metavar="'FLAG...'", help="more flags of the worker")
    parser.add_argument("--cases", default="", help="only those whose names match this regular expression")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=1, help="of all cases in turn, so that what else the machine does hits all alike")
    add_arguments(parser)
    parser.add_argument("--limit", type=float, default=60, help="seconds without a step, then the job counts as hung")
    parser.add_argument("--goodput", type=float, default=0, help="seconds between faults")
    parser.add_argument("--steps", type=int, default=900, help="of --goodput")
    parser.add_argument("--cost", type=int, default=0, help="pairs of runs without faults")
    arguments = parser.parse_args()
    global samples
    samples = 2 * arguments.batch_size
    wanted = cases(arguments)
    if arguments.cost:
        ratios = sorted(cost(arguments))
        print(f"CPU seconds with --recover=rank / without: median {statistics.median(ratios):.3f}, {ratios[0]:.3f} to {ratios[-1]:.3f}")
        return
    if arguments.goodput:
        print("| | undisturbed, s | a fault every %g s, s | faults | goodput |\n|---|---|---|---|---|" % arguments.goodput)
        for name, (make_command, ranks) in wanted.items():
            if ranks > 1:
                continue
            plain, _ = goodput(make_command, 0, arguments.steps)
            disturbed, faults = goodput(make_command, arguments.goodput, arguments.steps)
            print(f"| {name} | {plain:.1f} | {disturbed:.1f} | {faults} | {100 * plain / disturbed:.0f} % |", flush=True)
        return
    print("| | a step, ms | first message, ms | next new step, ms | longest | repeated steps | hung | failed |\n|---|---|---|---|---|---|---|---|")
    found = {name: ([], [], []) for name in wanted}
    for number in range(arguments.rounds):
        for name, (make_command, ranks) in wanted.items():
            kills = arguments.kills * (number + 1) // arguments.rounds - arguments.kills * number // arguments.rounds
            results, hung, failed = measure(make_command, ranks, kills, arguments.limit)
            print(f"{name}: {results}", file=sys.stderr, flush=True)
            for all_rounds, value in zip(found[name], (results, [hung], [failed])):
                all_rounds += value
    for name, (results, hung, failed) in found.items():
        told = [1000 * result[0] for result in results if result[0] is not None]
        new = [1000 * result[1] for result in results]
        again = [result[2] for result in results]
        row = [name, *("%.0f" % value if value else "-" for value in (1000 * median([result[3] for result in results]), median(told), median(new),
                                                                    max(new, default=0))),
               "%g, at most %d" % (median(again), max(again)) if results else "-", *("%d of %d" % (count, arguments.kills) for count in (sum(hung), sum(failed)))]
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
