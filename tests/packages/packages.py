"""What the tests of the packages share."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
GLIBC = (2, 28)  # the newest that a package may need: what PyTorch's wheels need

TORCH_SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {total.item():.0f}\\n", end="", flush=True)
dist.destroy_process_group()
"""
PLAIN_SCRIPT = """
import os
ranks = int(os.environ["WORLD_SIZE"])
print(f"rank {os.environ['RANK']} of {ranks}: {ranks * (ranks + 1) // 2}\\n", end="", flush=True)
"""


def skip(why):
    """Ends the test as skipped (ctest: SKIP_RETURN_CODE)."""
    print("skipped:", why, flush=True)
    sys.exit(4)


def need(*tools):
    for tool in tools:
        if shutil.which(tool) is None:
            skip(f"{tool} is not installed")


def run(*command, **options):
    """Standard output of a command that must succeed."""
    print("+", *command, flush=True)
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, **options)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}"
    return done.stdout


def empty_folder(path):
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def check_program(ddprun, version):
    """It is small and stripped, and nothing but an old enough glibc is loaded with it, for ddprun without its libm."""
    assert ddprun.stat().st_size < 5_000_000, f"{ddprun.stat().st_size} bytes"
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", ddprun))
    parts = "c|dl|pthread" if ddprun.name == "ddprun" else "c|dl|m|pthread"
    strangers = [name for name in needed if not re.match(rf"lib({parts})\.so|ld-linux", name)]
    assert needed and not strangers, strangers
    versions = re.findall(r"Name: GLIBC_([0-9.]+)", run("readelf", "-V", ddprun))
    newest = max(tuple(map(int, v.split("."))) for v in versions)
    assert newest <= GLIBC, f"needs glibc {newest}"
    assert ".symtab" not in run("readelf", "-SW", ddprun), "not stripped"
    assert run(ddprun, "--version", env={}) == f"{ddprun.name} {version}\n"


BARE_JOB = """
mount --rbind /dev dev && mount -t proc proc proc && exec chroot . /bin/ddprun --nproc-per-node=2 sh -c 'echo rank $RANK of $WORLD_SIZE'
"""


def check_in_bare_root(ddprun, folder):
    """It runs where there is nothing but a shell and a glibc."""
    namespaces = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork"]
    if subprocess.run([*namespaces, "true"], capture_output=True).returncode != 0:
        return print("no bare root: namespaces are not allowed here")
    root = empty_folder(folder / "bare_root")
    for name in ("bin", "dev", "proc", "tmp"):
        (root / name).mkdir()
    shutil.copy(ddprun, root / "bin" / "ddprun")
    shutil.copy("/bin/sh", root / "bin" / "sh")
    for line in run("ldd", ddprun).splitlines() + run("ldd", "/bin/sh").splitlines():
        for library in re.findall(r"(/\S+) \(", line):
            (root / library[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, root / library[1:])
    output = run(*namespaces, "sh", "-c", BARE_JOB, cwd=root, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "OMP_NUM_THREADS": "1"})
    assert sorted(output.splitlines()) == ["rank 0 of 2", "rank 1 of 2"], output


def check_job(ddprun, folder):
    """A job of two ranks, with torch if DDPRUN_TEST_PYTHON has it, in an environment that has only ddprun and the system."""
    python = os.environ.get("DDPRUN_TEST_PYTHON")
    script = folder / "job.py"
    script.write_text(TORCH_SCRIPT if python else PLAIN_SCRIPT)
    output = run("ddprun", "--nproc-per-node=2", python or sys.executable, script, cwd=folder,
                 env={"PATH": f"{ddprun.parent}:/usr/bin:/bin", "HOME": str(folder)})
    assert sorted(output.splitlines()) == ["rank 0 of 2: 3", "rank 1 of 2: 3"], output
    print("a job of two ranks ran,", "with torch" if python else "without torch (DDPRUN_TEST_PYTHON is not set)")
