#!/usr/bin/env python3
"""Runs a training under a seeded list of faults, next to an undisturbed one. Prints Markdown tables.

usage: chaos.py [--faults 20] [--gap 10] [--seed 1] [--steps 900] [--faults-of NAME,...] [--bin build/bin] [--data FOLDER]
                [--picture FILE.svg] [--logs FOLDER] [--cases TEXT] [--limit 90] [--faketime libfaketimeMT.so.1] [--cut 5]
                [--torchrun torchrun] [--ft-launcher ft_launcher] [--torchft PYTHON] [--python python3]

Faults, at random moments `gap` seconds apart on average; repeating a name makes it more frequent:
  kill, segfault, abort   a rank gets SIGKILL, SIGSEGV, SIGABRT
  kill-all                all ranks get SIGKILL
  stop                    a rank stops for a second
  oom                     the kernel's OOM killer ends a rank: it moves to a memory cgroup with a limit of 1 MB (root)
  bad-alloc               a rank can get no more memory (RLIMIT_AS of the live process): its next large allocation fails
  disk                    the run folder, a tmpfs of 256 MB, is full for two seconds (root)
  clock                   the wall clock jumps back by an hour, the next time forward: libfaketime, preloaded into the whole job (not Python's: it breaks time.sleep)
  launcher                the ddprun of a node with a rank gets SIGKILL and starts again after two seconds
  cut, slow               that node's link passes nothing for --cut seconds (5), or only 2 Mbit/s
The last two lines are for jobs on several nodes (network namespaces: several_nodes.py). Skips what this machine cannot do, and says so.

Programs and launchers are those of recovery.py; the Python programs save every 10 steps. Columns: seconds undisturbed and disturbed, goodput
(their ratio), seconds from a fault to the first line that mentions it (and for how many faults there was one), seconds to the next
new step (median, 99th percentile, longest), repeated steps, whether the final weights are bit for bit those of the undisturbed run, and the last loss that
each printed (of the test; of the last training step in Python). Without a new step or a line for `limit` seconds, a job counts as hung. A second
table has a row for each kind of fault (inf: no new step followed).
"""
import argparse
import glob
import hashlib
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import recovery
from faults import FAULTS, ON_NODES, missing

WORD = re.compile(r"\bfail|killed|SIG[A-Z]|signal|\blost\b|silent|exit ?code|Traceback|Error|error|No space|memory|restart|replaced|jumped", re.I)


def run(command, folder, planned, arguments, log):
    """The job, the faults with their times, and how it ended: "" if well."""
    environment, begin, struck, outcome = recovery.environment(), time.monotonic(), [], ""
    (folder / "clock").write_text("+0")
    if "clock" in (fault for _, fault, _ in planned):
        environment |= dict(LD_PRELOAD=str(arguments.faketime), FAKETIME_TIMESTAMP_FILE=str(folder / "clock"), FAKETIME_NO_CACHE="1",
                            FAKETIME_DONT_FAKE_MONOTONIC="1", FAKETIME_DISABLE_SHM="1")
    job = recovery.Job([str(word) for word in command], environment, folder / "events")
    silence = lambda: time.monotonic() - max(begin, *(at for at, _ in job.lines[-1:]), *(at for at, *_ in struck[-1:]), begin)
    job.wait_beyond(0, arguments.limit)
    for wait, fault, rank in planned:
        until = time.monotonic() + wait
        while time.monotonic() < until and job.process.poll() is None and silence() < arguments.limit:
            time.sleep(0.02)
        if job.newest() >= arguments.steps - 10 or job.process.poll() is not None or silence() >= arguments.limit:
            break
        at, before, pid = time.monotonic(), job.newest(), job.ranks().get(rank)
        try:
            FAULTS[fault](job, pid, folder) if pid else None
        except (ProcessLookupError, FileNotFoundError):
            continue  # it was ending
        if pid:
            struck.append((at, fault, rank))
            if job.wait_beyond(before, arguments.limit) is None:
                break
    while job.process.poll() is None and silence() < arguments.limit:
        time.sleep(0.02)
    last = f"{struck[-1][1]} at step {job.newest()}" if struck else "no fault"
    if job.process.poll() is None:
        outcome = "hung after " + last
    if job.end() != 0 and not outcome:
        outcome = "failed after " + last
    if log:
        lines = sorted([*job.lines, *((at, f"*** {fault}, rank {rank}\n") for at, fault, rank in struck)])
        log.write_text("".join(f"{at - begin:8.3f} {line}" for at, line in lines))
    return job, struck, outcome


