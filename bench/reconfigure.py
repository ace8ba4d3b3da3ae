#!/usr/bin/env python3
"""What torch.distributed._reconfigure would save ddprun.elastic, which leaves a group and makes another. Prints a table in Markdown.

usage: reconfigure.py [--kills 10]      # with a Python that has torch 2.14 or newer

SIGKILL of rank 1 of two in an all-reduce over Gloo; a process that has imported PyTorch stands by for each kill. Milliseconds at rank 0 from the
all-reduce's exception until the next all-reduce is done, without the wait until the other process has a group to offer: median (min-max).
  reconfigure            the group gets another member; its store is this program's, since one of rank 0 would be lost with rank 0
  abort and a new group  the group is aborted, and another is made over a new store of rank 0, as in ddprun.elastic
"""
import argparse
import datetime
import os
import statistics
import subprocess
import sys
import time

WAYS = ["reconfigure", "abort and a new group"]
LIMIT = datetime.timedelta(seconds=60)


def connect(way, store, rank, number):
    """Makes the group of a round work; when it began."""
    if way == WAYS[0]:
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.PrefixStore(way, store), rank=rank, world_size=2, timeout=LIMIT, enable_reconfigure=True)
    keys = [f"{number}/{each}" for each in range(2)]
    store.set(keys[rank], dist._get_reconfigure_handle() if way == WAYS[0] else "here")
    store.wait(keys, LIMIT)
    begin = time.monotonic()
    if way == WAYS[0]:
        dist._reconfigure(number, [store.get(key).decode() for key in keys]).wait()
        return begin
    if rank == 0:
        own = dist.TCPStore("127.0.0.1", 0, 2, True, LIMIT, wait_for_workers=False)
        store.set(f"{number}/port", str(own.port))
    else:
        own = dist.TCPStore("127.0.0.1", int(store.get(f"{number}/port")), 2, False, LIMIT)
    dist.init_process_group("gloo", store=own, rank=rank, world_size=2, timeout=LIMIT)
    return begin


def lead(way, store, kills):
    """Rank 0."""
    took, left = [], 0.0
    for number in range(kills + 1):
        begin = connect(way, store, 0, number)
        dist.all_reduce(torch.ones(1000))
        took.append(1000 * (time.monotonic() - begin + left))
        store.set(f"{number}/works", "")
        try:
            dist.all_reduce(torch.ones(1000))
            sys.exit("an all-reduce has succeeded without rank 1")
        except RuntimeError:
            begin = time.monotonic()
        if way != WAYS[0]:
            dist.distributed_c10d._abort_process_group()
        left = time.monotonic() - begin
    store.set("took", " ".join(map(str, took[1:])))


def follow(way, store, number):
    """Rank 1 of one round."""
    store.wait([f"{number}/begin"], datetime.timedelta(minutes=10))
    connect(way, store, 1, number)
    dist.all_reduce(torch.ones(1000))
    time.sleep(600)


def measure(way, kills):
    store = dist.TCPStore("127.0.0.1", 0, None, True, LIMIT, wait_for_workers=False)
    start = lambda *words: subprocess.Popen([sys.executable, __file__, "--way", way, "--port", str(store.port), *map(str, words)])
    jobs = [start("--kills", kills, "--member", -1)]
    for number in range(kills + 1):
        jobs.append(start("--member", number))
        time.sleep(0.1)
    try:
        for number in range(kills + 1):
            store.set(f"{number}/begin", "")
            store.wait([f"{number}/works"], LIMIT)
            time.sleep(0.1)  # rank 0 is in its all-reduce
            jobs[1 + number].kill()
        store.wait(["took"], LIMIT)
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    return [float(each) for each in store.get("took").split()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    for name in "way", "port", "member":
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    global torch, dist
    import torch
    import torch.distributed as dist
    if not hasattr(dist, "_reconfigure"):
        sys.exit(f"torch {torch.__version__} has no torch.distributed._reconfigure")
    if arguments.way:
        store = dist.TCPStore("127.0.0.1", int(arguments.port), None, False, LIMIT)
        lead(arguments.way, store, arguments.kills) if arguments.member == "-1" else follow(arguments.way, store, int(arguments.member))
        os._exit(0)
    print("| | ms |\n|---|---|")
    for way in WAYS:
        took = measure(way, arguments.kills)
        print(f"| {way} | {statistics.median(took):.1f} ({min(took):.1f}-{max(took):.1f}) |", flush=True)


if __name__ == "__main__":
    main()
