"""How check.py runs the bundle's programs, within the time that a part has, and makes data for them."""
import concurrent.futures
import contextlib
import csv
import gzip
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time

LIMIT = 300  # seconds of one command
TASKS = {"toy": ["1", "1"], "linear": ["--epochs=30"], "mnist": ["--limit-train=2048"],
         "cifar10": ["--batch-size=64", "--stem=cifar", "--lr=0.01", "--val-split=0.1", "--limit-val=256"],
         "sam": ["--no-augment", "--ema=0", "--warmup-steps=0"]}


class OutOfTime(Exception):
    """The part's time is up."""


class Check:
    def __init__(self, arguments, folder):
        self.bundle, self.torch, self.folder = arguments.bundle.resolve(), arguments.torch.resolve(), folder
        self.failed, self.left, self.figures = [], [], {}
        self.cifar10, self.end = arguments.cifar10, time.monotonic() + 60 * arguments.minutes
        self.deadline, self.device = self.end, "cpu"
        site = self.torch.parent
        libraries = [self.torch / "lib", *sorted(site.glob("nvidia/*/lib")), self.bundle / "lib"]
        self.environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, libraries))}
        own = site.parents[2] / "bin/python3"
        self.python = own if own.exists() else sys.executable

    def seconds_left(self):
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise OutOfTime
        return left

    def run(self, words, environment=None, limit=LIMIT):
        """environment: variables beside the bundle's; None for a plain one"""
        left = self.seconds_left()
        variables = dict(os.environ) if environment is None else {**self.environment, **environment}
        with subprocess.Popen(list(map(str, words)), env=variables, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, errors="replace", start_new_session=True) as job:
            try:
                out, errors = job.communicate(timeout=min(limit, left))
            except subprocess.TimeoutExpired:
                os.killpg(job.pid, signal.SIGKILL)
                job.communicate()
                if left <= limit:
                    raise OutOfTime from None
                return subprocess.CompletedProcess(words, 124, "", f"no end within {limit} s")
        return subprocess.CompletedProcess(words, job.returncode, out, errors)

    def say(self, what, problem, detail=""):
        print(f"{'FAILED' if problem else 'ok':7} {what}{': ' + problem if problem else ''}{' ' + detail if detail else ''}", flush=True)
        if problem:
            self.failed.append(what)

    def leave(self, what, why):
        print(f"not run {what}: {why}", flush=True)
        self.left.append(f"{what}: {why}")

    def each(self, checks, at_once=1):
        """checks: (name, function that returns the problem, or the problem and a detail)"""
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            for what, future in [(what, pool.submit(function)) for what, function in checks]:
                try:
                    found = future.result()
                    self.say(what, *([found] if isinstance(found, str) else found))
                except OutOfTime:
                    self.leave(what, "no time left")
                except Exception as error:  # the other checks still tell something
                    self.say(what, f"{type(error).__name__}: {error}")

    def several(self):
        """How many short trainings share the machine."""
        return max(1, min(4, (os.cpu_count() or 1) // 4))

    def worker(self, task, out, flags, environment=None):
        data = self.folder / task
        return self.run([self.bundle / "bin/worker", task, *TASKS[task], f"--out={self.folder / out}", "--overwrite", "--no-tensorboard",
                         "--log-interval=1", *([f"--data={data}"] if data.exists() else []), *flags], environment or {})

    def column(self, out, *names):
        """Of the rows with all of these names; several names: tuples."""
        with open(self.folder / out / "metrics.csv") as file:
            rows = [tuple(float(row[name]) for name in names) for row in csv.DictReader(file) if all(map(row.get, names))]
        return rows if len(names) > 1 else [value for value, in rows]


def ended(done, code=0, lines=()):
    """Why an end is not as expected: the exit code, and each of the lines once on stderr. Empty if it is."""
    missing = [line for line in lines if sum(line in one for one in done.stderr.splitlines()) != 1]
    if done.returncode == code and not missing:
        return ""
    return f"exit {done.returncode}, expected {code}" + (f" and one line with {missing}" if missing else "") + f": {done.stderr[-400:]}"


def make_data(check):
    """Pictures whose class can be seen: a bright bar at a place of its own, in noise. Nuclei: the sample, many times."""
    dice, quarter = random.Random(1), bytes(i // 4 for i in range(256))

    def picture(label, side, channels):
        pixels = bytearray(dice.randbytes(side * side * channels).translate(quarter))
        for channel in range(channels):
            row = (label * side // 10) * side + channel * side * side
            pixels[row:row + 2 * side] = bytes([230]) * (2 * side)
        return bytes(pixels)

    for folder in ("mnist", "cifar10", "sam/images", "sam/masks"):
        (check.folder / folder).mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 60000), ("t10k", 256)):
        labels = bytes(dice.randrange(10) for _ in range(count))
        with gzip.open(check.folder / f"mnist/{name}-labels-idx1-ubyte.gz", "wb") as file:
            file.write(struct.pack(">II", 0x801, count) + labels)
        with gzip.open(check.folder / f"mnist/{name}-images-idx3-ubyte.gz", "wb", 1) as file:
            file.write(struct.pack(">IIII", 0x803, count, 28, 28) + b"".join(picture(label, 28, 1) for label in labels))
    for name, count in [*((f"data_batch_{i}", 4096) for i in range(1, 6)), ("test_batch", 256)]:
        labels = [dice.randrange(10) for _ in range(count)]
        (check.folder / f"cifar10/{name}.bin").write_bytes(b"".join(bytes([label]) + picture(label, 32, 3) for label in labels))
    for file in (check.bundle / "share/ddprun/nuclei-sample").glob("*/*.png"):
        for i in range(16):
            shutil.copy(file, check.folder / "sam" / file.parent.name / f"{i}_{file.name}")


def children(pid):
    found = []
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(status.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(status.parent.name))
    return sorted(found)


@contextlib.contextmanager
def stopped_after(job, seconds):
    """Kills the group of a job that has its own session, at the latest when the scope ends."""
    def stop():
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    timer = threading.Timer(seconds, stop)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        stop()
        job.wait()
