"""--rdzv-backend=etcd with a real etcd: who has the coordinator and goes on with the job, whoever is killed, stopped or cut off from
etcd, and that nothing of a job stays in etcd.

All nodes are this machine; etcd listens at a free port of 127.0.0.1.

usage: etcd_test.py DDPRUN
"""
import contextlib
import http.server
import json
import os
import pathlib
import pty
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from waiting import wait_for

DDPRUN = str(pathlib.Path(sys.argv[1]).resolve())
DDPCTL = str(pathlib.Path(DDPRUN).with_name("ddpctl"))
SKIPPED = 4
NODE_TIMEOUT = 3
# The port tells rounds apart.
WORKER = ["sh", "-c", 'echo "begin $MASTER_PORT $RANK $WORLD_SIZE"; until [ -e go ]; do sleep 0.05; done; echo "end $MASTER_PORT $RANK $WORLD_SIZE"']
# Each rank of a round leaves a file for each step, and waits for those of the others.
STEPS = """
echo "begin $MASTER_PORT $RANK $WORLD_SIZE"
step=0
until [ -e go ]; do
  : > "at.$MASTER_PORT.$step.$RANK"
  rank=0
  while [ $rank -lt $WORLD_SIZE ]; do
    if [ -e "at.$MASTER_PORT.$step.$rank" ]; then rank=$((rank + 1)); elif [ -e go ]; then break; else sleep 0.02; fi
  done
  [ -e go ] || echo "$MASTER_PORT $step $RANK" >> steps
  step=$((step + 1))
  sleep 0.05
done
echo "end $MASTER_PORT $RANK $WORLD_SIZE"
"""


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Etcd:
    """A cluster of one, which can be killed and started again."""

    def __init__(self, folder, tls=None):
        self.folder, self.tls = folder, tls
        self.port, self.peer_port = free_port(), free_port()
        self.process = None
        self.start()

    def start(self):
        scheme = "https" if self.tls else "http"
        client, peer = f"{scheme}://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.peer_port}"
        words = ["etcd", "--data-dir", self.folder / "etcd", "--listen-client-urls", client, "--advertise-client-urls", client,
                 "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
        if self.tls:
            words += ["--cert-file", self.tls / "server.crt", "--key-file", self.tls / "server.key", "--client-cert-auth",
                      "--trusted-ca-file", self.tls / "ca.crt"]
        with open(self.folder / "etcd.log", "ab") as log:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_for(lambda: self.control("endpoint", "health", check=False).returncode == 0)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def control(self, *words, check=True):
        command = ["etcdctl", f"--endpoints={'https' if self.tls else 'http'}://127.0.0.1:{self.port}", *words]
        if self.tls:
            command += [f"--cacert={self.tls}/ca.crt", f"--cert={self.tls}/client.crt", f"--key={self.tls}/client.key"]
        return subprocess.run(command, env={**os.environ, "ETCDCTL_API": "3"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=check, timeout=30)

    def keys(self):
        return self.control("get", "--prefix", "--keys-only", "/").stdout.split()

    def value(self, key):
        text = self.control("get", "--print-value-only", key).stdout
        return json.loads(text) if text.strip() else None


class Cluster(Etcd):
    """Of three members, each of which can be killed and started again."""

    def __init__(self, folder):
        self.folder, self.tls = folder, None
        self.ports, self.peers, self.members = [free_port() for _ in range(3)], [free_port() for _ in range(3)], [None] * 3
        self.port = ",127.0.0.1:".join(map(str, self.ports))  # of an endpoint that names all
        for i in range(3):
            self.start_member(i)
        wait_for(lambda: self.control("endpoint", "health", check=False).returncode == 0)

    def start_member(self, i):
        client, peer = f"http://127.0.0.1:{self.ports[i]}", f"http://127.0.0.1:{self.peers[i]}"
        all_peers = ",".join(f"m{each}=http://127.0.0.1:{port}" for each, port in enumerate(self.peers))
        with open(self.folder / f"etcd{i}.log", "ab") as log:
            self.members[i] = subprocess.Popen(
                ["etcd", "--name", f"m{i}", "--data-dir", self.folder / f"member{i}", "--listen-client-urls", client, "--advertise-client-urls", client,
                 "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", all_peers],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def leader(self):
        """The member that leads the others, as one of those that run says."""
        ids = {}
        for i, port in enumerate(self.ports):
            if self.members[i].poll() is None:
                done = subprocess.run(["etcdctl", f"--endpoints=127.0.0.1:{port}", "endpoint", "status", "--write-out=json"],
                                      env={**os.environ, "ETCDCTL_API": "3"}, stdout=subprocess.PIPE, check=True, timeout=30)
                [status] = json.loads(done.stdout)
                ids[status["Status"]["header"]["member_id"]] = i
                leader = status["Status"].get("leader", 0)
        return ids.get(leader)

    def kill_member(self, i):
        self.members[i].kill()
        self.members[i].wait()

    def kill(self):
        for i in range(3):
            self.kill_member(i)


class Proxy:
    """Passes TCP on to a port, but for the directions that are cut: bytes of those go nowhere."""

    def __init__(self, port):
        self.target = port
        self.cut_requests = self.cut_answers = False
        self.delays = 0  # the next change to a key, by so many seconds
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:  # it is down
                client.close()
                continue
            threading.Thread(target=self.serve, args=(client, server), daemon=True).start()

    def serve(self, client, server):
        with client, server:
            answers = threading.Thread(target=self.pass_on, args=(server, client, lambda: self.cut_answers), daemon=True)
            answers.start()
            self.pass_on(client, server, lambda: self.cut_requests, self.delay)
            answers.join(10)

    def delay(self, data):
        if not self.delays or b"request_put" not in data:
            return 0
        seconds, self.delays = self.delays, 0
        time.sleep(seconds)
        return 1

    @staticmethod
    def pass_on(source, sink, is_cut, delay=lambda _: 0):
        with contextlib.suppress(OSError):
            while True:
                data = source.recv(65536)
                if is_cut():
                    if not data:
                        return
                    continue
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                wait = delay(data)
                sink.sendall(data)
                time.sleep(wait)  # its client may have given it up

    def close(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # wakes accept(), which would keep the port open
        self.listener.close()


class Node:
    """One node's ddprun, whose output goes to files, so that nobody need read it."""

    def __init__(self, folder, name, words, env, program):
        self.files = folder / f"{name}.out", folder / f"{name}.err"
        with open(self.files[0], "wb") as out, open(self.files[1], "wb") as err:
            self.process = subprocess.Popen([DDPRUN, *words, *program], env={**os.environ, "OMP_NUM_THREADS": "1", **env}, cwd=folder,
                                            stdin=subprocess.DEVNULL, stdout=out, stderr=err)

    def out(self):
        return self.files[0].read_text()

    def err(self):
        return self.files[1].read_text()

    def begun(self, size):
        """The ports of the rounds of this size that have begun here."""
        return [line.split()[1] for line in self.out().splitlines() if line.startswith("begin ") and line.split()[3] == str(size)]

    def ends(self):
        return [tuple(line.split()[1:]) for line in self.out().splitlines() if line.startswith("end ")]

    def has_coordinator(self):
        return self.err().count("has the coordinator now")

    def wait(self, seconds=60):
        return self.process.wait(timeout=seconds)


class Jobs(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)
        self.etcd = Etcd(self.folder)
        self.nodes, self.proxies = [], []

    def tearDown(self):
        for node in self.nodes:
            if node.process.poll() is None:
                node.process.send_signal(signal.SIGCONT)
                node.process.kill()
            node.process.wait()
            if any(test is self for test, _ in self._outcome.result.failures + self._outcome.result.errors):
                print(f"-- {self.id()}: {node.files[1].name}\n{node.out()}{node.err()}", file=sys.stderr)
        for proxy in self.proxies:
            proxy.close()
        self.etcd.kill()
        self.temporary.cleanup()

    def start(self, *words, port=None, run_id="job", nnodes="1:2", program=WORKER, **env):
        node = Node(self.folder, f"node{len(self.nodes)}", ["--rdzv-backend=etcd", f"--rdzv-endpoint=127.0.0.1:{port or self.etcd.port}", f"--rdzv-id={run_id}",
                                  f"--nnodes={nnodes}", f"--last-call={3 if nnodes == '1:3' else 60}", f"--node-timeout={NODE_TIMEOUT}", *words], env, program)
        self.nodes.append(node)
        return node

    def proxy(self):
        self.proxies.append(Proxy(self.etcd.port))
        return self.proxies[-1]

    def two_nodes(self, *words, first_port=None, nnodes="1:2"):
        """A job whose first node has the coordinator, with both nodes in a round."""
        first = self.start(*words, port=first_port, nnodes=nnodes)
        wait_for(first.has_coordinator)
        second = self.start("--rdzv-backend=etcd-v2", *words, nnodes=nnodes)  # torchrun's other word for the same
        wait_for(lambda: first.begun(2) and second.begun(2))
        return first, second

    def go(self):
        (self.folder / "go").touch()

    def check_ended(self, *nodes):
        """All of these end well in one and the same round, and leave nothing in etcd."""
        for node in nodes:
            self.assertEqual(node.wait(), 0, node.err())
        ends = [end for node in nodes for end in node.ends()]
        self.assertEqual(len({port for port, _, _ in ends}), 1, ends)
        self.assertEqual(sorted((int(rank), int(size)) for _, rank, size in ends), [(rank, len(nodes)) for rank in range(len(nodes))])
        self.assertEqual(self.etcd.keys(), [])

    # -- nodes that are lost --

    def test_one_of_two_goes_on_without_the_coordinator(self):
        first, second = self.two_nodes()
        self.assertEqual(self.etcd.keys(), ["/ddprun/job/coordinator", "/ddprun/job/round"])
        first.process.kill()
        began = time.monotonic()
        wait_for(lambda: second.begun(1))
        self.assertLess(time.monotonic() - began, NODE_TIMEOUT)  # its port refuses, so nobody waits for the lease
        self.assertEqual(len(self.etcd.value("/ddprun/job/round")["members"]), 1)
        third = self.start()
        wait_for(lambda: len(second.begun(2)) == 2)
        self.go()
        self.check_ended(second, third)

    def test_one_of_four_goes_on(self):
        nodes = [self.start(nnodes="1:4") for _ in range(4)]
        wait_for(lambda: all(node.begun(4) for node in nodes))
        last = next(node for node in nodes if not node.has_coordinator())
        for node in nodes:
            if node is not last:
                node.process.kill()
        wait_for(lambda: last.begun(1))
        self.go()
        self.check_ended(last)

    def test_a_spare_takes_the_place_of_the_coordinators_node(self):
        first = self.start("--spares=1", nnodes="2")
        wait_for(first.has_coordinator)
        others = [self.start("--spares=1", nnodes="2") for _ in range(2)]
        wait_for(lambda: first.begun(2) and any("standing by" in node.err() for node in others))
        first.process.kill()
        wait_for(lambda: all(node.begun(2) and node.begun(2) != first.begun(2) for node in others))
        self.go()
        self.check_ended(*others)

    def test_a_node_that_its_user_ends_hands_the_coordinator_over_at_once(self):
        first, second = self.two_nodes("--node-timeout=60")
        first.process.terminate()
        wait_for(lambda: second.begun(1), seconds=20)
        self.assertEqual(first.wait(), -signal.SIGTERM)
        self.assertIn("the other nodes go on without this one", first.err())
        self.go()
        self.check_ended(second)

    def test_a_stopped_coordinator_is_replaced_and_joins_as_a_node(self):
        first, second = self.two_nodes()
        first.process.send_signal(signal.SIGSTOP)
        wait_for(lambda: second.begun(1))
        time.sleep(1)
        first.process.send_signal(signal.SIGCONT)
        wait_for(lambda: len(first.begun(2)) == 2 and len(second.begun(2)) == 2)
        self.assertEqual(first.begun(1), [])
        self.assertIn("this node no longer has the coordinator: another node has been elected", first.err())
        self.assertEqual(self.etcd.value("/ddprun/job/round")["number"], 2)
        self.go()
        self.check_ended(first, second)

    def test_a_job_whose_ddpruns_were_all_killed_can_be_started_again(self):
        for node in self.two_nodes():
            node.process.kill()
        nodes = self.two_nodes()
        self.go()
        self.check_ended(*nodes)

    def test_keys_expire_after_a_job_whose_ddpruns_were_killed(self):
        for node in self.two_nodes("--join-timeout=8"):
            node.process.kill()
        self.assertEqual(self.etcd.keys(), ["/ddprun/job/coordinator", "/ddprun/job/round"])
        wait_for(lambda: self.etcd.keys() == ["/ddprun/job/round"])
        wait_for(lambda: self.etcd.keys() == [])

    def test_jobs_with_different_run_ids_do_not_meet(self):
        jobs = [[self.start(run_id=run_id) for _ in range(2)] for run_id in ("a", "a/b")]
        for job in jobs:
            wait_for(lambda job=job: all(node.begun(2) for node in job))
        self.assertEqual(jobs[0][0].begun(2), jobs[0][1].begun(2))
        self.assertNotEqual(jobs[0][0].begun(2), jobs[1][0].begun(2))
        self.go()
        for job in jobs:
            self.assertEqual([node.wait() for node in job], [0, 0])
        self.assertEqual(self.etcd.keys(), [])

    def test_a_failed_job_leaves_no_keys(self):
        nodes = [self.start(program=["sh", "-c", "exit 7"], nnodes="2") for _ in range(2)]
        self.assertEqual([node.wait() for node in nodes], [7, 7])
        self.assertEqual(self.etcd.keys(), [])

    # -- a node that is drained --

    def drain(self, node, wanted):
        """The exit code of ddpctl drain, asked on the node, and what it prints."""
        done = subprocess.run([DDPCTL, "drain", str(wanted), str(node.process.pid)], env={**os.environ, "DDPRUN_CONTROL_DIR": self.folder / "ctl"},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30)
        return done.returncode, done.stdout

    def test_a_drained_node_leaves_an_elastic_job_and_is_never_elected(self):
        control = {"DDPRUN_CONTROL_DIR": self.folder / "ctl"}
        nodes = [self.start(nnodes="1:3", **control) for _ in range(3)]
        wait_for(lambda: all(node.begun(3) for node in nodes))
        (first,) = (node for node in nodes if node.has_coordinator())
        record = self.etcd.value("/ddprun/job/round")
        code, said = self.drain(first, record["members"].index(record["id"]))
        self.assertEqual(code, 1)
        self.assertIn("send SIGTERM to its ddprun instead, and another node takes its place", said)
        code, said = self.drain(nodes[2], (record["members"].index(record["id"]) + 1) % 3)
        self.assertEqual(code, 0, said)
        wait_for(lambda: any(node.process.poll() == 0 for node in nodes))
        (drained,) = (node for node in nodes if node.process.poll() == 0)
        self.assertIn("is drained: it has left the job", drained.err())
        (other,) = (node for node in nodes if node not in (first, drained))
        wait_for(lambda: first.begun(2) and other.begun(2))
        self.assertEqual(len(self.etcd.value("/ddprun/job/round")["members"]), 2)
        first.process.kill()
        wait_for(lambda: other.begun(1))
        self.go()
        self.check_ended(other)

    def test_a_spare_takes_a_drained_nodes_place(self):
        control = {"DDPRUN_CONTROL_DIR": self.folder / "ctl"}
        first = self.start("--spares=1", nnodes="2", **control)
        wait_for(first.has_coordinator)
        others = [self.start("--spares=1", nnodes="2", **control) for _ in range(2)]
        wait_for(lambda: first.begun(2) and any("standing by" in node.err() for node in others))
        (spare,) = (node for node in others if "standing by" in node.err())
        (member,) = (node for node in others if node is not spare)
        self.etcd.kill()
        wait_for(lambda: "does not answer" in first.err())
        record_rank = 1 if first.begun(2) and " 0 " in first.out() else 0
        code, said = self.drain(spare, record_rank)
        self.assertEqual(code, 1)
        self.assertIn("etcd does not answer, so no round could follow", said)
        self.etcd.start()
        wait_for(lambda: "answers again" in first.err())
        code, said = self.drain(spare, record_rank)
        self.assertEqual(code, 0, said)
        self.assertEqual(member.wait(), 0)
        wait_for(lambda: len(first.begun(2)) == 2 and spare.begun(2))
        self.go()
        self.check_ended(first, spare)

    # -- etcd that is lost --

    def test_etcd_is_killed_and_starts_again(self):
        first, second = self.two_nodes()
        self.etcd.kill()
        wait_for(lambda: "the job goes on, but until etcd answers, no round begins" in first.err())
        time.sleep(2 * NODE_TIMEOUT)  # longer than the coordinator's lease
        self.etcd.start()
        wait_for(lambda: "answers again" in first.err())
        self.assertEqual(first.err().count("does not answer"), 1, first.err())
        self.assertEqual(len(first.begun(2)), 1)
        first.process.kill()  # now another node can take over again
        wait_for(lambda: second.begun(1))
        self.go()
        self.check_ended(second)

    def test_etcd_is_stopped_and_continues(self):
        """Its connections stay open meanwhile, and it answers late what it was asked."""
        first, second = self.two_nodes()
        self.etcd.process.send_signal(signal.SIGSTOP)
        wait_for(lambda: "the job goes on, but until etcd answers, no round begins" in first.err())
        time.sleep(2 * NODE_TIMEOUT)  # two of the coordinator's leases
        self.etcd.process.send_signal(signal.SIGCONT)
        wait_for(lambda: "answers again" in first.err())
        third = self.start()  # finds the coordinator, wherever it is now, and waits
        time.sleep(NODE_TIMEOUT)
        self.assertEqual([node.begun(2) for node in (first, second)], [first.begun(2)[:1]] * 2)
        first.process.kill()  # now another node can take over again
        wait_for(lambda: len(second.begun(2)) == 2 and third.begun(2))
        self.go()
        self.check_ended(second, third)

    def test_etcd_loses_everything(self):
        first, second = self.two_nodes()
        self.etcd.kill()
        shutil.rmtree(self.folder / "etcd")
        self.etcd.start()
        wait_for(lambda: self.etcd.keys() == ["/ddprun/job/coordinator", "/ddprun/job/round"])
        self.assertEqual(len(first.begun(2)), 1)
        self.go()
        self.check_ended(first, second)

    def test_a_busy_etcd_loses_everything(self):
        """What others write meanwhile is not taken for the end of the job."""
        proxy = self.proxy()
        first, second = self.two_nodes(first_port=proxy.port)
        self.write(60)
        time.sleep(2 * NODE_TIMEOUT)  # the coordinator renews its leases, and sees it
        proxy.cut_requests = True
        self.etcd.kill()
        shutil.rmtree(self.folder / "etcd")
        self.etcd.start()
        self.write(40)
        proxy.cut_requests = False
        wait_for(lambda: "answers again" in first.err())
        self.assertEqual([len(node.begun(2)) for node in (first, second)], [1, 1])
        self.assertNotIn("no longer", first.err())
        self.etcd.control("del", "/others")
        self.go()
        self.check_ended(first, second)

    def test_a_write_that_comes_late_does_not_bring_an_old_round_back(self):
        proxy = self.proxy()
        first, second = self.two_nodes(first_port=proxy.port)
        proxy.delays = 6
        second.process.kill()
        wait_for(lambda: first.begun(1))  # after a second try
        third = self.start()
        wait_for(lambda: len(first.begun(2)) == 2 and third.begun(2))
        number = self.etcd.value("/ddprun/job/round")["number"]
        time.sleep(7)
        self.assertEqual(self.etcd.value("/ddprun/job/round")["number"], number)
        self.go()
        self.check_ended(first, third)

    def write(self, times):
        for i in range(times):
            self.etcd.control("put", "/others", str(i))
        self.etcd.control("del", "/others")

    def test_the_last_round_is_renewed_as_often_as_the_join_timeout_asks(self):
        first, second = self.two_nodes("--join-timeout=2", "--node-timeout=30")
        time.sleep(8)
        self.assertEqual(self.etcd.keys(), ["/ddprun/job/coordinator", "/ddprun/job/round"])
        self.assertEqual([len(node.begun(2)) for node in (first, second)], [1, 1])
        self.assertNotIn("no longer", first.err())
        self.go()
        self.check_ended(first, second)

    def test_a_proxy_that_is_down_alone_is_not_taken_for_etcd(self):
        proxy = self.proxy()
        first, second = self.two_nodes("--join-timeout=8", first_port=proxy.port)
        proxy.close()
        wait_for(lambda: "gives up the coordinator" in first.err(), seconds=8)
        wait_for(second.has_coordinator)

    def test_a_round_waits_for_etcd(self):
        first, second = self.two_nodes()
        self.etcd.kill()
        second.process.kill()  # the coordinator's node goes on alone, but not before etcd knows
        wait_for(lambda: "was lost" in first.err())
        time.sleep(2 * NODE_TIMEOUT)
        self.assertEqual(first.begun(1), [])
        self.etcd.start()
        wait_for(lambda: first.begun(1))
        self.go()
        self.check_ended(first)

    def test_a_job_without_etcd_ends_after_the_join_timeout(self):
        first, second = self.two_nodes("--join-timeout=8")
        self.etcd.kill()
        second.process.kill()
        self.assertEqual(first.wait(), 125)
        self.assertIn(f"cannot reach etcd at http://127.0.0.1:{self.etcd.port} within 8 s (--join-timeout): Connection refused", first.err())

    def test_a_coordinator_that_hears_nothing_of_etcd_goes_on(self):
        proxy = self.proxy()
        first, second = self.two_nodes(first_port=proxy.port)
        proxy.cut_answers = True
        wait_for(lambda: "does not answer" in first.err())
        time.sleep(2 * NODE_TIMEOUT)
        self.assertEqual([len(node.begun(2)) for node in (first, second)], [1, 1])
        self.go()
        self.check_ended(first, second)

    def test_a_coordinator_that_cannot_speak_to_etcd_keeps_its_round_from_a_newcomer(self):
        proxy = self.proxy()
        first, second = self.two_nodes(first_port=proxy.port, nnodes="1:3")
        proxy.cut_requests = True
        wait_for(lambda: self.etcd.keys() == ["/ddprun/job/round"])  # its lease has expired
        third = self.start(nnodes="1:3")
        time.sleep(2 * NODE_TIMEOUT)
        self.assertEqual(third.out() + "".join(first.begun(3)), "")
        self.assertEqual(third.has_coordinator(), 0)
        proxy.cut_requests = False
        wait_for(lambda: all(node.begun(3) for node in (first, second, third)))
        self.assertEqual(first.has_coordinator(), 1)  # it has kept the coordinator
        self.go()
        self.check_ended(first, second, third)

    def test_a_coordinator_without_etcd_begins_no_round_beside_its_successors(self):
        proxy = self.proxy()
        first, second = self.two_nodes(first_port=proxy.port, nnodes="1:3")
        proxy.cut_requests = proxy.cut_answers = True
        wait_for(lambda: "does not answer" in first.err())
        second.process.kill()
        third = self.start(nnodes="1:3")  # nobody else can take part in the lost round
        wait_for(lambda: "gives up the coordinator" in first.err())
        time.sleep(NODE_TIMEOUT)
        self.assertEqual(first.begun(1), [])
        proxy.cut_requests = proxy.cut_answers = False
        wait_for(lambda: first.begun(1) or first.begun(2))
        self.go()
        self.assertEqual([first.wait(), third.wait()], [0, 0])
        self.assertEqual(self.etcd.keys(), [])

    # -- everything at once --

    def test_no_two_rounds_make_steps_at_once(self):
        """Nodes are killed, stopped and cut off from etcd, and etcd is killed. A step ends once all ranks of its round have come to it:
        after a round's first one, no earlier round has another."""
        random.seed(seed := int(os.environ.get("ETCD_TEST_SEED", "2")))
        until = time.monotonic() + float(os.environ.get("ETCD_TEST_SECONDS", "40"))
        worker = ["sh", "-c", STEPS]
        living = []

        def start():
            proxy = self.proxy()
            node = self.start(port=proxy.port, nnodes="1:3", program=worker)
            living.append((node, proxy))

        for _ in range(3):
            start()
        healing = []  # when, what
        while time.monotonic() < until:
            time.sleep(random.uniform(0.5, 3))
            for moment, heal in [entry for entry in healing if entry[0] < time.monotonic()]:
                healing.remove((moment, heal))
                heal()
            node, proxy = random.choice(living)
            later = time.monotonic() + random.uniform(0.5, 3 * NODE_TIMEOUT)
            what = random.choice(["kill", "stop", "stop", "requests", "answers", "both", "etcd"])
            if what == "kill" or node.process.poll() is not None:
                node.process.kill()
                node.process.wait()
                living.remove((node, proxy))
                start()
            elif what == "stop":
                node.process.send_signal(signal.SIGSTOP)
                healing.append((later, lambda process=node.process: process.poll() is None and process.send_signal(signal.SIGCONT)))
            elif what == "etcd" and self.etcd.process.poll() is None:
                self.etcd.kill()
                healing.append((later, self.etcd.start))
            else:
                proxy.cut_requests, proxy.cut_answers = what in ("requests", "both"), what in ("answers", "both")
                healing.append((later, lambda proxy=proxy: (setattr(proxy, "cut_requests", False), setattr(proxy, "cut_answers", False))))
        for _, heal in healing:
            heal()
        for node, proxy in list(living):
            if node.process.poll() is not None:
                living.remove((node, proxy))
                start()
        nodes = [node for node, _ in living]
        wait_for(lambda: len(set.intersection(*(set(node.begun(3)[-1:]) for node in nodes))) == 1, seconds=60)
        time.sleep(1)
        self.go()
        self.check_ended(*nodes)
        steps = [line.split()[0] for line in (self.folder / "steps").read_text().splitlines()]
        rounds = [port for i, port in enumerate(steps) if i == 0 or steps[i - 1] != port]
        self.assertGreater(len(rounds), 1)
        self.assertEqual(len(rounds), len(set(rounds)), f"seed {seed}: {rounds}")

    # -- etcd that cannot be used --

    def check_refused(self, node, expected):
        self.assertEqual(node.wait(), 125, node.err())
        lines = [line for line in node.err().splitlines() if "error" in line]
        self.assertEqual(len(lines), 1, node.err())
        self.assertIn(expected, lines[0])

    def test_nobody_listens_there(self):
        port = free_port()
        self.check_refused(self.start("--join-timeout=2", port=port),
                           f"cannot reach etcd at http://127.0.0.1:{port} within 2 s (--join-timeout): Connection refused")

    def test_another_server_listens_there(self):
        silent = type("Silent", (http.server.BaseHTTPRequestHandler,), {"log_message": lambda *_: None})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), silent)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        self.check_refused(self.start(port=port), f"cannot use etcd at http://127.0.0.1:{port} (--rdzv-endpoint): this is not an etcd")
        server.shutdown()
        server.server_close()

    def test_a_cluster_with_a_member_that_is_down(self):
        down = free_port()
        nodes = [self.start(port=f"{down},127.0.0.1:{self.etcd.port}") for _ in range(2)]
        wait_for(lambda: all(node.begun(2) for node in nodes))
        self.go()
        self.check_ended(*nodes)

    def test_without_openssl(self):
        for name in ("libssl.so", "libssl.so.3", "libssl.so.1.1"):
            (self.folder / name).touch()
        node = self.start("--join-timeout=2", "--rdzv-conf=protocol=https", LD_LIBRARY_PATH=str(self.folder))
        self.check_refused(node, "TLS needs OpenSSL's libssl")

    def test_files_of_tls(self):
        node = self.start("--rdzv-conf=protocol=http", nnodes="1", program=["true"], ETCDCTL_CACERT="/nowhere")
        self.assertEqual(node.wait(), 0, node.err())
        os.mkfifo(self.folder / "fifo")
        node = self.start("--rdzv-conf=protocol=https,cacert=fifo")
        self.assertEqual(node.wait(), 2)
        self.assertIn("is a FIFO or a device, expected a regular file", node.err())

    def test_user_and_password(self):
        for words in (("role", "add", "readers"), ("role", "grant-permission", "readers", "--prefix=true", "read", "/ddprun/"),
                      ("user", "add", "reader:word"), ("user", "grant-role", "reader", "readers"), ("user", "add", "root:secret"), ("user", "grant-role", "root", "root"), ("role", "add", "jobs"),
                      ("role", "grant-permission", "jobs", "--prefix=true", "readwrite", "/ddprun/"), ("user", "add", "me:my:word"),
                      ("user", "grant-role", "me", "jobs"), ("auth", "enable")):
            self.etcd.control(*words)
        place = f"cannot use etcd at http://127.0.0.1:{self.etcd.port} (--rdzv-endpoint): etcdserver: "
        self.check_refused(self.start(), place + "user name is empty")
        self.check_refused(self.start(ETCDCTL_USER="me:wrong"), place + "authentication failed, invalid user ID or password")
        self.check_refused(self.start("--rdzv-conf=etcd_prefix=/others", ETCDCTL_USER="me:my:word"), place + "permission denied")
        self.check_refused(self.start(ETCDCTL_USER="reader:word"), place + "permission denied")
        nodes = [self.start(ETCDCTL_USER="me:my:word"), self.start(ETCDCTL_USER="me", ETCDCTL_PASSWORD="my:word")]
        wait_for(lambda: all(node.begun(2) for node in nodes))
        self.go()
        self.assertEqual([node.wait() for node in nodes], [0, 0])
        found = self.etcd.control("--user=root:secret", "get", "--prefix", "--keys-only", "/")
        self.assertEqual(found.stdout.split(), [])

    # -- an etcd of three members --

    def three_members(self):
        self.etcd.kill()
        self.etcd = Cluster(self.folder)

    def test_the_member_that_leads_is_killed(self):
        self.three_members()
        first, second = self.two_nodes()
        self.etcd.kill_member(self.etcd.leader())
        wait_for(lambda: self.etcd.leader() is not None)
        time.sleep(2 * NODE_TIMEOUT)  # two of the coordinator's leases
        self.assertEqual([len(node.begun(2)) for node in (first, second)], [1, 1], first.err())
        first.process.kill()
        wait_for(lambda: second.begun(1))
        third = self.start()
        wait_for(lambda: len(second.begun(2)) == 2 and third.begun(2))
        self.go()
        self.check_ended(second, third)

    def test_a_member_without_the_others_answers_nothing_of_use(self):
        self.three_members()
        first, second = self.two_nodes()
        lost = [i for i in range(3) if i != 1]
        for i in lost:
            self.etcd.kill_member(i)
        wait_for(lambda: "the job goes on, but until etcd answers, no round begins" in first.err())
        time.sleep(2 * NODE_TIMEOUT)
        self.etcd.start_member(lost[0])
        wait_for(lambda: "answers again" in first.err())
        self.assertEqual([len(node.begun(2)) for node in (first, second)], [1, 1], first.err())
        first.process.kill()
        wait_for(lambda: second.begun(1))
        self.go()
        self.check_ended(second)


class Tls(Jobs):
    """Only test_tls: etcd asks for a certificate, too."""

    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)
        self.nodes, self.proxies = [], []
        self.make_certificates()
        self.etcd = Etcd(self.folder, tls=self.folder)

    def openssl(self, *words):
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def make_certificates(self):
        for name in ("ca", "other"):
            self.openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.crt", "-subj", f"/CN={name}",
                         "-days", "2")
        (self.folder / "names").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
        for name in ("server", "client"):
            self.openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
            self.openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-out", f"{name}.crt",
                         "-days", "2", "-extfile", "names")

    def check_no_question(self):
        """A key with a passphrase is refused: a question at the terminal would hold ddprun up."""
        self.openssl("rsa", "-aes256", "-passout", "pass:secret", "-in", "client.key", "-out", "locked.key")
        process, terminal = pty.fork()
        if process == 0:
            os.chdir(self.folder)
            os.execve(DDPRUN, ["ddprun", "--rdzv-backend=etcd", f"--rdzv-endpoint=https://127.0.0.1:{self.etcd.port}", "--nnodes=2", "true"],
                      {**os.environ, "ETCDCTL_CACERT": "ca.crt", "ETCDCTL_CERT": "client.crt", "ETCDCTL_KEY": "locked.key"})
        shown = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while select.select([terminal], [], [], 20)[0]:
                shown += os.read(terminal, 4096)
        os.kill(process, signal.SIGKILL)  # if it still waits
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), 125, shown)
        os.close(terminal)
        self.assertIn(b"cannot use the key 'locked.key': ", shown)
        self.assertNotIn(b"Enter", shown)

    def test_tls(self):
        place = f"etcd at https://127.0.0.1:{self.etcd.port} (--rdzv-endpoint): "
        files = {"ETCDCTL_CACERT": "ca.crt", "ETCDCTL_CERT": "client.crt", "ETCDCTL_KEY": "client.key"}
        self.check_refused(self.start("--rdzv-conf=protocol=https,cacert=other.crt"), place + "its certificate is not trusted: ")
        self.check_refused(self.start(**{**files, "ETCDCTL_KEY": "server.key"}), place + "cannot use the key 'server.key': ")
        self.check_refused(self.start("--rdzv-conf=protocol=http", "--join-timeout=1"), "it closed the connection without an answer (does it want "
                           "https?)")
        self.check_no_question()
        nodes = [self.start(**files), self.start("--rdzv-conf=protocol=https,cacert=ca.crt,cert=client.crt,key=client.key")]
        wait_for(lambda: all(node.begun(2) for node in nodes))
        self.go()
        self.check_ended(*nodes)


for name in [name for name in dir(Jobs) if name.startswith("test_")]:
    setattr(Tls, name, None)


if __name__ == "__main__":
    if not shutil.which("etcd") or not shutil.which("etcdctl"):
        print("skipped: no etcd here (etcd-server and etcd-client: scripts/setup.sh --dev installs them)")
        sys.exit(SKIPPED)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
