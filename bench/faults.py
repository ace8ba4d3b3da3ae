"""The faults of chaos.py, which lists them: each is called with the job, the process of a rank, and the job's folder."""
import contextlib
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import threading

import recovery
from several_nodes import cable


def later(seconds, undo, *arguments):
    def run():
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            undo(*arguments)
    threading.Timer(seconds, run).start()


def send(number, everybody=False):
    def strike(job, pid, folder):
        for each in job.ranks().values() if everybody else [pid]:
            os.kill(each, number)
    return strike


def stop(job, pid, folder):
    os.kill(pid, signal.SIGSTOP)
    later(1, os.kill, pid, signal.SIGCONT)


def memory_group():
    """Where a memory cgroup may be made, and the name of its limit; None if nowhere."""
    own = re.search(r"^\d+:memory:(.*)$", pathlib.Path("/proc/self/cgroup").read_text(), re.M)
    for parent, limit in [(f"/sys/fs/cgroup/memory{own[1]}" if own else "", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]:
        group = pathlib.Path(parent) / f"chaos-{os.getpid()}"
        with contextlib.suppress(OSError):
            group.mkdir()
            usable = (group / limit).exists()
            group.rmdir()
            if usable:
                return parent, limit
    return None


def out_of_memory(job, pid, folder):
    parent, limit = memory_group()
    group = pathlib.Path(parent) / f"chaos-{pid}"
    group.mkdir()
    (group / limit).write_text("1048576")
    (group / "cgroup.procs").write_text(str(pid))
    later(20, group.rmdir)


def bad_alloc(job, pid, folder):
    resource.prlimit(pid, resource.RLIMIT_AS, (0, resource.prlimit(pid, resource.RLIMIT_AS)[1]))


def fill_disk(job, pid, folder):
    ballast = folder / "run/ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 16)):
            pass
    later(2, ballast.unlink)


def jump(job, pid, folder):
    # Never ahead of the real time: libfaketime also shifts the absolute monotonic times that a process's timers get, and would make them negative.
    now = (folder / "clock").read_text()
    (folder / "clock.new").write_text("-3600" if now == "+0" else "+0")
    (folder / "clock.new").rename(folder / "clock")


def at_launcher(number):
    def strike(job, pid, folder):
        os.kill(int(re.search(r"PPid:\s*(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1]), number)
    return strike


def drain(job, pid, folder):
    if recovery.variable(pid, "HOST_NUMBER") == "0":  # which has the coordinator: that would end a job of fixed size
        pid = next(each for each in job.ranks().values() if each != pid)
    at_launcher(signal.SIGTERM)(job, pid, folder)


def has_spare(job):
    said = lambda words: sum(words in line for _, line in job.lines)
    return said("standing by") > said("it has left the job")


def at_cable(begin, end):
    def strike(job, pid, folder):
        port = "port" + recovery.variable(pid, "HOST_NUMBER")
        cable(job.process.pid, begin % port)
        later(float(os.environ["CHAOS_CUT"]), cable, job.process.pid, end % port)
    return strike


FAULTS = {
    "kill": send(signal.SIGKILL), "segfault": send(signal.SIGSEGV), "abort": send(signal.SIGABRT), "kill-all": send(signal.SIGKILL, True),
    "drain": drain, "stop": stop, "oom": out_of_memory, "bad-alloc": bad_alloc, "disk": fill_disk, "clock": jump, "launcher": at_launcher(signal.SIGKILL),
    "cut": at_cable("ip link set %s nomaster", "ip link set %s master br0"),
    "slow": at_cable("tc qdisc replace dev %s root tbf rate 2mbit burst 32k latency 400ms", "tc qdisc del dev %s root"),
}
ON_NODES = {"launcher", "drain", "cut", "slow"}


def missing(fault, arguments):
    """Why this machine cannot do it, or nothing."""
    if fault in ON_NODES | {"oom", "disk"} and os.geteuid() != 0:
        return "needs root"
    if fault == "oom" and not memory_group():
        return "no memory cgroup may be made"
    if fault == "clock" and not arguments.faketime:
        return "libfaketime is not installed"
    if fault == "slow" and not shutil.which("tc"):
        return "tc is not installed"
    return ""
