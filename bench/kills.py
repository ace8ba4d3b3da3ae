#!/usr/bin/env python3
"""Kills trainings at random moments and resumes them, until there have been --kills of them: no run may lose more than
docs/training/checkpoints.md allows, hang, leave processes behind, or end differently from an uninterrupted run.

usage: kills.py [--kills 200] [--seed 0] [--bin build/bin]

Five trainings of two ranks on Fashion-MNIST take turns: --join, --accumulate, --ema, --fsdp, validation between steps. The seed
decides signals and delays; the moments that they hit depend on the machine. A line for each kill; exits with 1 after a
breach.
"""
import argparse
import csv
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMMON = ["--data=fashion-mnist", "--val-split=0.5", "--limit-train=640", "--limit-val=500", "--limit-test=50", "--batch-size=16",
          "--epochs=3", "--log-interval=1"]
# Flags, and the steps between checkpoints.
TRAININGS = {
    "join": (["--join", "--limit-train=630"], 20),
    "accumulate": (["--accumulate=4", "--checkpoint-every-steps=2"], 2),
    "ema": (["--ema=0.9", "--checkpoint-every-steps=5"], 5),
    "fsdp": (["--fsdp", "--checkpoint-every-steps=5"], 5),
    "validation": (["--val-every-steps=7", "--limit-val=2000"], 7),
}
# How often, which signal, to whom.
WAYS = [(4, signal.SIGTERM, "ddprun"), (2, signal.SIGTERM, "a rank"), (2, signal.SIGINT, "ddprun"), (3, signal.SIGKILL, "a rank"),
        (2, signal.SIGKILL, "all ranks"), (2, signal.SIGKILL, "ddprun")]
COMPARED = ["step", "epoch", "lr", "train_loss", "train_loss_epoch", "val_loss", "test_loss"]


class Breach(Exception):
    pass


def figures(out):
    """The compared columns of metrics.csv, without empty cells."""
    if not (out / "metrics.csv").exists():
        return {name: [] for name in COMPARED}
    rows = list(csv.DictReader((out / "metrics.csv").read_text().splitlines()))
    return {name: [row[name] for row in rows if row.get(name)] for name in COMPARED}


def newest_step(out):
    return max([int(step) for step in figures(out)["step"] if step.isdigit()], default=0)