def new_steps(job):
    """The steps that exceed all earlier ones."""
    new = []
    for at, step in job.steps:
        if not new or step > new[-1][1]:
            new.append((at, step))
    return new


def result(arguments, folder, job):
    """A digest of the final weights, and the last loss."""
    text, last, digest = "".join(line for _, line in job.lines), folder / "run/checkpoints/last.pt", None
    if last.exists():
        subprocess.run([arguments.bin / "worker", "export", last, folder / "weights.pt"], check=True, stdout=subprocess.DEVNULL)
        digest = hashlib.sha256((folder / "weights.pt").read_bytes()).hexdigest()
    elif found := re.findall(r"weights: (\w+)", text):
        digest = found[-1]
    return digest, (re.findall(r"loss: ([0-9.]+)", text, re.I) or ["-"])[-1].rstrip(".")


def picture(path, runs):
    """Steps over time, a line for each run, with a mark at each fault."""
    width, height, colours = 900, 420, ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf"]
    longest = max(new[-1][0] - new[0][0] for _, new, _ in runs)
    most = max(new[-1][1] for _, new, _ in runs)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + 60} {height + 50}" font-family="sans-serif" font-size="13">',
             f'<rect width="{width + 60}" height="{height + 50}" fill="white"/>']
    for i, (name, new, struck) in enumerate(runs):
        place = lambda at, step: (50 + width * (at - new[0][0]) / longest, 10 + height * (1 - step / most))
        points = " ".join("%.1f,%.1f" % place(at, step) for at, step in new)
        parts.append(f'<polyline fill="none" stroke="{colours[i % 10]}" stroke-width="1.5" points="{points}"/>')
        parts.append(f'<text x="620" y="{270 + 18 * i}" fill="{colours[i % 10]}">{name}</text>')
        for at, fault, _ in struck:
            x, y = place(at, max([step for when, step in new if when <= at], default=0))
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colours[i % 10]}"><title>{fault}</title></circle>')
    parts.append(f'<text x="50" y="{height + 40}">0 s</text><text x="{width}" y="{height + 40}">{longest:.0f} s</text>')
    parts.append(f'<text x="5" y="20">{most}</text><text x="5" y="{height + 10}">step</text></svg>')
    path.write_text("\n".join(parts))


