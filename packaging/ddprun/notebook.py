"""%load_ext ddprun: the cell magic %%ddprun, which runs a cell as a job.

The job is a ddprun with its own session, which ends when the kernel does. It writes to a terminal that this module opens, so lines are prefixed
with their ranks, and progress bars move. With --preload, the next job starts ahead of its cell: the last module that it imports is a file that this
module writes, which waits until the cell is there.
"""
import argparse
import codecs
import contextlib
import fcntl
import os
import pathlib
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import tty
from typing import Any, Dict, Iterator, List, Match, Optional, Tuple

# Becomes the ddprun of this package, which gets SIGTERM when the kernel's thread that has started it ends.
_DDPRUN = """
import sys
sys.path = [place for place in sys.path if place]  # the notebook's folder may have a signal.py
import ctypes, os, runpy, signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
ctypes.CDLL(None).prctl(1, int(signal.SIGTERM))  # PR_SET_PDEATHSIG
if os.getppid() == int(sys.argv.pop(1)):
    os.environ["PYTHONPATH"] = sys.argv.pop(1)
    runpy.run_path(sys.argv.pop(1))
"""
_WAIT = """# The notebook's next cell runs once the kernel gives up its lock.
import fcntl

with open(__file__) as file:
    fcntl.flock(file, fcntl.LOCK_SH)
"""
_NO_CELL = "raise SystemExit('ddprun: the process with the modules was lost as the cell began: run the cell again')\n"

# These flags start a clock, listen or write as soon as ddprun starts, so a job with one of them cannot start ahead of its cell.
_NOT_AHEAD = ("config", "events-json", "hang-timeout", "log-dir", "metrics-port", "result-json", "timeout")

_FOLDER = "ddprun_cell_"
_FLUSH_WITHIN = 0.05  # seconds

_Settings = Tuple[List[str], Dict[str, str], str]  # flags, environment and folder of a job when it starts


