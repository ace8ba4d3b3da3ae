#!/usr/bin/env python3
"""Checks that rooms include only the rooms they may (docs/architecture.md) and hold at most 35 files. Prints each breach and
exits with 1 if there are any.

usage: check_includes.py [ROOT]
"""
import collections
import pathlib
import re
import sys

# The rooms, in the order in which they may include each other: a file includes only its own room and rooms before it.
# common/ comes first; launcher/ and worker/ never include each other.
ROOMS = {
    "common": ["", "settings"],
    "launcher": ["events", "host", "rendezvous", "cli", "plan", "workers", "status", "output", "remote", "outcome", "job", "", "ctl"],
    "worker": ["ddprun/flight", "ddprun/group", "ddprun/ddp", "ddprun/sharding", "ddprun/image", "ddprun/data",
               "ddprun/serialize", "ddprun/report", "ddprun/train/optim", "ddprun/train/state", "ddprun/train/model",
               "ddprun/train/record", "ddprun/train/loop", "ddprun/run", "ddprun", "config", "models", "tasks", "sam/model", "sam/data",
               "sam", "commands", ""],
}
# Rooms that may include less than the order allows.
SEES_ONLY = {
    "worker/ddprun/image": {"common"},
    "worker/ddprun/data": {"common", "worker/ddprun/image"},
    "worker/ddprun/serialize": {"common"},
    "worker/ddprun/report": {"common"},
    "worker/models": {"common", "worker/ddprun/ddp"},
    "worker/precompiled": set(),
}
MOST_FILES = 35  # .h and .cpp files in a folder

# Headers that an area or room must not include, and why.
BANNED = [
    ("common", r"(torch|c10|ATen|boost)/", "common is free of torch and Boost"),
    ("launcher", r"(torch|c10|ATen)/", "the launcher links no LibTorch"),
    ("worker/models", r"ddprun/ddp/(?!sync_batch_norm\.h)", "a model knows of other ranks through SyncBatchNorm only"),
    ("worker", r"boost/(?!crc\.hpp)", "the worker needs no Boost but its CRC"),
    ("worker/ddprun/image", r"(torch|c10|ATen)/", "pictures are plain buffers"),
    ("worker/ddprun/report", r"(torch|c10|ATen)/", "reports are of plain values"),
    ("worker", r"(spdlog|fmt)/", "LibTorch brings another fmt: log through common/logging.h"),
]
# Headers that only the named files may include.
ONLY = [
    (r"spdlog/", {"common/logging.cpp"}),
    (r"toml\+\+/", {"common/settings/toml.cpp"}),
    (r"(png|jpeglib)\.h", {"worker/ddprun/image/image_files.cpp"}),
    (r"boost/crc\.hpp", {"worker/ddprun/report/tensorboard_sink.cpp"}),
    (r"n?curses", {"launcher/ctl/main.cpp"}),
    (r"hwloc(\.h|/)", {"launcher/host/cpus.cpp"}),
    (r".*c10d/(reducer|logger)\.hpp", {"worker/ddprun/ddp/distributed_data_parallel.cpp"}),
]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)


def order_of_rooms():
    """Each room's folder and its place in the order."""
    names = [f"{area}/{room}".rstrip("/") for area, rooms in ROOMS.items() for room in rooms]
    return {name: place for place, name in enumerate(names)}


ORDER = order_of_rooms()


def room_of(path):
    """The room that a file lies in, or None if its folder is not a room."""
    folder = str(pathlib.PurePosixPath(path).parent)
    return folder if folder in ORDER or folder in SEES_ONLY else None


def target_of(quote, header):
    """The file of this tree that is included, or None."""
    if quote == "<":
        if not header.startswith("ddprun/") or header.count("/") < 2:
            return None
        inner = header[len("ddprun/"):]
        return inner if inner.startswith("common/") else "worker/ddprun/" + inner
    return header if header.split("/")[0] in ROOMS else None


def may_include(home, target):
    if home == target:
        return True
    if home in SEES_ONLY:
        return any(target == seen or target.startswith(seen + "/") for seen in SEES_ONLY[home])
    area, other = home.split("/")[0], target.split("/")[0]
    return other in (area, "common") and ORDER[target] < ORDER[home]


def breaches(path, text):
    home = room_of(path)
    if home is None:
        yield f"{path}: its folder is not a room (see ROOMS in scripts/check_includes.py)"
        return
    for quote, header in INCLUDE.findall(text):
        target = target_of(quote, header)
        if target:
            room = room_of(target)
            if room is None or not may_include(home, room):
                yield f"{path}: {home} may not include {room or target} ({header})"
        if quote == '"' and header.startswith(("common/", "worker/ddprun/")):
            yield f"{path}: includes \"{header}\", expected <ddprun/...> as users do"
        if header.startswith("tests/"):
            yield f"{path}: includes {header} from the tests"
        for area, pattern, why in BANNED:
            if path.startswith(area + "/") and re.match(pattern, header):
                yield f"{path}: includes {header}, but {why}"
        for pattern, allowed in ONLY:
            if re.match(pattern, header) and path not in allowed:
                yield f"{path}: includes {header}, which only {', '.join(sorted(allowed))} may"


def crowds(paths):
    """Names folders with too many files."""
    count = collections.Counter(str(pathlib.PurePosixPath(path).parent) for path in paths)
    return [f"{folder}: {n} files, expected at most {MOST_FILES}" for folder, n in sorted(count.items()) if n > MOST_FILES]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    files = sorted(p for area in ROOMS for p in (root / area).rglob("*") if p.suffix in (".h", ".cpp"))
    if not files:
        sys.exit(f"{root}: no source files found")
    paths = [str(p.relative_to(root)) for p in files]
    found = [b for p, path in zip(files, paths) for b in breaches(path, p.read_text())] + crowds(paths)
    for breach in found:
        print(breach)
    print(f"{len(files)} files, {len(found)} breaches")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