def median(values, form="%.2f"):
    return form % statistics.median(values) if values else "-"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--gap", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--limit", type=float, default=90)
    parser.add_argument("--cut", default="5")
    parser.add_argument("--picture", type=pathlib.Path)
    parser.add_argument("--logs", type=pathlib.Path, help="a folder for every job's lines and faults, with seconds")
    parser.add_argument("--faults-of", default=",".join(FAULTS))
    parser.add_argument("--faketime", default=next(iter(glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")), ""))
    recovery.add_arguments(parser)
    arguments = parser.parse_args()
    os.environ["CHAOS_CUT"], arguments.faults_of = arguments.cut, arguments.faults_of.split(",")
    if os.geteuid() == 0 and "disk" in arguments.faults_of and "CHAOS_MOUNTS" not in os.environ:
        os.execvpe("unshare", ["unshare", "--mount", sys.executable, *sys.argv], dict(os.environ, CHAOS_MOUNTS="own"))
    for fault in sorted(set(arguments.faults_of)):
        if why := missing(fault, arguments):
            print(f"{fault}: skipped: {why}", file=sys.stderr)
            arguments.faults_of = [each for each in arguments.faults_of if each != fault]
    if arguments.logs:
        arguments.logs.mkdir(parents=True, exist_ok=True)
    columns = ["", "undisturbed, s", "disturbed, s", "faults", "goodput", "first message, s", "next new step, s", "p99", "longest", "repeated", "weights", "loss"]
    print("| " + " | ".join(columns) + " |" + "\n|" + "---|" * len(columns), flush=True)
    runs, by_fault = [], {}
    for name, (make_command, ranks) in recovery.cases(arguments, every=10).items():
        usable = [fault for fault in arguments.faults_of if ("nodes" in name or fault not in ON_NODES) and ("worker" in name or fault != "clock")]
        if arguments.cases not in name or ranks > 1 or not usable:
            continue
        chance = random.Random(arguments.seed)
        planned = [(chance.expovariate(1 / arguments.gap), chance.choice(usable), chance.randrange(2)) for _ in range(arguments.faults)]
        took, results = [], []
        for faults in ([], planned):
            with tempfile.TemporaryDirectory() as folder:
                folder = pathlib.Path(folder)
                (folder / "run").mkdir()
                if "disk" in usable:
                    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m", "chaos", folder / "run"], check=True)
                log = arguments.logs and arguments.logs / (re.sub(r"\W+", "_", name) + ("-disturbed" if faults else "") + ".log")
                job, struck, outcome = run(make_command(folder, arguments.steps), folder, faults, arguments, log)
                new = new_steps(job)
                took.append(new[-1][0] - new[0][0] if len(new) > 1 else 0)
                results.append(result(arguments, folder, job))
                if "disk" in usable:
                    subprocess.run(["umount", "--lazy", folder / "run"], check=True)
            if outcome:
                print(f"{name}: {outcome}\n" + "".join(line for _, line in job.lines[-20:]), file=sys.stderr)
                break
        effects = []
        for (at, fault, _), (end, *_) in zip(struck, [*struck[1:], (float("inf"),)]):
            word = next((when - at for when, line in job.lines if at < when < end and WORD.search(line) and not recovery.STEP.search(line)), None)
            blink = next((when - at for when, _ in new if when > at), float("inf"))
            repeated = sum(at < when < end for when, _ in job.steps) - sum(at < when < end for when, _ in new)
            effects.append((word, blink, repeated))
            by_fault.setdefault((name, fault), []).append(effects[-1])
        words, blinks = [word for word, *_ in effects if word is not None], [blink for _, blink, _ in effects if blink < float("inf")]
        runs += [(name, new, struck)] if len(new) > 1 else []
        same = outcome or ("-" if results[0][0] is None else "equal" if results[0][0] == results[1][0] else "differ")
        cells = [name, "%.1f" % took[0], "%.1f" % took[-1], len(struck), "-" if outcome else "%.1f %%" % (100 * took[0] / took[1]),
                 f"{median(words)} ({len(words)})", median(blinks), "%.2f" % sorted([0, *blinks])[round(0.99 * len(blinks))],
                 "%.2f" % max(blinks, default=0), len(job.steps) - len(new), same,
                 " / ".join(loss for _, loss in results)]
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    print("\n| | fault | how many | first message, s (of how many) | next new step, s | longest | repeated steps |\n|---|---|---|---|---|---|---|")
    for (name, fault), effects in by_fault.items():
        words, blinks, again = zip(*effects)
        words = [word for word in words if word is not None]
        cells = [name, fault, len(effects), f"{median(words)} ({len(words)})", median(blinks), "%.2f" % max(blinks), median(again, "%g")]
        print("| " + " | ".join(map(str, cells)) + " |")
    if arguments.picture and runs:
        picture(arguments.picture, runs)


if __name__ == "__main__":
    main()
