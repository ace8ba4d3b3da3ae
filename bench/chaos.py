#!/usr/bin/env python3
"""Runs a training under a seeded list of faults, next to an undisturbed one. Prints Markdown tables.

usage: chaos.py [--faults 20] [--gap 10] [--seed 1] [--steps 900] [--rounds 1] [--faults-of NAME,...] [--bin build/bin] [--data FOLDER]
                [--picture FILE.svg] [--logs FOLDER] [--cases EXPRESSION] [--limit 90] [--faketime libfaketimeMT.so.1] [--cut 5]
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
  drain                   once a spare stands by, the ddprun of such a node, but not the coordinator's, gets SIGTERM, as before a preemption
  cut, slow               that node's link passes nothing for --cut seconds (5), or only 2 Mbit/s
The last three lines are for jobs on several nodes (network namespaces: several_nodes.py). Skips what this machine cannot do, and says so.

Programs and launchers are those of recovery.py, which tells how to get the peers; the Python programs save every 10 steps, except those on
ddprun.elastic, which save nothing. In each of --rounds all have a disturbed run, in turns, with other moments than in the round before; so what else the
machine does hits all alike. The undisturbed run is in the first round.

Columns: seconds undisturbed and disturbed (median of the rounds), goodput (their ratio), seconds from a fault to the first line that mentions it (and
for how many faults there was one), seconds to the next new step of all ranks (median, 95th percentile, longest; in torchft the survivor's alone
counts), repeated steps, whether the final weights are bit for bit those of the undisturbed run, and the last loss that each printed (of the test; of
the last training step in Python). Without a new step or a line for `limit` seconds, a job counts as hung. A second table has a row for each kind of
fault (inf: no new step followed).
"""
import argparse
import glob
import hashlib
import math
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
from faults import FAULTS, ON_NODES, has_spare, missing

ENDING = {"kill", "segfault", "abort", "kill-all", "launcher"}  # a rank, at once
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
        while (time.monotonic() < until or fault == "drain" and not has_spare(job)) and job.process.poll() is None and silence() < arguments.limit:
            time.sleep(0.02)
        if job.newest() >= arguments.steps - 10 or job.process.poll() is not None or silence() >= arguments.limit:
            break
        at, since, pid = time.monotonic(), time.monotonic(), job.ranks().get(rank)
        try:
            FAULTS[fault](job, pid, folder) if pid else None
        except (ProcessLookupError, FileNotFoundError):
            continue  # it was ending
        if pid:
            if fault in ENDING:  # the lost rank may have had its part in the step that ends now
                since += job.pace() / 2
                time.sleep(max(0, since - time.monotonic()))
            struck.append((at, fault, rank, since))
            if job.wait_beyond(max([step for when, step in job.steps if when <= since], default=0), arguments.limit) is None:
                break
    while job.process.poll() is None and silence() < arguments.limit:
        time.sleep(0.02)
    last = f"{struck[-1][1]} at step {job.newest()}" if struck else "no fault"
    if job.process.poll() is None:
        outcome = "hung after " + last
    if job.end() != 0 and not outcome:
        outcome = "failed after " + last
    if log:
        lines = sorted([*job.lines, *((at, f"*** {fault}, rank {rank}\n") for at, fault, rank, _ in struck)])
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


LEGEND = {"ddprun --recover=rank, worker": "worker, --recover=rank", "ddprun --recover=rank --standby=1, worker": "worker, --recover=rank --standby=1",
          "ddprun --recover=rank, worker, 2 nodes and a spare": "worker, --recover=rank, two nodes and a spare",
          "ddprun, worker": "worker, restarted by ddprun", "ddprun, Python": "Python, restarted by ddprun", "torchrun, Python": "Python, restarted by torchrun",
          "ft_launcher, Python": "Python, restarted by ft_launcher", "torchft, Python": "Python, with torchft"}
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#8c6bb1", "#56b4e9", "#8a8f98"]
STYLE = """<style>
text { fill: #24292f; font: 13px sans-serif } .title { font-size: 16px; font-weight: bold } .soft { fill: #59636e }
.paper { fill: #ffffff } .grid { stroke: #e3e6ea } .middle { text-anchor: middle } .end { text-anchor: end }
polyline { fill: none; stroke-width: 1.8 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .soft { fill: #9aa4af } .paper { fill: #0d1117 } .grid { stroke: #30363d } }
</style>"""


