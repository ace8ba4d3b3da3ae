"""Runs a program under torchrun or ddprun, and collects all that can be seen of it from outside."""
import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

PROGRAMS = pathlib.Path(__file__).resolve().parent / "programs"
LIMIT = 100  # seconds for one job; what takes longer hangs


@dataclasses.dataclass
class Job:
    """A job that has ended, and the folder that holds its files."""
    folder: pathlib.Path
    status: int  # as Python has it: -S after signal S
    out: str
    err: str

    def seen(self, attempt, rank):
        """What show.py wrote, with {folder} for the job's folder."""
        return json.loads((self.folder / f"{attempt}-{rank}.json").read_text().replace(str(self.folder), "{folder}"))

    def files(self):
        """Contents of the log files by path below the run's own folder, whose name is the launcher's affair."""
        runs = [run for run in (self.folder / "logs").iterdir() if not run.is_symlink()]  # beside ddprun's: latest
        assert len(runs) == 1, runs
        return {str(path.relative_to(runs[0])): path.read_bytes() for path in runs[0].rglob("*") if path.is_file()}


def skip(why):
    """Ends the test as skipped (ctest: SKIP_RETURN_CODE)."""
    print("skipped:", why, flush=True)
    sys.exit(4)


def has_torch(python):
    return subprocess.run([python, "-c", "import importlib.util as u; raise SystemExit(u.find_spec('torch') is None)"]).returncode == 0


def find_python():
    """A Python with torch."""
    python = os.environ.get("DDPRUN_TEST_PYTHON")
    if not python:
        skip("DDPRUN_TEST_PYTHON names no Python with PyTorch")
    if not os.access(python, os.X_OK):
        skip(f"{python}, which DDPRUN_TEST_PYTHON names, cannot be executed")
    if not has_torch(python):
        skip(f"{python}, which DDPRUN_TEST_PYTHON names, has no torch")
    return python


def find_newest_torch(python):
    """A folder with the newest torch that we test, for this Python in place of its own."""
    folder = os.environ.get("DDPRUN_TEST_NEWEST_TORCH")
    if not folder:
        skip("DDPRUN_TEST_NEWEST_TORCH names no folder with the newest PyTorch (scripts/setup.sh --python fetches it)")
    tried = subprocess.run([python, "-c", f"import torch; assert torch.__file__.startswith({folder!r})"], env={**os.environ, "PYTHONPATH": folder}, capture_output=True, text=True)
    if tried.returncode != 0:
        skip(f"{python} cannot load the torch in {folder}: {(tried.stderr.splitlines() or ['no reason given'])[-1]}")
    return folder


def torch_version(environment):
    """As (2, 15), of the torch that workers get in this environment."""
    ask = "import importlib.metadata as m; print(m.version('torch'))"
    version = subprocess.run([environment["PYTHON_EXEC"], "-c", ask], env=environment, check=True, capture_output=True, text=True).stdout
    return tuple(map(int, version.split(".")[:2]))


def own_environment(python, torch=None):
    """This process's environment without what would change a launcher's defaults. torch: see find_newest_torch()"""
    matters = re.compile("(PET|DDPRUN|TORCHELASTIC|TORCH_NCCL)_|(LOGLEVEL|OMP_NUM_THREADS|PYTHONUNBUFFERED)$")
    environment = {name: value for name, value in os.environ.items() if not matters.match(name)}
    return {**environment, "PYTHON_EXEC": python, "PYTHONPATH": os.pathsep.join([str(PROGRAMS), *filter(None, [torch])]), "PYTHONDONTWRITEBYTECODE": "1"}


def processes_of(folder):
    """Pids of processes that have the job's folder in their environment: its workers and what they started."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"DROPIN_OUT={folder}\0".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            pass  # it has ended, or is not ours
    return found


def end_processes_of(folder):
    """Those that do not end by themselves at once; a launcher's last helper may outlive it by a moment."""
    deadline = time.monotonic() + 1
    while (left := processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.01)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return left


class Launcher:
    """torchrun, or ddprun in its place."""

    def __init__(self, name, command, folder, environment):
        self.name, self.command, self.folder, self.environment = name, command, folder, environment

    def run(self, what, *words, stdin="", during=None, **variables):
        """The job `what` with these words after the launcher's name, in an empty folder.

        `{folder}` in words and variables is that folder. during: called with the process and its stdout while the job runs.
        """
        folder = self.folder / what / self.name
        (folder / "temp").mkdir(parents=True)
        fill = lambda text: text.replace("{folder}", str(folder))
        environment = {**self.environment, **{name: fill(value) for name, value in variables.items()},
                       "DROPIN_OUT": str(folder), "TMPDIR": str(folder / "temp")}
        with open(folder / "stderr", "w+b") as err, open(folder / "stdin", "w+") as source:
            source.write(stdin)
            source.seek(0)
            process = subprocess.Popen([*self.command, *map(fill, words)], cwd=folder, env=environment, stdin=source,
                                       stdout=subprocess.PIPE, stderr=err)
            try:
                begin = during(process) if during else b""
                out = begin + process.communicate(timeout=LIMIT)[0]
            finally:
                left = end_processes_of(folder)
                process.wait()
        err = (folder / "stderr").read_text(errors="replace")
        job = Job(folder, process.returncode, out.decode(errors="replace"), err)
        if self.name == "ddprun":
            assert not left, f"processes left behind: {left}"
            files = [path.name for path in (folder / "temp").iterdir() if not path.name.startswith("torchinductor_")]
            assert not files, f"files left behind: {files}"
        return job
