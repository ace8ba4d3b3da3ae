#!/usr/bin/env python3
"""Measures what launchers cost, side by side in one run.

usage: launchers.py [--runs 15] [--workers 2] [--cases start,memory,failure,sigkill,restart,output] NAME=COMMAND ...

"{n}" in a command stands for the number of workers, "{restarts}" for the restarts allowed, "{prefix}" for the flag
given after "PREFIX=" (such as "PREFIX=-prepend-rank -n {n}"); the worker's argv is appended. ddprun from build/bin
and two bare spawns by a C program are always measured. Launchers take turns; the table has medians (min-max).

  start    all workers are /bin/true: start to exit
  memory   resident memory of the launcher's own process while its workers sleep
  failure  one worker exits with 3, the others sleep: from its end to the launcher's exit (hydra waits for the others)
  sigkill  the launcher is killed: until no worker or child of one is left; 5000 if they live on
  restart  one worker fails, once: from its end to the first line of the next attempt (only "{restarts}" launchers)
  output   two workers write 64-byte lines, 50 MB each, with a prefix before each line: until all has arrived

Example: launchers.py "torchrun=torchrun --standalone --nproc_per_node={n} --max_restarts={restarts} --no-python" \
    "hydra=mpiexec.hydra {prefix} -n {n}" --prefix hydra=-prepend-rank
"""
import argparse
import os
import pathlib
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
FLOOR = r"""
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
extern char **environ;
int main(int argc, char **argv) {
  for (int i = 0; i < atoi(argv[1]); ++i) { pid_t pid; posix_spawn(&pid, argv[2], 0, 0, argv + 2, environ); }
  while (wait(0) > 0) {}
  return argc < 3;
}
"""
OWN_PID = "pid=$(sh -c 'echo $PPID')"  # torchrun turns two $ into one
QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def start(command):
    signal.alarm(60)  # not run(timeout=...), which looks for the end at 0.5, 1.5, 3.5, 7.5, 15.5 ... ms
    begin = time.perf_counter()
    subprocess.run(command + ["/bin/true"], check=True, **QUIET)
    signal.alarm(0)
    return (time.perf_counter() - begin) * 1000


def memory(command, workers):
    with tempfile.TemporaryDirectory() as folder:
        job = subprocess.Popen(command + ["sh", "-c", f"{OWN_PID}; echo > {folder}/$pid; exec sleep 1000"],
                               start_new_session=True, **QUIET)
        deadline = time.time() + 60
        while len(list(pathlib.Path(folder).iterdir())) < workers and time.time() < deadline:
            time.sleep(0.01)
        status = pathlib.Path(f"/proc/{job.pid}/status").read_text()
        job.send_signal(signal.SIGTERM)
        job.wait(60)
        for mark in pathlib.Path(folder).iterdir():  # a launcher that leaves its workers behind
            subprocess.run(["kill", "-9", mark.name], stderr=subprocess.DEVNULL)
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


def failure(command):
    """The worker that takes the lock first fails half a second later, when all are there."""
    with tempfile.TemporaryDirectory() as folder:
        script = f"mkdir {folder}/lock 2>/dev/null || exec sleep 1000; sleep 0.5; date +%s%N > {folder}/end; exit 3"
        subprocess.run(command + ["sh", "-c", script], **QUIET)
        ended = time.time_ns()
        return (ended - int(pathlib.Path(folder, "end").read_text())) / 1e6


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def sigkill(command, workers):
    with tempfile.TemporaryDirectory() as folder:
        script = f"{OWN_PID}; sleep 1000 & echo $pid $! > {folder}/$pid.new; mv {folder}/$pid.new {folder}/$pid; wait"
        job = subprocess.Popen(command + ["sh", "-c", script], start_new_session=True, **QUIET)
        marks = []
        while len(marks) < workers:
            time.sleep(0.01)
            marks = [mark for mark in pathlib.Path(folder).iterdir() if mark.suffix != ".new"]
        pids = [int(pid) for mark in marks for pid in mark.read_text().split()]
        begin = time.perf_counter()
        job.kill()
        while (left := [pid for pid in pids if alive(pid)]) and time.perf_counter() - begin < 5:
            time.sleep(0.0005)
        took = (time.perf_counter() - begin) * 1000
        job.wait()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return took if not left else 5000