class Job:
    """A training under ddprun; its processes have a variable in common."""

    def __init__(self, programs, out, flags, log):
        self.mark = f"KILLS_JOB={os.getpid()}-{time.monotonic_ns()}"
        name, value = self.mark.split("=")
        self.log = log
        with open(log, "w") as file:
            self.process = subprocess.Popen(
                [programs / "ddprun", "--nproc-per-node=2", programs / "worker", "mnist", f"--out={out}", *COMMON, *flags],
                stdout=file, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1", name: value})

    def members(self):
        """The job's processes: pid -> rank, -1 for ddprun's own."""
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self.mark.encode() in (environ := (entry / "environ").read_bytes().split(b"\0")):
                    ranks = [int(item[5:]) for item in environ if item.startswith(b"RANK=")]
                    found[int(entry.name)] = ranks[0] if ranks else -1
            except OSError:
                pass
        return found

    def wait(self, seconds):
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            for pid in self.members():
                os.kill(pid, signal.SIGKILL)
            raise Breach(f"it did not end within {seconds} s") from None

    def send(self, number, target, chance):
        if target == "ddprun":
            return self.process.send_signal(number)
        pids = [pid for pid, rank in self.members().items() if rank >= 0]
        for pid in pids if target == "all ranks" else pids and [chance.choice(pids)]:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def check_nothing_left(self):
        deadline = time.monotonic() + 5
        while left := self.members():
            if time.monotonic() > deadline:
                raise Breach(f"processes are left: {left}")
            time.sleep(0.01)

    def resumed_at(self):
        found = re.search(r"resumed from .* at step (\d+)", self.log.read_text())
        return int(found[1]) if found else None


class Training:
    """One of the trainings: an uninterrupted run of it, and one that is killed again and again."""

    def __init__(self, name, programs, folder):
        self.name, self.programs = name, programs
        self.flags, self.every = TRAININGS[name]
        self.folder = folder / name
        self.folder.mkdir()
        self.runs, self.kept, self.promised = 0, 0, 0
        begin = time.monotonic()
        self.whole = self.folder / "whole"
        if Job(programs, self.whole, self.flags, self.folder / "whole.log").wait(300) != 0:
            raise Breach(f"{name}: the uninterrupted run failed:\n" + (self.folder / "whole.log").read_text())
        self.seconds = time.monotonic() - begin

    def out(self):
        return self.folder / str(self.runs)

    def kill(self, chance):
        """Kills the run once. returns  what was done; None if it ended before"""
        _, number, target = chance.choices(WAYS, [way[0] for way in WAYS])[0]
        delay = chance.uniform(0, self.seconds)
        job = Job(self.programs, self.out(), [*self.flags, "--resume=auto"], self.folder / "log")
        try:
            ended = job.process.wait(delay) is not None
        except subprocess.TimeoutExpired:
            ended = False
        # Until it announces itself, the rows are those of the previous run.
        announced = "Training mnist" in job.log.read_text()
        before = newest_step(self.out()) if announced else 0
        if not ended:
            job.send(number, target, chance)
        status = job.wait(60)
        job.check_nothing_left()
        if "Training mnist" in job.log.read_text():
            self.kept = job.resumed_at() or 0
            if self.kept < self.promised:
                raise Breach(f"it goes on at step {self.kept}, expected {self.promised} or more")
            self.promised = self.kept
        if ended or status == 0:
            if status != 0:
                raise Breach(f"it ended with {status}:\n" + job.log.read_text())
            self.compare()
            return None
        # What the next start must find.
        if before > self.kept:
            last = before // self.every * self.every - self.every  # the newest may not have been complete
            self.promised = before if number != signal.SIGKILL else max(self.kept, last)
        return f"{signal.Signals(number).name} to {target} after {delay:.2f} s, resumed at {self.kept}, at step {before}"

    def compare(self):
        for name, expected in figures(self.whole).items():
            if (got := figures(self.out())[name]) != expected:
                raise Breach(f"{self.out()}: {name} differs from that of the uninterrupted run:\n{got}\n{expected}")
        weights = []
        for run in [self.whole, self.out()]:
            file = self.folder / f"{run.name}.safetensors"
            subprocess.run([self.programs / "worker", "export", run / "checkpoints/last.pt", file], check=True, stdout=subprocess.DEVNULL)
            weights.append(file.read_bytes())
        if weights[0] != weights[1]:
            raise Breach(f"{self.out()}: the weights differ from those of the uninterrupted run")
        self.runs, self.kept, self.promised = self.runs + 1, 0, 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin")
    options = parser.parse_args()
    if not pathlib.Path("/usr/share/datasets/fashion-mnist").exists():
        print("Fashion-MNIST (package dataset-fashion-mnist) is not installed")
        return 4
    chance = random.Random(options.seed)
    kills, runs = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        trainings = [Training(name, options.bin.resolve(), pathlib.Path(folder)) for name in TRAININGS]
        while kills < options.kills:
            for training in trainings:
                try:
                    done = training.kill(chance)
                except Breach as breach:
                    print(f"{training.name}, after {kills} kills: {breach}\n{(training.folder / 'log').read_text()}", flush=True)
                    return 1
                kills += done is not None
                runs += done is None
                print(f"#{kills} {training.name}: {done}" if done else f"{training.name}: a run ended like the uninterrupted one", flush=True)
        for training in trainings:  # those still running
            job = Job(training.programs, training.out(), [*training.flags, "--resume=auto"], training.folder / "log")
            if job.wait(300) != 0 or (job.resumed_at() or 0) < training.promised:
                print(f"{training.name}: the last run failed:\n{job.log.read_text()}")
                return 1
            try:
                training.compare()
            except Breach as breach:
                print(f"{training.name}: {breach}")
                return 1
            runs += 1
    print(f"{kills} kills, {runs} runs that ended like uninterrupted ones")
    return 0


if __name__ == "__main__":
    sys.exit(main())
