"""Writes what a worker sees to $DROPIN_OUT/ATTEMPT-RANK.json, and a few lines to both streams.

With --fail-once the first attempt fails: rank 0 exits with 3 when every rank has written its file.
"""
import json
import os
import pathlib
import signal
import sys
import time

rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
folder = pathlib.Path(os.environ["DROPIN_OUT"])


def write_what_we_see():
    seen = {
        "environment": dict(os.environ),
        "arguments": sys.argv[1:],
        "command": sys.orig_argv,
        "module": __spec__ and __spec__.name,
        "search_path": sys.path[0],
        "working_folder": os.getcwd(),
        "stdin": os.read(0, 100).decode() if "--read" in sys.argv else None,
        "leads_session_and_group": os.getsid(0) == os.getpgid(0) == os.getpid(),
        "ignored_signals": sorted(s for s in signal.valid_signals() if signal.getsignal(s) == signal.SIG_IGN),
        "blocked_signals": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    }
    file = folder / f"{attempt}-{rank}.json"
    file.with_suffix(".new").write_text(json.dumps(seen))
    file.with_suffix(".new").rename(file)


def write_lines():
    print(f"first line of {rank}")
    print(f"loss {rank}: \u00e9, \ttab,  two spaces")
    print(f"a warning of {rank}", file=sys.stderr)
    sys.stdout.flush()
    sys.stdout.buffer.write(b"bytes \x00 \xff of " + rank.encode() + b"\n")
    print(f"no end of line of {rank}", end="")


def fail():
    while rank != "0" or len(list(folder.glob("0-*.json"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.01)  # the other ranks, until they are told to end
    sys.exit(3)


write_lines()
write_what_we_see()
if "--fail-once" in sys.argv and attempt == "0":
    fail()
