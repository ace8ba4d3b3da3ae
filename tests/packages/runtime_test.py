"""The runtime library as a user has it: installed, moved elsewhere, found by another project, and run.

usage: runtime_test.py BUILD_FOLDER FOLDER COMPILER
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

from packages import SOURCE, empty_folder, run

EPOCH = re.compile(r"^epoch \d+: loss (\S+), accuracy (\S+)$", re.M)


def install_and_move(build, folder):
    run("cmake", "--install", build, "--prefix", folder / "before")
    (folder / "before").rename(folder / "after")
    return folder / "after"


def build_examples(prefix, folder, compiler):
    ccache = shutil.which("ccache")
    run("cmake", "-S", SOURCE / "examples", "-B", folder, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
        *([f"-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}"] if ccache else []))
    for unit in json.loads((folder / "compile_commands.json").read_text()):
        words = unit["command"].split()
        assert f"-I{SOURCE}" not in words, "this tree is on the user's include path"
        assert not any(word.startswith("-W") for word in words), "our warnings are the user's"
    run("cmake", "--build", folder, "-j2")


ASKING_SOFTLY = """
cmake_minimum_required(VERSION 3.22)
project(asking LANGUAGES CXX)
get_cmake_property(before VARIABLES)
find_package(ddprun QUIET)
get_cmake_property(after VARIABLES)
list(REMOVE_ITEM after ${before} before)
list(FILTER after INCLUDE REGEX "^_")
message(STATUS "found: ${ddprun_FOUND}; ${ddprun_NOT_FOUND_MESSAGE}; module path: ${CMAKE_MODULE_PATH}; left: ${after}.")
"""


def check_soft_failure(prefix, folder):
    """Who can do without the library learns why it is not to be had, and goes on."""
    torch = folder / "old_torch"
    for file, text in (("include/torch/csrc/distributed/c10d/reducer.hpp", ""), ("lib/libtorch_cpu.so", ""), ("lib/libc10.so", ""),
                       ("include/torch/headeronly/version.h", "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 9\n")):
        (torch / file).parent.mkdir(parents=True, exist_ok=True)
        (torch / file).write_text(text)
    (folder / "CMakeLists.txt").write_text(ASKING_SOFTLY)
    output = run("cmake", "-S", folder, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={torch};{prefix}")
    found = re.search(r"found: 0; (.*); module path: (.*); left: (.*)\.$", output, re.M)
    assert found and "expected LibTorch 2.11, 2.12, 2.13, 2.14, 2.15, found 2.9 in " in found[1], output
    assert (found[2], found[3]) == ("", ""), output


def check_readme(prefix, folder, compiler):
    """The lines that README.md shows do as they are, without cmake_minimum_required and project."""
    [lines] = re.findall(r"^```cmake\n(.*?)^```", (SOURCE / "README.md").read_text(), re.M | re.S)
    assert "cmake_minimum_required" not in lines, lines
    (folder / "CMakeLists.txt").write_text(lines)
    shutil.copy(SOURCE / "examples" / "own_worker.cpp", folder)
    run("cmake", "-S", folder, "-B", folder / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON")
    [unit] = json.loads((folder / "build" / "compile_commands.json").read_text())
    assert f"{prefix}/include" in unit["command"] and "-std=gnu++20" in unit["command"], unit


def check_install_without_plug_in(build, folder):
    """A build that made only the two programs can be installed, although the CUDA plug-in is among its targets."""
    script = (build / "worker" / "cmake_install.cmake").read_text()
    if "libddprun_cuda.so" in script:
        (folder / "install.cmake").write_text(script.replace("libddprun_cuda.so", "not-built.so"))
        run("cmake", f"-DCMAKE_INSTALL_PREFIX={folder}", "-P", folder / "install.cmake")


def check_training(output):
    losses, accuracies = zip(*((float(loss), float(accuracy)) for loss, accuracy in EPOCH.findall(output)))
    assert len(losses) == 5 and losses[-1] < losses[0] / 2 and accuracies[-1] > 0.95, output


def check_checkpoint(path):
    """Python's torch.load reads it, where there is one; else it is at least the zip file that torch.load expects."""
    python = os.environ.get("DDPRUN_TEST_PYTHON")
    if python:
        script = f"import torch; c = torch.load({str(path)!r}); print(*c); print(c['epoch'], *map(tuple, map(torch.Tensor.size, c['model'].values())))"
        keys, shapes = run(python, "-c", script).splitlines()
        assert shapes == "4 (64, 2) (64,) (2, 64) (2,)"
        page = (SOURCE / "docs/runtime/own_program.md").read_text().partition("| key | value |")[2].partition("\n\n")[0]
        assert set(keys.split()) == {key for row in page.splitlines()[2:] for key in re.findall(r"`(\w+)`", row.split("|")[1])}, keys
    else:
        assert "archive/data.pkl" in zipfile.ZipFile(path).namelist()