def picture(path, runs):
    """Steps over time, a line for each run, with a mark at each fault; the names in the order in which the runs ended."""
    left, top, width, height = 66, 78, 870, 440
    longest = max(new[-1][0] - new[0][0] for _, new, _ in runs)
    most = max(new[-1][1] for _, new, _ in runs)
    place = lambda seconds, step: (left + width * seconds / longest, top + height * (1 - step / most))
    text = lambda x, y, words, kind="": f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{words}</text>'
    grid = lambda x1, y1, x2, y2: f'<path class="grid" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 570">', STYLE, '<rect class="paper" width="960" height="570" rx="8"/>',
             text(24, 32, f"The same {most} training steps on two ranks, under the same list of faults", "title"),
             text(24, 54, "worker: the trainer in C++. Python: a script that saves every 10 steps. A dot is a fault; a cross, the end of a run "
                          "that did not finish.", "soft")]
    for step in range(0, most + 1, 50 if most > 100 else 10):
        (x, y), (end, _) = place(0, step), place(longest, step)
        parts += [grid(x, y, end, y), text(x - 8, y + 4, step, "end soft")]
    for second in range(0, int(longest) + 1, 10):
        (x, y), (_, end) = place(second, 0), place(second, most)
        parts += [grid(x, y, x, end), text(x, y + 20, second, "middle soft")]
    parts += [text(left + width / 2, 556, "seconds", "middle soft"),
              f'<text transform="translate(18 {top + height / 2}) rotate(-90)" class="middle soft">training step</text>']
    ended = sorted(range(len(runs)), key=lambda i: (runs[i][1][-1][1] < most, runs[i][1][-1][0] - runs[i][1][0][0]))
    parts.append(f'<rect class="paper" x="496" y="{top + height - 20 * len(runs) - 22}" width="438" height="{20 * len(runs) + 12}"/>')
    for i, (name, new, struck) in enumerate(runs):
        colour, begin = COLOURS[i % len(COLOURS)], new[0][0]
        points = " ".join("%.1f,%.1f" % place(at - begin, step) for at, step in new)
        dashes = ' stroke-dasharray="7 3"' if i % 4 == 1 else ""  # where two lie on each other, both colours show
        parts.append(f'<polyline stroke="{colour}"{dashes} points="{points}"/>')
        for at, fault, *_ in struck:
            x, y = place(at - begin, max([step for when, step in new if when <= at], default=0))
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{colour}"><title>{fault}</title></circle>')
        x, y = place(new[-1][0] - begin, new[-1][1])
        complete = new[-1][1] == most
        if not complete:
            parts.append(f'<path stroke="{colour}" stroke-width="2.4" d="M{x - 6:.1f} {y - 6:.1f}l12 12m0 -12l-12 12"/>')
        row = top + height - 20 * (len(runs) - ended.index(i)) - 4
        spent = f"{new[-1][0] - begin:.1f} s" if complete else f"no step after {new[-1][1]}"
        parts += [f'<path stroke="{colour}" stroke-width="2.4"{dashes} d="M505 {row - 4:.1f}h26"/>', text(538, row, LEGEND.get(name, name)),
                  text(left + width - 6, row, spent, "end soft")]
    path.write_text("\n".join([*parts, "</svg>\n"]))


def shown(values, fraction=0.5):
    """The median, or another quantile: the smallest value that is not exceeded by this fraction of them."""
    ordered = sorted(values)
    middle = statistics.median(ordered) if ordered and fraction == 0.5 else ordered[math.ceil(fraction * len(ordered)) - 1] if ordered else None
    return "-" if middle is None else "%.2f" % middle


