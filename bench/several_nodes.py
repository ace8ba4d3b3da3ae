#!/usr/bin/env python3
"""Runs a command on each of several hosts: network namespaces on a bridge, 10.97.0.1 and so on. For bench/recovery.py, as root.

usage: unshare --net several_nodes.py HOSTS COMMAND...

Its own network namespace holds the bridge, which ends with it. A command that ends starts again after two seconds, as on a
node that comes back, while others run. Its variable HOST_NUMBER counts from 0.
"""
import os
import select
import signal
import subprocess
import sys
import time


def cable(pid, command):
    """Runs `ip` or `tc` at the bridge of the several_nodes.py with this id; the interface of host N is portN."""
    subprocess.run(["nsenter", f"--net=/proc/{pid}/ns/net", *command.split()], check=True)


def run(command, **options):
    subprocess.run(command.split(), check=True, **options)


def make_host(number):
    """A process that keeps the host's network alive."""
    host = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec sleep infinity"], stdout=subprocess.PIPE)
    host.stdout.readline()
    run(f"ip link add port{number} type veth peer name eth0 netns {host.pid}")
    run(f"ip link set port{number} master br0 up")
    for line in ["addr add 10.97.0.%d/24 dev eth0" % (number + 1), "link set lo up", "link set eth0 up"]:
        run(f"nsenter --net=/proc/{host.pid}/ns/net ip {line}")
    return host


def start(host, number, command):
    return subprocess.Popen(["nsenter", f"--net=/proc/{host.pid}/ns/net", *command], env=dict(os.environ, HOST_NUMBER=str(number)))


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    command, hosts, nodes = sys.argv[2:], [], []
    try:
        run("ip link add br0 type bridge")
        run("ip link set br0 up")
        for number in range(int(sys.argv[1])):
            hosts.append(make_host(number))
        nodes = [start(host, number, command) for number, host in enumerate(hosts)]
        lost = {}  # when a node ended
        while any(node.poll() is None for node in nodes):
            select.select([], [], [], 0.05)  # time.sleep is broken under libfaketime
            for number, node in enumerate(nodes):
                if node.poll() is None:
                    continue
                if time.monotonic() - lost.setdefault(number, time.monotonic()) > 2:
                    del lost[number]
                    nodes[number] = start(hosts[number], number, command)
        return 0 if any(node.returncode == 0 for node in nodes) else 1
    finally:
        for node in nodes:
            node.terminate()
        for node in nodes:
            node.wait()
        for host in hosts:
            host.kill()


if __name__ == "__main__":
    sys.exit(main())
