"""python -m ddprun: the program that was installed with this package; it runs scripts with this Python."""
import importlib.metadata
import os
import sys


def main():
    files = importlib.metadata.files("ddprun") or []
    programs = [file.locate() for file in files if file.name == "ddprun" and file.parent.name == "bin"]
    if not programs:
        sys.exit("python -m ddprun: the program ddprun is missing from this installation")
    os.environ.setdefault("PYTHON_EXEC", sys.executable)
    os.execv(os.path.realpath(programs[0]), ["ddprun", *sys.argv[1:]])


main()
