"""python -m ddprun: runs the program that was installed with this package, or else the one on PATH. It runs scripts with this Python."""
import importlib.metadata
import os
import shutil
import sys


def find_program():
    try:
        files = importlib.metadata.files("ddprun") or []
    except importlib.metadata.PackageNotFoundError:  # a copy of the folder
        return shutil.which("ddprun")
    programs = [file.locate() for file in files if file.name == "ddprun" and file.parent.name == "bin"]
    return os.path.realpath(programs[0]) if programs else None


def main():
    program = find_program()
    if program is None:
        sys.exit("python -m ddprun: the program ddprun is missing from this installation")
    os.environ.setdefault("PYTHON_EXEC", sys.executable)
    os.execv(program, ["ddprun", *sys.argv[1:]])


main()
