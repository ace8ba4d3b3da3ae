#!/usr/bin/env python3
"""Measures what gradient compression saves over a slow link, with two ranks: bytes on the wire and time per step.

usage: compression.py [--rate 100mbit] [--turns 7] [--steps 3]

Each rank runs in its own network namespace; a pair of virtual interfaces connects them, slowed down by tc on both sides.
Needs root, `ip` and `tc`, and the program: cmake --build build --target bench. Compressions take turns in one run.
Prints a Markdown table of medians (min-max in brackets); ratios are medians of those in each turn.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run(command):
    subprocess.run(command.split(), check=True)


def make_network(hosts, rate):
    for host in hosts:
        run(f"ip netns add {host}")
    run(f"ip link add eth0 netns {hosts[0]} type veth peer name eth0 netns {hosts[1]}")
    for number, host in enumerate(hosts, 1):
        run(f"ip -n {host} addr add 10.98.0.{number}/24 dev eth0")
        run(f"ip -n {host} link set lo up")
        run(f"ip -n {host} link set eth0 up")
        run(f"tc -n {host} qdisc add dev eth0 root tbf rate {rate} burst 32k latency 50ms")


def train(hosts, arguments):
    ranks = []
    for rank, host in enumerate(hosts):
        environment = os.environ | dict(RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE="2", LOCAL_WORLD_SIZE="1",
                                        MASTER_ADDR="10.98.0.1", MASTER_PORT="29500")
        ranks.append(subprocess.Popen(["ip", "netns", "exec", host, str(ROOT / "build/bench/compression"), "eth0",
                                       str(arguments.turns), str(arguments.steps)],
                                      env=environment, stdout=subprocess.PIPE, text=True))
    output = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit(f"exit statuses {[rank.returncode for rank in ranks]}")
    return [json.loads(line) for line in output[0].splitlines()]


def cell(values, digits):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    hosts = [f"ddprun{os.getpid()}_{i}" for i in range(2)]
    try:
        make_network(hosts, arguments.rate)
        results = {}
        for line in train(hosts, arguments):
            results.setdefault(line["hook"], []).append(line)
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host], stderr=subprocess.DEVNULL)
    print(f"| compression | kB a step and rank, {arguments.rate} | ratio | ms a step | ratio |\n|---|---|---|---|---|")
    for name, turns in results.items():
        plain = results["none"]
        fewer = statistics.median(p["bytes"] / t["bytes"] for p, t in zip(plain, turns))
        faster = statistics.median(p["seconds"] / t["seconds"] for p, t in zip(plain, turns))
        print(f"| {name} | {cell([t['bytes'] / 1e3 for t in turns], 0)} | {fewer:.1f} | "
              f"{cell([t['seconds'] * 1e3 for t in turns], 0)} | {faster:.1f} |")


if __name__ == "__main__":
    main()