class JobFailed(Exception):
    """The job of a cell has failed. Its output ends with ddprun's report."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the job ended with exit code {code}")
        self.code = code

    def _render_traceback_(self) -> List[str]:  # for IPython, because all frames would be this module's
        return [f"JobFailed: {self}"]


class _Screen:
    """Turns what ddprun writes to a terminal into what a notebook can show, which has carriage return but cannot clear a line."""

    def __init__(self) -> None:
        self._rest = ""  # the beginning of an incomplete sequence
        self._drawn = 0  # how many characters the unfinished line, below all others, has

    def shown(self, text: str, at_end: bool) -> str:
        text, self._rest = self._rest + text, ""
        last = text.rfind("\r")
        if last >= 0 and not at_end and "\x1b[?7h" not in text[last:] and "\r\x1b[K\x1b[?7l".startswith(text[last : last + 9]):
            text, self._rest = text[:last], text[last:]
        return re.sub("\r\x1b\\[K(?:\x1b\\[\\?7l([^\r\n]*?)\x1b\\[\\?7h)?", self._redrawn, text)

    def _redrawn(self, match: Match[str]) -> str:
        if match[1] is None and not self._drawn:
            return match[0]  # the program's own sequence
        cleared = "\r" + " " * self._drawn + "\r" if self._drawn else ""
        self._drawn = len(match[1] or "")
        return cleared + (match[1] or "")


class _Job:
    """A ddprun, which can start before there is a cell for it to run. Its folder is locked as long as the kernel or one of the job's processes
    lives."""

    def __init__(self, settings: _Settings, cell: Optional[str] = None) -> None:
        self.settings = settings
        flags, environment, place = settings
        self._folder = tempfile.TemporaryDirectory(prefix=_FOLDER)
        self._alive = os.open(self._folder.name, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._alive, fcntl.LOCK_EX)
        self._program = pathlib.Path(self._folder.name, "cell.py")
        self._program.write_text(cell or _NO_CELL, encoding="utf-8")
        wait = self._program.with_name("wait_for_cell.py")
        wait.write_text(_WAIT)
        self._lock = wait.open()
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        waits = [] if cell else [f"--preload={_preload(settings)},{wait}"]
        self._output, terminal = os.openpty()
        tty.setraw(terminal)  # a newline stays one character
        columns, lines = shutil.get_terminal_size((100, 24))
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))
        # As if the program were in the notebook's folder.
        if os.pathsep in place:
            beside = self._program.with_name("beside")
            beside.symlink_to(place)
            place = str(beside)
        path = os.pathsep.join(filter(None, [place, environment.get("PYTHONPATH")]))
        start = [sys.executable, "-c", _DDPRUN, str(os.getpid()), path, str(pathlib.Path(__file__).with_name("__main__.py"))]
        self._process = subprocess.Popen(
            [*start, *flags, *waits, "--", str(self._program)], stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal,
            start_new_session=True, env={"TERM": "xterm", **environment}, pass_fds=[self._alive])
        os.close(terminal)

    def lives(self) -> bool:
        return self._process.poll() is None

    def run(self, cell: str) -> int:
        """Shows the output as it comes, and returns the exit code. An interrupt ends the job; a second one ends it at once."""
        complete = self._program.with_name("complete.py")
        complete.write_text(cell, encoding="utf-8")
        complete.replace(self._program)
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        screen, decoder = _Screen(), codecs.getincrementaldecoder("utf-8")("replace")
        ended, flush_at = False, None  # each flush is a message to the browser; Jupyter lets 1000 per second through
        poll = select.poll()
        poll.register(self._output, select.POLLIN)
        while not ended:
            try:
                if poll.poll(None if flush_at is None else max(0.0, flush_at - time.monotonic()) * 1000):
                    some = self._read()
                    ended = not some
                    sys.stdout.write(screen.shown(decoder.decode(some), at_end=ended))
                    flush_at = flush_at or time.monotonic() + _FLUSH_WITHIN
                if ended or (flush_at is not None and time.monotonic() >= flush_at):
                    sys.stdout.flush()
                    flush_at = None
            except KeyboardInterrupt:
                ended = not self.lives()
                self._process.send_signal(signal.SIGINT)
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def _read(self) -> bytes:
        try:
            return os.read(self._output, 1 << 16)
        except OSError:  # EIO: every process has closed the terminal
            return b""

    def end(self) -> None:
        """Ends it if it is running."""
        os.close(self._output)  # first, so that ddprun does not wait for somebody to read its last lines
        self._process.terminate()
        self._process.wait()
        self._lock.close()
        self._folder.cleanup()
        os.close(self._alive)


def _remove_left() -> None:
    """Removes the folders of jobs whose kernel was killed, once no process of the job lives."""
    for folder in pathlib.Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        with contextlib.suppress(OSError):  # another user's folder, or a locked one
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.geteuid() and (folder / "cell.py").exists():  # cell.py is written once the folder is locked
                    shutil.rmtree(folder)
            finally:
                os.close(lock)


@contextlib.contextmanager
def _interrupts_later() -> Iterator[None]:
    """Delays interrupts, which could otherwise leave behind a job that nobody knows about."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: List[bool] = []
    before = signal.signal(signal.SIGINT, lambda *_: came.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def _preload(settings: _Settings) -> Optional[str]:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--preload", nargs="?")
    modules: Optional[str] = parser.parse_known_args(settings[0])[0].preload
    return modules or settings[1].get("DDPRUN_PRELOAD")


def _can_start_ahead(settings: _Settings) -> bool:
    flags, environment, _ = settings
    typed = [flag.lstrip("-").partition("=")[0].replace("_", "-") for flag in flags if flag.startswith("-")]
    given = {name.partition("_")[2].lower().replace("_", "-") for name in environment if name.startswith(("DDPRUN_", "PET_"))}
    abbreviated = any(name.startswith(flag) for name in _NOT_AHEAD for flag in typed)
    if "," in tempfile.gettempdir():  # the folder's name becomes part of a list in --preload
        return False
    return _preload(settings) is not None and not abbreviated and not given.intersection(_NOT_AHEAD)


_ahead: Optional[_Job] = None  # the next run of a cell with the same settings


def _end_ahead() -> None:
    global _ahead
    job, _ahead = _ahead, None
    if job:
        job.end()


def _run_cell(line: str, cell: str) -> None:
    """%%ddprun [FLAGS]: runs the cell as a job, with ddprun's flags such as --nproc-per-node=2 --preload=torch (%%ddprun --help)."""
    global _ahead
    flags = shlex.split(line)
    for flag in ("-m", "--module", "--no-python", "--no_python"):
        if flag in flags:
            raise ValueError(f"%%ddprun: the program is the cell, which is Python: leave out {flag}")
    settings = (flags, dict(os.environ), os.getcwd())
    ahead = _can_start_ahead(settings)
    if _ahead and (not _ahead.lives() or (ahead and _ahead.settings != settings)):
        _end_ahead()
    program = f"# coding: utf-8: %%ddprun {line}\n{cell}"  # a traceback counts lines as the notebook does
    job: Optional[_Job] = None
    try:
        with _interrupts_later():
            job, _ahead = (_ahead, None) if _ahead and _ahead.settings == settings else (_Job(settings, program), _ahead)
        code = job.run(program)
    finally:
        if job is not None:
            job.end()
    if ahead and code != 2:  # the flags may be wrong
        with _interrupts_later():
            _ahead = _Job(settings)
    if code != 0:
        raise JobFailed(code)


def load_ipython_extension(ipython: Any) -> None:
    _remove_left()
    ipython.register_magic_function(_run_cell, "cell", "ddprun")


def unload_ipython_extension(ipython: Any) -> None:
    _end_ahead()
    del ipython.magics_manager.magics["cell"]["ddprun"]
