"""ddprun's trainer and its C++ library, built for PyTorch's own LibTorch: the program `worker`, and a CMake package.

    ddprun --nproc-per-node=2 worker mnist
    cmake -B build -DCMAKE_PREFIX_PATH=$(ddprun-worker --prefix)
"""
import importlib.metadata
import os
import pathlib
import sys

prefix = pathlib.Path(__file__).resolve().parent  #: of the CMake package


def _check_torch():
    """The library is loaded from the folder beside this one (the programs' RPATH)."""
    built_for = (prefix / "torch_version").read_text().strip()
    try:
        found = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        sys.exit(f"ddprun-worker: built for torch {built_for}, found none: pip install 'torch=={built_for}.*'")
    if found.split(".")[:2] != built_for.split("."):
        sys.exit(f"ddprun-worker: built for torch {built_for}, found {found}: pip install 'torch=={built_for}.*'")
    if not (prefix.parent / "torch" / "lib" / "libtorch_cpu.so").exists():
        sys.exit(f"ddprun-worker: expected torch in {prefix.parent}: install both into one environment")


def worker() -> None:
    """The program `worker`."""
    _check_torch()
    program = prefix / "bin" / "worker"
    os.execv(program, ["worker", *sys.argv[1:]])


def main() -> None:
    """ddprun-worker --prefix: where CMake finds the library."""
    if sys.argv[1:] != ["--prefix"]:
        sys.exit("usage: ddprun-worker --prefix      prints the prefix of ddprun's CMake package, for CMAKE_PREFIX_PATH")
    print(prefix)
