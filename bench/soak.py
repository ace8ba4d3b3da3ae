#!/usr/bin/env python3
"""A long job on three hosts under everything that makes a launcher slow to react: is every signal answered at once, and is nothing
left behind? Prints Markdown tables; exits with 1 after a breach. As root, with `ip`; --faults=disk also needs a loop device.

usage: soak.py [--minutes 30] [--seed 0] [--ddprun build/bin/ddprun] [--faults reader,disk,strangers,failures] [--limit 0.1] [--keep FOLDER]

Jobs of two workers on each host (network namespaces on a bridge) follow one another. At random moments a node's ddprun gets SIGUSR1, and at
a random end SIGTERM. Each worker that lives for --limit seconds after that has to have got the signal by then; a copy of the worker that runs
without ddprun gets the same signal at the same time, and what it takes (the machine's own delay) is added to the limit.

  reader     ddprun's stdout and stderr are pipes of 4 KiB (one for both), read only now and then, and more is written than they hold
  disk       the log files, --events-json and, on the last host, stdout and stderr are on an ext4 file system of our own (a loop device),
             frozen now and then (fsfreeze)
  strangers  connect to the endpoint, 20 a second and 200 at once now and then: garbage, half greetings, half frames, a beat as first frame
  failures   workers fail at random; all start again (--max-restarts)

After SIGTERM the disk thaws; what has not ended 2 s later gets two more, as the reader does not read, and --end seconds later
nothing may be left: processes, temporary folders, sockets, listening ports. --keep has what the workers and ddprun wrote.
"""
import argparse
import fcntl
import os
import pathlib
import random
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from several_nodes import make_host

ROOT = pathlib.Path(__file__).resolve().parent.parent
HOSTS, WORKERS, PORT = 3, 2, 29400
MARK = f"SOAK_OF={os.getpid()}"  # in the environment of every process of ours
WORKER = r"""
// Writes "WORD NANOSECONDS" to a file of its own: "start", each signal, and "end" before it fails.
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
static int file;
static void note(const char *word) {
  struct timespec now;
  char line[64];
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (write(file, line, snprintf(line, sizeof line, "%s %lld\n", word, now.tv_sec * 1000000000LL + now.tv_nsec)) < 0) _exit(9);
}
static void handle(int number) {
  note(number == SIGUSR1 ? "USR1" : number == SIGTERM ? "TERM" : "end");
  if (number == SIGTERM) _exit(0);
  if (number == SIGALRM) _exit(3);
}
int main(int argc, char **argv) {  // FOLDER FAILS_BEFORE
  char path[4096], text[1024];
  snprintf(path, sizeof path, "%s/%s-%d", argv[1], getenv("SOAK_HOST"), getpid());
  file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
  for (int i = 0; i < 3; ++i) sigaction((int[]){SIGUSR1, SIGTERM, SIGALRM}[i], &action, 0);
  note("start");
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  srand(getpid() * 31 + now.tv_nsec);
  if (atoi(argv[2]) && rand() / 8 % 6 == 0) alarm(1 + rand() / 8 % atoi(argv[2]));
  memset(text, 'x', sizeof text);
  text[sizeof text - 1] = '\n';
  for (int i = 0; argc > 3; i ^= 1) {
    if (write(1 + i, text, sizeof text) < 0) return 9;
    usleep(20000);
  }
  for (;;) pause();
}
"""


