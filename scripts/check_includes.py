#!/usr/bin/env python3
"""Checks who includes whom, as docs/architecture.md draws it. Prints each breach; exit status 1 if there is one.

usage: check_includes.py [ROOT]
"""
import pathlib
import re
import sys

# Folder -> folders of ours that it may include, beside itself. The longest matching folder counts.
MAY_INCLUDE = {
    "common": set(),
    "launcher": {"common"},
    "launcher/rendezvous": {"common", "launcher"},
    "worker": {"common", "worker/ddp", "worker/data", "worker/image", "worker/models", "worker/report", "worker/serialize",
               "worker/train", "worker/tasks"},
    "worker/precompiled": set(),
    "worker/ddp": {"common"},
    "worker/data": {"common", "worker/image"},
    "worker/image": {"common"},
    "worker/models": {"common", "worker/ddp"},
    "worker/report": {"common"},
    "worker/serialize": {"common"},
    "worker/train": {"common", "worker/ddp", "worker/data", "worker/image", "worker/report", "worker/serialize"},
    "worker/tasks": {"common", "worker", "worker/models", "worker/data", "worker/image", "worker/train"},
}
MAY_INCLUDE["launcher"] = {"common", "launcher/rendezvous"}

# Headers from elsewhere that a folder or file must not see, and why.
BANNED = [
    ("common", r"(torch|c10|ATen|boost)/", "common is free of torch and Boost"),
    ("launcher", r"(torch|c10|ATen)/", "the launcher links no LibTorch"),
    ("worker/models", r"worker/ddp/(?!sync_batch_norm\.h)", "a model knows of other ranks through SyncBatchNorm only"),
    ("worker", r"boost/(?!crc\.hpp)", "the worker needs no Boost but its CRC"),
    ("worker/image", r"(torch|c10|ATen)/", "pictures are plain buffers"),
    ("worker/report", r"(torch|c10|ATen)/", "reports are of plain values"),
    ("worker", r"(spdlog|fmt)/", "LibTorch has an fmt of its own: log through common/logging.h"),
]
# Headers that only the named files may include.
ONLY = [
    (r"spdlog/", {"common/logging.cpp"}),
    (r"cairo", {"worker/image/drawing.cpp", "worker/image/line_chart.cpp", "worker/image/confusion_matrix.cpp",
                "worker/image/image_grid.cpp"}),
    (r"boost/crc\.hpp", {"worker/report/tensorboard_event.cpp"}),
    (r"hwloc(\.h|/)", {"launcher/cpu_map.cpp"}),
    (r".*c10d/(reducer|logger)\.hpp", {"worker/ddp/distributed_data_parallel.cpp"}),
]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)


def folder_of(path):
    """The longest folder of MAY_INCLUDE that the path lies in."""
    fits = [f for f in MAY_INCLUDE if path.startswith(f + "/")]
    return max(fits, key=len, default=None)


def breaches(path, text):
    home = folder_of(path)
    for quote, header in INCLUDE.findall(text):
        target = folder_of(header)
        if target and target != home and target not in MAY_INCLUDE[home]:
            yield f"{path}: {home} may not include {target} ({header})"
        if header.startswith("tests/"):
            yield f"{path}: includes {header} from the tests"
        for area, pattern, why in BANNED:
            if path.startswith(area + "/") and re.match(pattern, header):
                yield f"{path}: includes {header}, but {why}"
        for pattern, allowed in ONLY:
            if re.match(pattern, header) and path not in allowed:
                yield f"{path}: includes {header}, which only {', '.join(sorted(allowed))} may"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    files = sorted(p for area in ("common", "launcher", "worker") for p in (root / area).rglob("*") if p.suffix in (".h", ".cpp"))
    if not files:
        sys.exit(f"{root}: no source files found")
    found = [b for p in files for b in breaches(str(p.relative_to(root)), p.read_text())]
    for breach in found:
        print(breach)
    print(f"{len(files)} files, {len(found)} breaches")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