def restart(command):
    with tempfile.TemporaryDirectory() as folder:
        script = (f"if mkdir {folder}/lock 2>/dev/null; then sleep 0.5; date +%s%N > {folder}/end; exit 3; fi; "
                  f"if [ -e {folder}/end ]; then date +%s%N >> {folder}/begin; exit 0; fi; exec sleep 1000")
        subprocess.run(command + ["sh", "-c", script], check=True, **QUIET)
        begin = int(pathlib.Path(folder, "begin").read_text().split()[0])
        return (begin - int(pathlib.Path(folder, "end").read_text())) / 1e6


def output(command):
    line = "x" * 63
    worker = ["sh", "-c", f"yes {line} | head -c 50000000"]
    begin = time.perf_counter()
    job = subprocess.Popen(command + worker, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    got = 0
    while chunk := os.read(job.stdout.fileno(), 1 << 20):
        got += len(chunk)
    job.wait()
    if got < 100_000_000:
        raise SystemExit(f"{command}: output was lost: {got} bytes")
    return 100 / (time.perf_counter() - begin)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cases", default="start,memory,failure,sigkill,restart,output")
    parser.add_argument("--ddprun", default=str(ROOT / "build/bin/ddprun"))
    parser.add_argument("--prefix", action="append", default=[], metavar="NAME=FLAGS")
    parser.add_argument("launchers", nargs="*")
    arguments = parser.parse_args()
    n = arguments.workers
    templates = {"ddprun": arguments.ddprun + " {prefix} --nproc-per-node={n} --max-restarts={restarts}"}
    templates |= dict(item.split("=", 1) for item in arguments.launchers)
    prefixes = {"ddprun": "--prefix"} | dict(item.split("=", 1) for item in arguments.prefix)

    def command(name, restarts=0, prefix=""):
        return shlex.split(templates[name].format(n=n, restarts=restarts, prefix=prefix))

    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["cc", "-O2", "-x", "c", "-", "-o", f"{folder}/floor"], input=FLOOR, text=True, check=True)
        floor = [f"{folder}/floor", str(n)]
        cases = {
            "start": ("start to exit, ms", lambda name: start(floor if name == "bare spawns" else command(name))),
            "memory": ("RSS, MB", lambda name: memory(command(name), n)),
            "failure": ("failure to exit, ms", lambda name: failure(command(name))),
            "sigkill": ("SIGKILL to all gone, ms", lambda name: sigkill(command(name), n)),
            "restart": ("restart, ms", lambda name: restart(command(name, restarts=1))),
            "output": ("prefixed output, MB/s", lambda name: output(command(name, prefix=prefixes[name]))),
        }
        wanted = arguments.cases.split(",")
        results = {name: {} for name in ["bare spawns", *templates]}
        for case in wanted:
            names = [name for name in results if not (
                (name == "bare spawns" and case != "start") or (case == "restart" and "{restarts}" not in templates[name])
                or (case == "output" and name not in prefixes))]
            runs = min(arguments.runs, 5) if case in ("memory", "sigkill", "output") else arguments.runs
            for _ in range(runs):
                for name in names:
                    try:
                        results[name].setdefault(case, []).append(cases[case][1](name))
                    except subprocess.SubprocessError as error:  # hydra sometimes dies of SIGPIPE
                        if name == "ddprun":
                            raise
                        print(f"{name}, {case}: {error}", file=sys.stderr)
    print(f"| {n} workers | " + " | ".join(cases[case][0] for case in wanted) + " |")
    print("|---" * (len(wanted) + 1) + "|")
    for name, figures in results.items():
        cells = [f"{statistics.median(v):.1f} ({min(v):.1f}-{max(v):.1f})" if (v := figures.get(case)) else "" for case in wanted]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