def processes():
    """Ours, by pid, with their names."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int(entry.name) != os.getpid() and MARK.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "comm").read_text().strip()
        except OSError:
            pass
    return found


def wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


class Disk:
    """A file system that freezes."""

    def __init__(self, folder):
        self.folder, self.image, self.frozen = folder / "disk", folder / "disk.img", False
        self.folder.mkdir()
        with open(self.image, "wb") as file:
            file.truncate(64 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", self.image], check=True)
        subprocess.run(["mount", "-o", "loop", self.image, self.folder], check=True)

    def freeze(self, frozen):
        if frozen != self.frozen:
            subprocess.run(["fsfreeze", "--freeze" if frozen else "--unfreeze", self.folder], check=True)
            self.frozen = frozen

    def close(self):
        self.freeze(False)
        subprocess.run(["umount", "--lazy", self.folder], check=True)


def strangers(address, port, seed):
    """Connects to the endpoint until SIGTERM, then prints how often."""
    chance, held, count = random.Random(seed), [], 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(print(count)))
    beat = b'{"type":"beat"}'
    while True:
        for _ in range(200 if chance.random() < 0.01 else 1):
            count += 1
            stranger = socket.socket()
            stranger.settimeout(0.05)
            held.append(stranger)
            try:
                stranger.connect((address, port))
                kind = chance.randrange(5)
                if kind == 0:
                    stranger.sendall(chance.randbytes(chance.randrange(1, 200)))
                elif kind == 1:
                    stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                elif kind > 1:  # it speaks the protocol, up to a point
                    greeting = stranger.recv(32)
                    frame = struct.pack(">I", len(beat)) + beat
                    stranger.sendall(greeting + {2: frame, 3: frame[:chance.randrange(len(frame))], 4: struct.pack(">I", 50) + b"x" * 50}[kind])
            except OSError:
                pass  # it was sent away, or there is no coordinator
        while len(held) > 100:
            held.pop(0).close()
        time.sleep(chance.expovariate(20))


class Job:
    """ddprun on each host. `sent` has what was signalled when: (word, host, ns, ns that the machine took)."""

    def __init__(self, soak, number):
        self.soak, self.sent, self.reading = soak, [], True
        self.folder = soak.folder / f"job{number}"
        self.notes, self.temp = self.folder / "notes", self.folder / "temp"
        self.notes.mkdir(parents=True)
        logs = soak.disk.folder if soak.disk else self.folder
        self.nodes, self.pipes = [], []
        for host, space in enumerate(soak.hosts):
            temp = self.temp / str(host)
            temp.mkdir(parents=True)
            temp.chmod(0o700)  # else there is no socket
            environment = {**os.environ, "SOAK_HOST": str(host), "TMPDIR": str(temp), "DDPRUN_CONTROL_DIR": str(temp)}
            command = ["nsenter", f"--net=/proc/{space.pid}/ns/net", soak.arguments.ddprun, f"--nnodes={HOSTS}", f"--rdzv-endpoint=10.97.0.1:{PORT}",
                       f"--nproc-per-node={WORKERS}", "--rdzv-id=soak", "--max-restarts=1000000", "--tee=3", f"--log-dir={logs}/logs{host}",
                       f"--events-json={logs}/events-{number}-{host}.json", soak.worker, self.notes, 8 if "failures" in soak.faults else 0, "write"]
            if soak.disk and host == HOSTS - 1:
                write = os.open(logs / f"console-{number}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            else:
                read, write = os.pipe2(os.O_CLOEXEC)
                fcntl.fcntl(read, fcntl.F_SETPIPE_SZ, 4096)
                os.set_blocking(read, False)
                self.pipes.append(open(read, "rb", buffering=0))
            self.nodes.append(subprocess.Popen(list(map(str, command)), env=environment, stdin=subprocess.DEVNULL, stdout=write, stderr=write))
            os.close(write)
        self.output = [open(self.folder / f"out{host}", "wb") for host in range(len(self.pipes))]

    def read(self):
        for pipe, output in zip(self.pipes, self.output):
            while chunk := pipe.read(1 << 16):
                output.write(chunk)

    def wait_until(self, condition, seconds):
        return wait_until(lambda: (self.reading and self.read()) or condition(), seconds)

    def lives(self):
        """Of each worker so far: host, {word: [ns]}."""
        found = []
        for file in self.notes.iterdir():
            words = {}
            for line in file.read_text().splitlines():
                words.setdefault(line.split()[0], []).append(int(line.split()[1]))
            found.append((int(file.name.split("-")[0]), words))
        return found

    def running(self):
        """How many workers are there, on each host."""
        counts = [0] * HOSTS
        for host, words in self.lives():
            counts[host] += words.keys() == {"start"} or words.keys() == {"start", "USR1"}
        return counts

    def send(self, word, host):
        """Signals a node, and the worker beside it."""
        number = {"USR1": signal.SIGUSR1, "TERM": signal.SIGTERM}[word]
        before = self.soak.bare_notes.stat().st_size
        at = time.monotonic_ns()
        self.nodes[host].send_signal(number)
        self.soak.bare.send_signal(signal.SIGUSR1)
        wait_until(lambda: self.soak.bare_notes.stat().st_size > before, 5)
        took = int(self.soak.bare_notes.read_text().split()[-1]) - at
        self.sent.append((word, host, at, took))

    def latencies(self):
        """What each signal took to each worker that could get it: [(row, seconds, seconds of the bare one)]; inf: never."""
        found = []
        limit = int(self.soak.arguments.limit * 1e9)
        for word, host, at, took in self.sent:
            for other, words in self.lives():
                if word == "USR1" and other != host:
                    continue
                got = min([when for when in words.get(word, []) if when >= at], default=float("inf"))
                ended = min([*words.get("end", []), *words.get("TERM", [])], default=float("inf"))
                if words.get("start", [at])[0] < at < ended and (got < float("inf") or ended > at + limit + took):
                    row = {"USR1": "SIGUSR1", "TERM": "SIGTERM"}[word] + ("" if other == host else ", other nodes' workers")
                    found.append((row, (got - at) / 1e9, took / 1e9))
        return found

    def left(self):
        """What a job that has ended has left."""
        names = [f"process {pid} ({name})" for pid, name in processes().items() if pid not in self.soak.own]
        names += [str(path.relative_to(self.temp)) for path in self.temp.glob("*/*")]
        for host, space in enumerate(self.soak.hosts):
            ports = subprocess.run(["nsenter", f"--net=/proc/{space.pid}/ns/net", "ss", "-Hltn"], capture_output=True, text=True).stdout
            names += [f"h{host}: a listening port: {line}" for line in ports.splitlines()]
        return names

    def end(self, host):
        """SIGTERM to one node; returns seconds until all had ended, whether more signals were needed, and breaches."""
        breaches = [f"node {host} ended by itself, with {node.returncode}" for host, node in enumerate(self.nodes) if node.poll() is not None]
        self.send("TERM", host)
        at = time.monotonic()
        ended = lambda: all(node.poll() is not None for node in self.nodes)
        self.wait_until(ended, 0.3 + self.soak.arguments.limit)  # what is frozen stays so while the workers are signalled
        self.soak.freeze(False)
        second = not self.wait_until(ended, 2)
        if second:
            again = time.monotonic()
            for _ in range(2):  # the other nodes have had none yet
                for node in self.nodes:
                    node.send_signal(signal.SIGTERM)
                self.wait_until(ended, 0.1)
            if not self.wait_until(ended, self.soak.arguments.end):
                waits_in = lambda pid: pathlib.Path(f"/proc/{pid}/wchan").read_text()
                late = {host: waits_in(node.pid) for host, node in enumerate(self.nodes) if node.poll() is None}
                breaches.append(f"nodes {late} had not ended {time.monotonic() - again:.1f} s after more SIGTERMs")
        took = time.monotonic() - at
        for node in self.nodes:
            if node.poll() is None:
                node.kill()
        self.read()
        for file in self.pipes + self.output:
            file.close()
        for node in self.nodes:
            node.wait()
        if not wait_until(lambda: not self.left(), self.soak.arguments.end):
            breaches.append("left behind: " + ", ".join(self.left()))
        return took, second, breaches


class Soak:
    def __init__(self, arguments, folder):
        self.arguments, self.folder, self.chance = arguments, folder, random.Random(arguments.seed)
        self.faults, self.hosts, self.disk, self.stranger = set(arguments.faults.split(",")), [], None, None
        self.counts = dict.fromkeys(["jobs", "starts of workers", "times the disk froze", "times the reader stopped", "more SIGTERMs needed"], 0)
        self.latencies, self.ends, self.breaches = {}, [], []
        self.worker = folder / "worker"
        subprocess.run(["cc", "-O1", "-x", "c", "-", "-o", self.worker], input=WORKER, text=True, check=True)
        for command in ("link add br0 type bridge", "link set br0 up"):
            subprocess.run(["ip", *command.split()], check=True)
        self.hosts = [make_host(number) for number in range(HOSTS)]
        if "disk" in self.faults:
            self.disk = Disk(folder)
        (folder / "bare").mkdir()
        self.bare = subprocess.Popen([self.worker, folder / "bare", "0"], env={**os.environ, "SOAK_HOST": "-"})
        self.bare_notes = folder / "bare" / f"--{self.bare.pid}"
        assert wait_until(self.bare_notes.exists, 10)
        if "strangers" in self.faults:
            command = ["nsenter", f"--net=/proc/{self.hosts[-1].pid}/ns/net", sys.executable, __file__, "--strangers"]
            self.stranger = subprocess.Popen([*command, str(arguments.seed)], stdout=subprocess.PIPE, text=True)
        self.own = {process.pid for process in [*self.hosts, self.bare, self.stranger] if process}

    def freeze(self, frozen):
        if self.disk and frozen != self.disk.frozen:
            self.disk.freeze(frozen)
            self.counts["times the disk froze"] += frozen

    def run_job(self, number):
        chance, job = self.chance, Job(self, number)
        self.counts["jobs"] += 1
        due = lambda mean: time.monotonic() + chance.expovariate(1 / mean)
        if not job.wait_until(lambda: job.running() == [WORKERS] * HOSTS, 60):
            self.breaches.append(f"job {number}: the workers did not start: {job.running()}")
        stop = time.monotonic() + chance.uniform(8, 20)
        times = {"signal": due(1), "disk": due(3), "reader": due(1)}
        while time.monotonic() < stop and all(node.poll() is None for node in job.nodes):
            now = time.monotonic()
            if now > times["signal"]:
                job.send("USR1", chance.randrange(HOSTS))
                times["signal"] = due(1) + self.arguments.limit
            if now > times["disk"] and self.disk:
                self.freeze(not self.disk.frozen)
                times["disk"] = due(3)
            if now > times["reader"] and "reader" in self.faults:
                job.reading = not job.reading
                self.counts["times the reader stopped"] += not job.reading
                times["reader"] = due(1 if job.reading else 4)
            if job.reading:
                job.read()
            time.sleep(0.01)
        took, again, breaches = job.end(chance.randrange(HOSTS))
        self.ends.append(took)
        self.counts["more SIGTERMs needed"] += again
        self.counts["starts of workers"] += len(job.lives())
        for row, seconds, bare in job.latencies():
            self.latencies.setdefault(row, []).append(seconds)
            if seconds > self.arguments.limit + bare:
                breaches.append(f"{row}: {seconds:.3f} s (without ddprun {bare:.3f} s)")
        for _, _, _, bare in job.sent:
            self.latencies.setdefault("without ddprun", []).append(bare / 1e9)
        for breach in breaches:
            print(f"job {number}: {breach}", file=sys.stderr, flush=True)
        self.breaches += breaches
        if self.arguments.keep:
            shutil.copytree(job.folder, self.arguments.keep / f"job{number}", dirs_exist_ok=True, ignore=shutil.ignore_patterns("temp", "logs*"))
        shutil.rmtree(job.folder)
        if self.disk:
            for entry in self.disk.folder.iterdir():
                if entry.name != "lost+found":
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def close(self):
        self.freeze(False)
        if self.stranger:
            self.stranger.terminate()
            self.counts["connections of strangers"] = int(self.stranger.communicate()[0] or 0)
        for pid in processes():  # all are children of ours, or of theirs
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if self.disk:
            self.disk.close()

    def report(self):
        print("| | signals to workers | median, ms | 99 %, ms | longest, ms | over the limit |\n|---|---|---|---|---|---|")
        for row, seconds in sorted(self.latencies.items()):
            ordered = [1000 * each for each in sorted(seconds)]
            cells = [row, len(ordered), *(f"{each:.1f}" for each in (statistics.median(ordered), ordered[int(0.99 * (len(ordered) - 1))], ordered[-1]))]
            over = sum(breach.split(": ")[0] == row for breach in self.breaches)
            print("| " + " | ".join(map(str, [*cells, over])) + " |")
        ends = statistics.median(self.ends), max(self.ends)
        print("\n| | |\n|---|---|")
        for name, count in {**self.counts, "SIGTERM to the last node's end, s: median, longest": "%.2f, %.2f" % ends,
                            "breaches": len(self.breaches)}.items():
            print(f"| {name} | {count} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ddprun", default=str(ROOT / "build/bin/ddprun"))
    parser.add_argument("--faults", default="reader,disk,strangers,failures")
    parser.add_argument("--limit", type=float, default=0.1, help="seconds in which a worker has to have got a signal")
    parser.add_argument("--end", type=float, default=3, help="seconds from the second SIGTERM to the end, and to the end of all that is left")
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--strangers", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.strangers is not None:
        return strangers("10.97.0.1", PORT, arguments.strangers)
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("cc"):
        print("skipped: needs root, ip and cc")
        return 4
    if "SOAK_OF" not in os.environ:
        name, value = MARK.split("=")
        os.execvpe("unshare", ["unshare", "--net", "--mount", sys.executable, *sys.argv], {**os.environ, name: value})
    if "disk" in arguments.faults and not (shutil.which("fsfreeze") and os.path.exists("/dev/loop-control")):
        print("skipped: no loop device, or no fsfreeze")
        return 4
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="ddprun-soak-") as folder:
        soak = Soak(arguments, pathlib.Path(folder))
        try:
            begin = time.monotonic()
            while time.monotonic() - begin < 60 * arguments.minutes:
                soak.run_job(soak.counts["jobs"])
        finally:
            soak.close()
        soak.report()
    return 1 if soak.breaches else 0


if __name__ == "__main__":
    sys.exit(main())