def check_torchrun(worker, folder):
    """The same program under torchrun, where there is one."""
    python = os.environ.get("DDPRUN_TEST_PYTHON")
    if python:
        check_training(run(python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python", worker, cwd=folder))


def check_gpu(ddprun, worker, build, folder):
    """The same program on GPUs: here, three that the CPU plays (tests/support/fake_gpu.cpp), of which two ranks take two."""
    cuda, plugin = build / "tests/fake_cuda/libcuda.so.1", build / "tests/fake_gpu/libfake_gpu.so"
    if not plugin.exists():
        return print("not on a GPU: the target fake_gpu is not built")
    gpus = "".join(f";name=Fake capability=90 uuid={i}" for i in range(3))
    environment = {**os.environ, "LD_PRELOAD": str(cuda), "FAKE_CUDA": "version=13000" + gpus, "DDPRUN_CUDA_PLUGIN": str(plugin)}
    done = subprocess.run([ddprun, "--nproc-per-node=2", worker], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "1 of this host's 3 GPUs" in done.stderr, done.stderr
    check_training(done.stdout)


EXPORT = """
import sys, torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    def forward(self, points):
        return self.layers(points)
torch.manual_seed(0)
torch.jit.script(Net()).save(sys.argv[1])
"""
JUDGE = """
import math, sys, torch
which = torch.arange(2000)
label, angle = which % 2, which * (2 * math.pi / 2000)
points = torch.stack([torch.cos(angle), torch.sin(angle)], 1) * (1 + label).unsqueeze(1)
for path in sys.argv[1:]:
    net = torch.jit.load(path).eval()
    print((net(points).argmax(1) == label).float().mean().item(), int(net.state_dict()["layers.1.num_batches_tracked"]))
"""


def check_fine_tuning(ddprun, program, folder):
    """Python exports a model, two ranks train it, and Python has the better one."""
    python = os.environ.get("DDPRUN_TEST_PYTHON")
    if python:
        (folder / "export.py").write_text(EXPORT)  # a file: TorchScript reads the source
        run(python, folder / "export.py", folder / "net.pt")
        run(ddprun, "--nproc-per-node=2", program, folder / "net.pt", folder / "tuned.pt", cwd=folder)
        before, after = (line.split() for line in run(python, "-c", JUDGE, folder / "net.pt", folder / "tuned.pt").splitlines())
        assert float(before[0]) < 0.8 and float(after[0]) > 0.95, (before, after)
        assert (before[1], after[1]) == ("0", "100"), "five epochs of 2000 examples in batches of 50 on two ranks"


def check_fit(ddprun, program, folder):
    """The trainer with a task of one's own: it learns, and leaves a run folder that a second start finds complete."""
    run(ddprun, "--nproc-per-node=2", program, cwd=folder)
    summary = json.loads((folder / "waves/summary.json").read_text())
    rows = [json.loads(line) for line in (folder / "waves/metrics.jsonl").read_text().splitlines()]
    losses = [row["val_loss"] for row in rows if "val_loss" in row]
    assert len(losses) == 10 and losses[-1] < losses[0] / 4, (losses, summary)
    for file in ("report.html", "metrics.csv", "checkpoints/last.pt"):
        assert (folder / "waves" / file).stat().st_size > 0, file
    run(ddprun, "--nproc-per-node=2", program, cwd=folder)
    again = [json.loads(line) for line in (folder / "waves/metrics.jsonl").read_text().splitlines()]
    assert [row["val_loss"] for row in again if "val_loss" in row] == losses, "it had nothing left to do"


def check_failure(ddprun, worker, folder):
    """What is thrown in an own program is what the launcher's report shows, of the rank that failed first."""
    (folder / "own_worker.pt").mkdir()
    done = subprocess.run([ddprun, "--nproc-per-node=2", worker], cwd=folder, capture_output=True, text=True)
    print(done.stderr)
    assert done.returncode == 1
    report = done.stderr[done.stderr.index("Root Cause"):]
    assert re.search(r"rank +: 0 ", report) and re.search(r"error +: .*own_worker\.pt: is a folder", report), report


def main():
    build, folder, compiler = pathlib.Path(sys.argv[1]), empty_folder(pathlib.Path(sys.argv[2]).resolve()), sys.argv[3]
    os.environ.pop("CMAKE_PREFIX_PATH", None)
    os.environ["OMP_NUM_THREADS"] = "1"
    prefix = install_and_move(build, folder)
    examples, ddprun = folder / "examples", prefix / "bin" / "ddprun"
    build_examples(prefix, examples, compiler)
    check_soft_failure(prefix, empty_folder(folder / "asking"))
    check_readme(prefix, empty_folder(folder / "readme"), compiler)
    check_install_without_plug_in(build, empty_folder(folder / "without_plug_in"))

    two, one, failed = (empty_folder(folder / name) for name in ("two", "one", "failed"))
    check_training(run(ddprun, "--nproc-per-node=2", examples / "own_worker", cwd=two))
    check_checkpoint(two / "own_worker.pt")
    assert run(ddprun, "--nproc-per-node=2", examples / "own_worker", cwd=two) == "", "it goes on from its checkpoint: to the end"
    check_training(run(examples / "own_worker", cwd=one))
    check_checkpoint(one / "own_worker.pt")
    check_torchrun(examples / "own_worker", empty_folder(folder / "torchrun"))
    check_gpu(ddprun, examples / "own_worker", build, empty_folder(folder / "gpu"))
    check_fine_tuning(ddprun, examples / "fine_tune", empty_folder(folder / "fine_tuning"))
    check_failure(ddprun, examples / "own_worker", failed)
    check_fit(ddprun, examples / "fit", empty_folder(folder / "fit"))
    assert run(examples / "spawn") == "the ranks of 4 add up to 6\n"
    shutil.rmtree(folder)


main()