class Row:
    """What a launcher did, in all rounds."""

    def __init__(self):
        self.plain, self.disturbed, self.results, self.outcomes, self.effects, self.repeated, self.line = 0, [], [], [], [], 0, None

    def add(self, job, struck, outcome, result):
        new = new_steps(job)
        seconds = new[-1][0] - new[0][0] if len(new) > 1 else 0
        self.results.append(result)
        if not self.plain and not struck:
            self.plain = seconds
        if outcome:
            self.outcomes.append(outcome)
        elif struck:
            self.disturbed.append(seconds)
        self.repeated += len(job.steps) - len(new)
        self.line = self.line or (struck and len(new) > 1 and (new, struck))
        for (at, fault, _, since), (end, *_) in zip(struck, [*struck[1:], (float("inf"),)]):
            word = next((when - at for when, line in job.lines if at < when < end and WORD.search(line) and not recovery.STEP.search(line)), None)
            blink = next((when - at for when, _ in new if when > since), float("inf"))
            again = sum(at < when < end for when, _ in job.steps) - sum(at < when < end for when, _ in new)
            self.effects.append((fault, word, blink, again))

    def cells(self, effects):
        """Of these effects: the median time to the first message and how many had one, and times to the next new step."""
        words, blinks = [word for _, word, *_ in effects if word is not None], [blink for _, _, blink, _ in effects if blink < float("inf")]
        return [f"{shown(words)} ({len(words)})", shown(blinks), shown(blinks, 0.95), shown(blinks, 1)]

    def whole(self):
        weights, losses = zip(*self.results)
        same = "-" if weights[0] is None else "equal" if len(set(weights)) == 1 else "differ"
        disturbed = statistics.median(self.disturbed) if self.disturbed else 0
        return ["%.1f" % self.plain, "%.1f" % disturbed, len(self.effects), "%.1f %%" % (100 * self.plain / disturbed) if disturbed else "-",
                *self.cells(self.effects), self.repeated, "; ".join(self.outcomes) or same, " / ".join(dict.fromkeys(losses))]


def run_once(arguments, name, command, planned, disk):
    """What run() and result() say of a job in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "run").mkdir()
        if disk:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m", "chaos", folder / "run"], check=True)
        log = arguments.logs and arguments.logs / (re.sub(r"\W+", "_", name) + ("-disturbed" if planned else "") + ".log")
        job, struck, outcome = run(command(folder, arguments.steps), folder, planned, arguments, log)
        ended = result(arguments, folder, job)
        if disk:
            subprocess.run(["umount", "--lazy", folder / "run"], check=True)
    if outcome:
        print(f"{name}: {outcome}\n" + "".join(line for _, line in job.lines[-20:]), file=sys.stderr)
    return job, struck, outcome, ended


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--gap", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--rounds", type=int, default=1)
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
    columns = ["", "undisturbed, s", "disturbed, s", "faults", "goodput", "first message, s", "next new step, s", "p95", "longest", "repeated", "weights", "loss"]
    rows = {}
    for number in range(arguments.rounds):
        for name, (make_command, ranks) in recovery.cases(arguments, every=10).items():
            usable = [fault for fault in arguments.faults_of if ("nodes" in name or fault not in ON_NODES) and ("worker" in name or fault != "clock")]
            if ranks > 1 or not usable:
                continue
            chance = random.Random(arguments.seed + number)
            planned = [(chance.expovariate(1 / arguments.gap), chance.choice(usable), chance.randrange(2)) for _ in range(arguments.faults)]
            row = rows.setdefault(name, Row())
            for faults in [[], planned] if number == 0 else [planned]:
                row.add(*run_once(arguments, name, make_command, faults, "disk" in usable))
                if row.outcomes and not faults:
                    break
            print(f"round {number + 1}: {name}:", *row.whole(), file=sys.stderr, flush=True)
    print("| " + " | ".join(columns) + " |" + "\n|" + "---|" * len(columns))
    for name, row in rows.items():
        print("| " + " | ".join(map(str, [name, *row.whole()])) + " |")
    print("\n| | fault | how many | first message, s (of how many) | next new step, s | p95 | longest | repeated steps |\n|---|---|---|---|---|---|---|---|")
    for name, row in rows.items():
        for fault in dict.fromkeys(effect[0] for effect in row.effects):
            effects = [effect for effect in row.effects if effect[0] == fault]
            again = "%g" % statistics.median(effect[3] for effect in effects)
            print("| " + " | ".join(map(str, [name, fault, len(effects), *row.cells(effects), again])) + " |")
    lines = [(name, *row.line) for name, row in rows.items() if row.line]
    if arguments.picture and lines:
        picture(arguments.picture, lines)


if __name__ == "__main__":
    main()
