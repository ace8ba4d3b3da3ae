#!/usr/bin/env python3
"""Measures what several nodes cost; each is a launcher on this host, over loopback.

usage: nodes.py [--runs 9] [--nodes 2,16,64] [--ddprun PATH] [--torchrun PATH] [--cap 60]

  formation  from the start of the first launcher until the worker of the last node runs (N launchers, one worker each)
  failure    a worker on one node exits with 3, the other node's sleeps: from that end to the exit of the other node's launcher
  restart    the same with one restart: from that end until the workers of both nodes run again

A launcher that has not ended after --cap seconds is stopped, and the table says so. Medians (min-max); the launchers take turns.
"""
import argparse
import pathlib
import signal
import socket
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Job:
    """One job over n nodes."""

    def __init__(self, launcher, n, script, restarts=0):
        port = free_port()
        torchs = ["--nproc_per_node=1", "--no-python", f"--max_restarts={restarts}", f"--nnodes={n}",
                  f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=bench", "--rdzv-backend=c10d"]
        self.begin = time.time_ns()
        self.nodes = [subprocess.Popen([launcher, *torchs, "sh", "-c", script], start_new_session=True, **QUIET)
                      for _ in range(n)]

    def end(self):
        for node in self.nodes:
            if node.poll() is None:
                node.send_signal(signal.SIGTERM)
        for node in self.nodes:
            node.wait()


def stamps(folder, pattern, n, cap):
    """The times in the files, once there are n of them; none if they do not appear."""
    deadline = time.time() + cap
    while time.time() < deadline:
        files = list(pathlib.Path(folder).glob(pattern))
        if len(files) >= n and all(text := [file.read_text() for file in files]):
            return [int(time_ns) for time_ns in text]
        time.sleep(0.002)
    return []


def formation(launcher, n, cap):
    with tempfile.TemporaryDirectory() as folder:
        job = Job(launcher, n, f"date +%s%N > {folder}/$RANK")
        times = stamps(folder, "*", n, cap)
        for node in job.nodes:
            node.wait()
        return (max(times) - job.begin) / 1e6 if times else None


def failure(launcher, cap):
    with tempfile.TemporaryDirectory() as folder:
        job = Job(launcher, 2, f"echo $RANK > {folder}/rank_of_$PPID; [ $RANK = 1 ] || exec sleep 1000; "
                               f"sleep 1; date +%s%N > {folder}/end; exit 3")
        (end,) = stamps(folder, "end", 1, cap)
        other = next(node for node in job.nodes if pathlib.Path(folder, f"rank_of_{node.pid}").read_text() == "0\n")
        try:
            other.wait(cap)
            took = (time.time_ns() - end) / 1e6
        except subprocess.TimeoutExpired:
            took = None
        job.end()
        return took


def restart(launcher, cap):
    with tempfile.TemporaryDirectory() as folder:
        job = Job(launcher, 2, f"if [ -e {folder}/end ]; then date +%s%N > {folder}/again_$RANK; exit 0; fi; "
                               f"[ $RANK = 1 ] || exec sleep 1000; sleep 1; date +%s%N > {folder}/end; exit 3", restarts=1)
        (end,) = stamps(folder, "end", 1, cap)
        again = stamps(folder, "again_*", 2, cap)
        if again:
            for node in job.nodes:
                node.wait()
        job.end()
        return (max(again) - end) / 1e6 if again else None


def cell(figures, cap):
    done = [figure for figure in figures if figure is not None]
    if not done:
        return f"not within {cap} s"
    text = f"{statistics.median(done):.1f} ({min(done):.1f}-{max(done):.1f})"
    return text + (f"; {len(figures) - len(done)} of {len(figures)} not within {cap} s" if len(done) < len(figures) else "")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--nodes", default="2,16,64")
    parser.add_argument("--ddprun", default=str(ROOT / "build/bin/ddprun"))
    parser.add_argument("--torchrun")
    parser.add_argument("--cap", type=float, default=60)
    arguments = parser.parse_args()
    launchers = {"ddprun": arguments.ddprun}
    if arguments.torchrun:
        launchers["torchrun"] = arguments.torchrun
    cases = {f"{n} nodes: formation, ms": lambda launcher, n=n: formation(launcher, n, arguments.cap)
             for n in map(int, filter(None, arguments.nodes.split(",")))}
    cases["failure on one node to the other's exit, ms"] = lambda launcher: failure(launcher, arguments.cap)
    cases["failure on one node to all workers running again, ms"] = lambda launcher: restart(launcher, arguments.cap)
    print("| | " + " | ".join(launchers) + " |")
    print("|---" * (len(launchers) + 1) + "|")
    for title, measure in cases.items():
        figures = {name: [] for name in launchers}
        for _ in range(arguments.runs):
            for name, launcher in launchers.items():
                if name != "ddprun" and len(figures[name]) >= 3 or (name != "ddprun" and title.startswith("64")):
                    continue  # seconds each, and 64 Pythons exceed a small machine's memory
                figures[name].append(measure(launcher))
        print(f"| {title} | " + " | ".join(cell(f, arguments.cap) if f else "" for f in figures.values()) + " |", flush=True)


if __name__ == "__main__":
    main()
