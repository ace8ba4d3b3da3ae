"""ddprun.elastic with the real ddprun and PyTorch: ranks that are killed are replaced, and the training is that of an undisturbed run.

usage: elastic_test.py DDPRUN [--newest] [tests]; DDPRUN_TEST_PYTHON names a Python with PyTorch
  --newest  with the newest PyTorch: the folder that DDPRUN_TEST_NEWEST_TORCH names, ahead of that Python's own
"""
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
DDPRUN = os.path.abspath(sys.argv[1])  # some tests run it in another folder
sys.path.insert(0, str(SOURCE / "tests/dropin"))
from launchers import find_newest_torch, find_python

PYTHON = find_python()
PATHS = [str(SOURCE / "packaging")]
if "--newest" in sys.argv:
    sys.argv.remove("--newest")
    PATHS.append(find_newest_torch(PYTHON))
EXAMPLE = SOURCE / "examples/elastic.py"
EPOCHS = 8  # of 50 steps


def environment(**more):
    return {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS), "PYTHON_EXEC": PYTHON, "OMP_NUM_THREADS": "1", "EPOCHS": str(EPOCHS), **more}


def run(script, *flags, launcher=None, **variables):
    """Runs a script's text, or a file; returns exit code, stdout and stderr."""
    with tempfile.TemporaryDirectory() as folder:
        program = script
        if isinstance(script, str):
            program = pathlib.Path(folder, "program.py")
            program.write_text(script)
        command = [*(launcher if launcher is not None else [DDPRUN, *flags]), program]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(**variables), timeout=200)
        return done.returncode, done.stdout, done.stderr


def weights(out):
    return dict(re.findall(r"rank (\d): weights (\S+) after", out))


def process_of(rank, events):
    """The pid of the rank's newest process."""
    all_events = map(json.loads, events.read_text().splitlines())
    return [event["pid"] for event in all_events if event["event"] == "started" and event.get("rank") == rank][-1]


class Job:
    """An example under ddprun. A rank is killed at some time after given steps."""

    def __init__(self, kills, *flags, program=(EXAMPLE,), **variables):
        self.killed_at = {}  # by rank, in time.time()
        self.steps, self.out, seen, chance = [], "", [], random.Random(1)
        folder = tempfile.TemporaryDirectory()
        events = pathlib.Path(folder.name, "events.json")
        flags = ["--nproc-per-node=2", "--recover=rank", "--max-restarts=20", f"--events-json={events}", *flags]
        job = subprocess.Popen([DDPRUN, *flags, *program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**variables))
        reader = threading.Thread(target=lambda: seen.append(job.stderr.read()))
        reader.start()
        for line in job.stdout:
            self.out += line
            step = re.match(r"step (\d+): ", line)
            if not step:
                continue
            self.steps.append(int(step[1]))
            if kills and self.steps[-1] >= kills[0][0]:
                ranks, later = kills.pop(0)[1], chance.uniform(0, 0.02)
                for rank in [ranks] if isinstance(ranks, int) else ranks:
                    self.killed_at[rank] = time.time()
                    threading.Timer(later, os.kill, (process_of(rank, events), signal.SIGKILL)).start()
        self.code = job.wait()
        self.pids = {rank: process_of(rank, events) for rank in (0, 1)}
        reader.join()
        self.err = seen[0]
        job.stdout.close()
        job.stderr.close()
        folder.cleanup()


# Runs a script in which a rank is killed at the end of its third epoch, where it moves its schedule.
AFTER_THE_EPOCH = """
import os, runpy, sys, torch
def step(schedule):
    if schedule.last_epoch == 2 and os.environ["DDPRUN_ROUND"] == "0" and os.environ["RANK"] == os.environ["LOST"]: os.kill(os.getpid(), 9)
    original(schedule)
original, torch.optim.lr_scheduler.CosineAnnealingLR.step = torch.optim.lr_scheduler.CosineAnnealingLR.step, step
runpy.run_path(sys.argv[1], run_name="__main__")
"""


# Runs a script whose processes note when they have come to elastic.run(). In step 30 the ranks wait for the one that stands by.
NOTED = """
import os, runpy, sys, time
from ddprun import elastic
def stand_by():
    with open(os.environ["NOTES"], "a") as notes: notes.write(f"{os.getpid()} {time.time()}\\n")
    original()
def commit(state):
    original_commit(state)
    until = time.monotonic() + 100
    while state.commits == 30 and len(open(os.environ["NOTES"]).readlines()) < 3 and time.monotonic() < until: time.sleep(0.05)
original, elastic._stand_by = elastic._stand_by, stand_by
original_commit, elastic.State.commit = elastic.State.commit, commit
runpy.run_path(sys.argv[1], run_name="__main__")
"""


class Recovery(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.undisturbed = Job([])
        assert cls.undisturbed.code == 0, cls.undisturbed.err

    def check(self, job, kills):
        self.assertEqual(0, job.code, job.err)
        self.assertEqual(kills, job.err.count("replacing only this rank"), job.err)
        self.assertEqual(weights(self.undisturbed.out), weights(job.out))
        self.assertEqual({"0", "1"}, set(weights(job.out)))

    def test_ranks_that_are_killed_are_replaced_without_a_lost_step(self):
        job = Job([(30, 1), (120, 0), (250, 1)])
        self.check(job, 3)
        # What rank 0 was about to print when it was killed is nowhere; no step is done twice.
        self.assertEqual(sorted(set(job.steps)), job.steps)
        self.assertLessEqual(EPOCHS * 50 - len(job.steps), 1)
        self.assertNotIn("restarting all", job.err)

    def test_a_rank_that_is_lost_after_the_last_step_of_an_epoch_costs_nothing(self):
        for lost in 0, 1:
            with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
                script.write(AFTER_THE_EPOCH)
                script.flush()
                job = Job([], "--preload=torch", program=(script.name, EXAMPLE), LOST=str(lost))
            self.check(job, 1)
            self.assertNotIn("restarting all", job.err)
            self.assertEqual(list(range(1, EPOCHS * 50 + 1)), job.steps)
            self.assertEqual(set(range(EPOCHS)), set(map(int, re.findall("epoch (\\d+) is done", job.out))))

    def test_a_standby_process_takes_over(self):
        with tempfile.TemporaryDirectory() as folder:  # its new environment need not be text in its locale
            script, notes = pathlib.Path(folder, "noted.py"), pathlib.Path(folder, "notes")
            script.write_text(NOTED)
            job = Job([(60, 0)], "--standby=1", f"--log-dir={folder}/größe", program=(script, EXAMPLE), NOTES=str(notes), LC_ALL="C", PYTHONUTF8="0",
                      PYTHONCOERCECLOCALE="0")
            there = dict(line.split() for line in notes.read_text().splitlines())
        self.check(job, 1)
        self.assertLess(float(there[str(job.pids[0])]), job.killed_at[0], "rank 0's new process was there before")

    def test_when_all_ranks_are_lost_the_state_in_memory_goes_on(self):
        job = Job([(150, [0, 1])])
        self.assertEqual(0, job.code, job.err)
        self.assertEqual(weights(self.undisturbed.out), weights(job.out))
        self.assertLess(1, len(job.steps) - len(set(job.steps)), "a step or more is done again")
        self.assertLess(len(job.steps) - len(set(job.steps)), 60, job.steps)

    def test_under_torchrun_and_alone_the_function_runs_once(self):
        code, out, err = run(EXAMPLE, launcher=[PYTHON, "-m", "torch.distributed.run", "--nproc-per-node=2"])
        self.assertEqual(0, code, err)
        self.assertEqual(weights(self.undisturbed.out), weights(out))
        code, out, err = run(EXAMPLE, launcher=[PYTHON], EPOCHS="1")
        self.assertEqual(0, code, err)
        self.assertIn("after 100 steps", out)


NET = """
import os, sys, torch, torch.distributed as dist
from ddprun import elastic
torch.set_num_threads(1)
rank = int(os.environ.get("RANK", 0))
torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
"""


# As of a host that has fallen silent, the connections of the lost rank stay open: a process that has left its session has them, too.
SILENT = NET + """
import datetime, socket, time
listener = socket.create_server(("127.0.0.1", 0))
own = socket.create_connection(listener.getsockname())
import fcntl, subprocess, tempfile
locked = tempfile.NamedTemporaryFile()
fcntl.lockf(locked, fcntl.LOCK_EX)
state = elastic.State(model=net, optimizer=optimizer, step=0, best=torch.zeros(3))
@elastic.run(state)
def train():
    rank = dist.get_rank()
    group = dist.new_group(timeout=datetime.timedelta(minutes=7)) if os.environ["GROUP"] == "new" else None
    print(f"rank {rank} goes on after {state.step} at {time.time():.2f}", flush=True)
    for step in range(state.step, 10):
        if step == 5 and rank == 1 and os.environ["DDPRUN_ROUND"] == "0":
            if os.fork() == 0:
                os.setsid()
                time.sleep(30)
                os._exit(0)
            print(f"lost at {time.time():.2f}", flush=True)
            os.kill(os.getpid(), 9)
        if os.environ["GROUP"] == "pending":  # the exception comes from elsewhere
            work = dist.all_reduce(torch.ones(1), async_op=True)
            while not work.is_completed(): state._rounds.check()
        else:
            dist.all_reduce(torch.ones(1), group=group)
        state.step = step + 1
        state.commit()
train()
peer, _ = listener.accept()
own.sendall(b"still open")
assert peer.recv(100) == b"still open"
take = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
assert b"BlockingIOError" in subprocess.run([sys.executable, "-c", take, locked.name], stderr=subprocess.PIPE).stderr
"""


class SilentHost(unittest.TestCase):
    def test_a_survivor_does_not_wait_for_it(self):
        for group in "default", "new", "pending":
            code, out, err = run(SILENT, "--nproc-per-node=2", "--recover=rank", "--max-restarts=1", "--preload=torch", GROUP=group)
            self.assertEqual(0, code, err)
            [lost] = re.findall(r"lost at (\S+)", out)
            again = re.findall(r"rank (\d) goes on after 5 at (\S+)", out)
            self.assertEqual(["0", "1"], sorted(rank for rank, _ in again), out + err)
            for _, at in again:
                self.assertLess(float(at) - float(lost), 25, out)  # 60 where the timeout of a collective, or of leaving, ends it


# Rank 1 is lost in step 5 of round 0; what happens then is the case's.
LOST = NET + """
import datetime, pickle, signal, subprocess, time
net.register_buffer("table", torch.zeros(1_000_000))
def send_small(box, **more):
    assert len(pickle.dumps(box)) < 10_000, "weights are sent as tensors"
    send(box, **more)
send, dist.broadcast_object_list = dist.broadcast_object_list, send_small
state = elastic.State(model=net, optimizer=optimizer, step=0)
case, own_round = os.environ["CASE"], os.environ.get("DDPRUN_ROUND")
with open(f"{os.environ['PIDS']}/{rank}", "w") as pid: pid.write(str(os.getpid()))
if case == "evaluates, lost twice" and rank == 1 and own_round == "1":
    time.sleep(1)
    os.kill(os.getpid(), 9)
if case == "loses the store" and rank == 1 and own_round == "1":
    listens = elastic._listens
    def and_no_more(*place):
        if not listens(*place): return False
        if os.environ["DDPRUN_ROUND"] == "1": os.kill(int(open(f"{os.environ['PIDS']}/0").read()), 9)
        time.sleep(0.2)
        return True
    elastic._listens = and_no_more
if case == "dies as the group forms":
    original = dist.init_process_group
    def init(*arguments, **keywords):
        if rank == 1 and os.environ["DDPRUN_ROUND"] == "1": os.kill(os.getpid(), 9)
        original(*arguments, **keywords)
    dist.init_process_group = init
elastic._HINT_AFTER = 0.5
@elastic.run(state, timeout=datetime.timedelta(seconds=3 if case == "swallows" else 300))
def train():
    for step in range(state.step, 10):
        lost = step == 5 and os.environ["DDPRUN_ROUND"] == "0"
        if lost and rank == 1:
            if case == "ddprun answers late":
                subprocess.Popen(["sh", "-c", f"sleep 2; kill -CONT {os.getppid()}"], start_new_session=True)
                os.kill(os.getppid(), signal.SIGSTOP)
            os.kill(os.getpid(), 9)
        if lost and case.startswith("evaluates") and rank == 0: time.sleep(6 if case.endswith("twice") else 3)
        if lost and case == "swallows":
            while True:
                try: dist.barrier()
                except Exception: time.sleep(0.1)
        optimizer.zero_grad()
        loss = (net(torch.full((2, 3), 1 / (step + 1))) - 1).square().sum()
        loss.backward()
        for parameter in net.parameters(): dist.all_reduce(parameter.grad)
        optimizer.step()
        state.step = step + 1
        state.commit()
    print(f"rank {rank}: {net.weight.sum().item():.9g} after {state.commits}", flush=True)
train()
"""


class Lost(unittest.TestCase):
    def check(self, case, rounds, ranks=2):
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as pids:
            flags = ["--recover=rank", "--max-restarts=3", "--restart-on-codes=SIGKILL", "--preload=torch"]
            code, out, err = run(LOST, f"--nproc-per-node={ranks}", *flags, CASE=case, PIDS=pids)
        self.assertEqual(0, code, err)
        self.assertEqual(rounds, err.count("replacing only this rank"), err)
        self.assertNotIn("restarting all", err)
        self.assertLess(time.monotonic() - begin, 100, err)
        self.assertEqual(ranks, len(set(out.splitlines())), out)
        weights = re.findall(r": (.*) after 10", out)
        self.assertEqual(weights[:1] * ranks, weights, out)
        return weights[0], err

    def test_a_rank_that_evaluates_meanwhile_is_waited_for(self):
        weights, _ = self.check("nothing more", 1)
        same, err = self.check("evaluates", 1)
        self.assertEqual(weights, same)
        self.assertIn("elastic: another rank was lost, and rank 0 has not left its round after 0 s: ", err)

    def test_another_rank_may_be_lost_meanwhile(self):
        self.check("evaluates, lost twice", 2, ranks=3)

    def test_a_rank_that_never_leaves_its_round_is_replaced_as_a_lost_one(self):
        _, err = self.check("swallows", 2)
        self.assertIn("could not leave its round within 0:00:03", err)

    def test_a_rank_may_be_lost_while_the_group_forms(self):
        self.check("dies as the group forms", 2)

    def test_rank_0_may_be_lost_while_another_one_connects_to_it(self):
        self.check("loses the store", 2, ranks=3)

    def test_a_collective_that_fails_long_before_ddprun_can_tell_is_no_failure_of_the_rank(self):
        self.check("ddprun answers late", 1)


TWO_STATES = NET + """
import io
for fold in range(2):
    net = torch.nn.Linear(3, 1)
    state = elastic.State(model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), memory_every=1)
    @elastic.run(state)
    def train():
        print(f"rank {rank}, fold {fold} begins at {state.commits}", flush=True)
        for _ in range(5): state.commit()
        if state._memory._writing is not None: state._memory._writing.join()
        dist.barrier()
    train()
    if rank == 1: torch.save = None  # only rank 0 saves, also after the function
    state.save(os.environ["SAVED"])
"""


class TwoNodes(unittest.TestCase):
    def test_a_lost_rank_of_one_is_replaced_by_a_fork_there(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        flags = ["--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=two", "--recover=rank", "--max-restarts=1", "--preload=torch"]
        with tempfile.NamedTemporaryFile("w", suffix=".py") as script, tempfile.TemporaryDirectory() as pids:
            script.write(LOST)
            script.flush()
            nodes = [subprocess.Popen([DDPRUN, *flags, script.name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                      env=environment(CASE="nothing more", PIDS=pids, DDPRUN_TOKEN="0123456789abcdef")) for _ in range(2)]
            said = [node.communicate(timeout=200) for node in nodes]
        self.assertEqual([0, 0], [node.returncode for node in nodes], said)
        weights = re.findall(r": (.*) after 10", said[0][0] + said[1][0])
        self.assertEqual(weights[:1] * 2, weights, said)
        self.assertIn("replacing only this rank", said[0][1] + said[1][1])


class TwoStates(unittest.TestCase):
    def test_a_second_one_does_not_begin_with_the_memory_of_the_first(self):
        with tempfile.TemporaryDirectory() as folder:
            code, out, err = run(TWO_STATES, "--nproc-per-node=2", "--recover=rank", "--max-restarts=1", SAVED=f"{folder}/state.pt")
        self.assertEqual(0, code, err)
        self.assertEqual([f"rank {rank}, fold {fold} begins at 0" for rank in range(2) for fold in range(2)], sorted(out.splitlines()))


THREE = NET + """
state = elastic.State(model=net, of=None)
@elastic.run(state)
def train():
    rank = dist.get_rank()
    if os.environ["DDPRUN_ROUND"] != "0":
        print(f"rank {rank} has {state.commits} of rank {state.of}", flush=True)
        return
    state.of = rank
    state.commit()
    if str(rank) == os.environ["AHEAD"]: state.commit()
    dist.barrier()
    if rank == 0: os.kill(os.getpid(), 9)
    dist.barrier()
train()
"""


class ThreeRanks(unittest.TestCase):
    def test_the_state_is_that_of_the_lowest_rank_that_has_the_newest(self):
        for ahead, expected in ("", "1 of rank 1"), ("2", "2 of rank 2"):
            code, out, err = run(THREE, "--nproc-per-node=3", "--recover=rank", "--max-restarts=1", "--preload=torch", AHEAD=ahead)
            self.assertEqual(0, code, err)
            self.assertEqual([f"rank {rank} has {expected}" for rank in range(3)], sorted(out.splitlines()))


OTHER_SHAPE = """
import os, sys, time, torch, torch.distributed as dist
from ddprun import elastic
torch.set_num_threads(1)
again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 5 if again else 4))
fresh = net[0].weight.tolist()
state = elastic.State(model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), step=0, memory_every=1)
@elastic.run(state)
def train():
    if again:
        print(f"rank {dist.get_rank()} is fresh: {net[0].weight.tolist() == fresh and state.commits == state.step == 0}", flush=True)
        return
    with torch.no_grad(): net[0].weight.fill_(100.0)
    state.step = 1
    state.commit()
    if dist.get_rank() == 0: state._memory._writing.join()
    dist.barrier()
    state._rounds._say(False)  # or rank 1 would be replaced alone
    time.sleep(0.5)
    sys.exit(3)
train()
"""


WORKER = pathlib.Path(DDPRUN).with_name("worker")


@unittest.skipUnless(WORKER.exists(), f"there is no {WORKER}: built with DDPRUN_WORKER=OFF")
class MemoryOfTheWorker(unittest.TestCase):
    """`worker` and ddprun.elastic use the same layout of the memory that ddprun holds."""

    def job(self, script):
        job = [DDPRUN, "--nproc-per-node=1", "--recover=rank", "--max-restarts=1", "--no-python", "sh", "-c", script]
        done = subprocess.run(job, capture_output=True, text=True, env=environment(), timeout=100)
        self.assertEqual(0, done.returncode, done.stderr)
        return done.stdout

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.linear = f"{WORKER} linear --memory-checkpoint-every=1 --out={self.folder.name}/run"

    def test_python_reads_the_state_of_a_training_with_worker(self):
        script = pathlib.Path(self.folder.name, "read.py")
        script.write_text("""
import io, time, torch
from ddprun import elastic
memory, until, content = elastic._Memory(), time.monotonic() + 60, None
while content is None or not content[0]["place"]:
    assert time.monotonic() < until
    time.sleep(0.01)
    slots = memory._slots(memory._fd())
    content = memory._content(slots[0]) if slots else None
state = torch.load(io.BytesIO(content[1]), weights_only=False)
assert memory.newest(0) is None
print(content[0]["run"] == state["run"]["id"], state["step"] > 0, {name: tuple(value.shape) for name, value in state["model"].items()})
""")
        out = self.job(f"{self.linear} --epochs=100000 > /dev/null & {PYTHON} {script}; code=$?; kill -9 $!; exit $code")
        self.assertEqual("True True {'weight': (1, 10), 'bias': (1,)}\n", out)

    def test_worker_does_not_take_the_state_of_a_script(self):
        script = pathlib.Path(self.folder.name, "keep.py")
        script.write_text("""
from ddprun import elastic
memory = elastic._Memory()
memory.keep(7, lambda: {"commits": 7, "values": {}, "objects": {}})
memory._writing.join()
""")
        first = f"{PYTHON} {script}; kill -9 $$"
        out = self.job(f"if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then {first}; else exec {self.linear} --epochs=2 2>&1; fi")
        self.assertIn("worker: the state in ddprun's memory is another program's, and is not used\n", out)  # it has read the head
        self.assertIn("Training completed: 2 epochs, 64 steps", out)


class ChangedShape(unittest.TestCase):
    def test_nothing_is_taken_of_a_state_in_memory_that_has_another_shape(self):
        code, out, err = run(OTHER_SHAPE, "--nproc-per-node=2", "--recover=rank", "--max-restarts=3", "--preload=torch")
        self.assertEqual(0, code, err)
        self.assertIn("elastic: cannot use the state in ddprun's memory: a different state: model.1.weight: (4, 2), not (5, 2)\n", err)
        self.assertEqual(["rank 0 is fresh: True", "rank 1 is fresh: True"], sorted(out.splitlines()), err)


# A queue of kernels that a thread works off while the program runs ahead. As with NCCL, an all-reduce whose peer is lost ends
# once it is aborted, without an error, and leaves any numbers.
PRETEND_GPU = NET + """
import queue, threading
garbage, scaled = float(os.environ["GARBAGE"]), os.environ["SCALED"] == "1"
kernels, aborted = queue.Queue(8), threading.Event()
def work():
    while True:
        kernels.get()()
        kernels.task_done()
threading.Thread(target=work, daemon=True).start()
def wait(*_):
    kernels.join()
    return True
def then(function, first):
    def both(*arguments):
        first()
        return function(*arguments)
    return both
elastic._runs_ahead, elastic._wait_for = lambda device: True, wait
elastic._broadcast = then(elastic._broadcast, wait)
elastic._abort = then(elastic._abort, aborted.set)
if hasattr(dist.distributed_c10d, "_abort_process_group"):
    dist.distributed_c10d._abort_process_group = then(dist.distributed_c10d._abort_process_group, aborted.set)

class Sgd(torch.optim.Optimizer):
    def __init__(self): super().__init__(net.parameters(), {"lr": 0.01})
    def step(self): kernels.put(self.kernel)
    @torch.no_grad()
    def kernel(self):
        for parameter in net.parameters(): parameter -= 0.01 * parameter.grad

optimizer = Sgd()
scaler = torch.amp.GradScaler("cpu", init_scale=2**10, enabled=scaled)
state = elastic.State(model=net, optimizer=optimizer, scaler=scaler, step=0)

def backward(step):
    optimizer.zero_grad()
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(2 * step + rank))
    scaler.scale((net(x) - x.sum(1, keepdim=True)).square().mean()).backward()

def all_reduce(step):
    if step == 20 and rank == 1 and os.environ.get("DDPRUN_ROUND") == "0" and os.environ.get("KILL"): os.kill(os.getpid(), 9)
    for parameter in net.parameters():
        try: dist.all_reduce(parameter.grad)
        except Exception:
            aborted.wait()
            parameter.grad.fill_(garbage)

@elastic.run(state)
def train():
    global rank
    rank = dist.get_rank()
    wait()
    aborted.clear()
    if os.environ.get("DDPRUN_ROUND") == "1":  # another one is lost while DistributedDataParallel broadcasts
        if rank == 1: os.kill(os.getpid(), 9)
        torch.nn.init.constant_(net.weight, garbage)
        dist.barrier()
    for step in range(state.step, 60):
        kernels.put(lambda step=step: backward(step))
        kernels.put(lambda step=step: all_reduce(step))
        if scaled: wait()  # it looks whether they are finite
        scaler.step(optimizer)
        scaler.update()
        state.step = step + 1
        state.commit()
    wait()
    print(f"rank {rank}: weights {net.weight.tolist()} after {state.commits} steps at scale {scaler.get_scale()}", flush=True)
train()
"""


class RunsAhead(unittest.TestCase):
    """As on a GPU: the CPU does not see that a step is given up."""

    def train(self, kills, **variables):
        code, out, err = run(PRETEND_GPU, "--nproc-per-node=2", "--recover=rank", "--max-restarts=2", "--preload=torch", **variables)
        self.assertEqual(0, code, err)
        self.assertEqual(kills, err.count("replacing only this rank"), err)
        self.assertEqual(2, out.count("after 60 steps"), out)
        return sorted(out.splitlines())

    def test_no_step_is_taken_with_numbers_that_mean_nothing(self):
        undisturbed = self.train(0, GARBAGE="0", SCALED="0")
        self.assertEqual(undisturbed, self.train(2, GARBAGE="1e9", SCALED="0", KILL="1"))
        undisturbed = self.train(0, GARBAGE="0", SCALED="1")
        for garbage in "1e9", "inf":  # GradScaler leaves out the step of the latter
            self.assertEqual(undisturbed, self.train(2, GARBAGE=garbage, SCALED="1", KILL="1"))


TWICE = """
import torch
from ddprun import elastic
elastic._runs_ahead = lambda device: device is None  # a GPU is there
net = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
state = elastic.State(model=net, optimizer=optimizer)
seen = []
@elastic.run(state)
def train():
    seen.append(net.weight.detach().clone())
    for _ in range(5):
        optimizer.zero_grad()
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        state.commit()
    seen.append(net.weight.detach().clone())
train()
train()
assert torch.equal(seen[1], seen[2]), seen
"""


class CalledTwice(unittest.TestCase):
    def test_a_second_call_goes_on_from_the_first(self):
        with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
            script.write(TWICE)
            script.flush()
            for launcher in ([PYTHON], [DDPRUN, "--nproc-per-node=1"], [DDPRUN, "--nproc-per-node=1", "--recover=rank", "--max-restarts=1"]):
                done = subprocess.run([*launcher, script.name], capture_output=True, text=True, env=environment())
                self.assertEqual(0, done.returncode, done.stderr)


SECOND_CALL = NET + """
import pathlib
state = elastic.State(model=net, optimizer=optimizer)
@elastic.run(state)
def train(phase):
    print(f"rank {rank} phase {phase} at {state.commits}", flush=True)
    dist.barrier()
    if phase == 2 and rank == 1 and os.environ["DDPRUN_ROUND"] == "0" and not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), 9)
    for _ in range(3):
        dist.barrier()
        optimizer.zero_grad()
        net(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        state.commit()
for phase in 1, 2, 3: train(phase)
"""


class SecondCall(unittest.TestCase):
    def test_that_it_is_not_protected_is_said_once(self):
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder, "train.py")
            script.write_text(SECOND_CALL)
            done = subprocess.run([DDPRUN, "--nproc-per-node=2", "--recover=rank", "--max-restarts=1", script], capture_output=True, text=True,
                                  env=environment(), cwd=folder, timeout=200)
        self.assertEqual(0, done.returncode, done.stderr)
        warning = (
            "elastic: if a rank is lost, all start again from your checkpoint: "
            "this is a second run(), and a new process would begin with the first"
        )
        self.assertEqual(2, done.stderr.count(warning), done.stderr)  # before the restart of all and after
        self.assertEqual(2, done.stdout.count("rank 0 phase 1 at 0"), done.stdout)
        self.assertNotIn("replacing only this rank", done.stderr)


WITH_CLOSURE = """
import os, torch
from ddprun import elastic
from torch.nn.parallel import DistributedDataParallel
torch.manual_seed(0)
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
state = elastic.State(model=net, optimizer=optimizer, step=0)
@elastic.run(state)
def train():
    rank, model = torch.distributed.get_rank(), DistributedDataParallel(net)
    for step in range(state.step, 10):
        def closure():
            if step == 5 and rank == 1 and os.environ.get("DDPRUN_ROUND") == "0" and "KILL" in os.environ: os.kill(os.getpid(), 9)
            optimizer.zero_grad()
            loss = model(torch.randn(4, 8, generator=torch.Generator().manual_seed(2 * step + rank))).square().mean()
            loss.backward()
            return loss
        optimizer.step(closure)
        state.step = step + 1
        state.commit()
    print(f"rank {rank}: weights {net.weight.double().sum().item():.17g} after {state.commits} steps", flush=True)
train()
"""


class Closure(unittest.TestCase):
    def test_a_step_whose_gradients_are_missing_has_not_begun(self):
        flags = ["--nproc-per-node=2", "--recover=rank", "--max-restarts=1"]
        code, undisturbed, err = run(WITH_CLOSURE, *flags)
        self.assertEqual(0, code, err)
        code, out, err = run(WITH_CLOSURE, *flags, KILL="1")
        self.assertEqual(0, code, err)
        self.assertEqual(1, err.count("replacing only this rank"), err)
        self.assertEqual(weights(undisturbed), weights(out))
        self.assertEqual(2, out.count("after 10 steps"), out)


ON_GPU = """
import os
if os.environ["BACKEND"] == "nccl": os.environ["NCCL_HOSTID"] = os.environ["RANK"]  # ranks of two hosts may share a GPU
import torch
from ddprun import elastic
from torch.nn.parallel import DistributedDataParallel
several = torch.cuda.device_count() > 1
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) if several else 0)
torch.cuda.set_device(device)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.BatchNorm1d(256), torch.nn.ReLU(), torch.nn.Linear(256, 10)).to(device)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
state = elastic.State(model=net, optimizer=optimizer, step=0)
@elastic.run(state, backend=os.environ["BACKEND"])
def train():
    rank, model = torch.distributed.get_rank(), DistributedDataParallel(net, device_ids=[device.index])
    for step in range(state.step, 300):
        if step == 100 and rank == 1 and os.environ["DDPRUN_ROUND"] == "0" and os.environ.get("KILL"): os.kill(os.getpid(), 9)
        x = torch.randn(64, 256, generator=torch.Generator().manual_seed(2 * step + rank)).to(device, non_blocking=True)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        state.step = step + 1
        state.commit()
    print(f"rank {rank}: weights {sum(p.double().sum() for p in net.parameters()).item():.17g} after {state.commits} steps", flush=True)
train()
"""


@unittest.skipUnless(os.path.exists("/dev/nvidiactl"), "there is no GPU")
class OnGpu(unittest.TestCase):
    def replaced(self, backend, *flags):
        flags, begin = ("--nproc-per-node=2", "--recover=rank", "--max-restarts=1", *flags), time.monotonic()
        code, undisturbed, err = run(ON_GPU, *flags, BACKEND=backend)
        self.assertEqual(0, code, err)
        killed = time.monotonic()
        code, out, err = run(ON_GPU, *flags, BACKEND=backend, KILL="1")
        self.assertEqual(0, code, err)
        self.assertEqual(1, err.count("replacing only this rank"), err)
        self.assertEqual(weights(undisturbed), weights(out))
        self.assertEqual(2, out.count("after 300 steps"), out)
        longer = time.monotonic() - killed - (killed - begin)
        print(f"a rank on a GPU replaced over {backend} {flags[3:]}: {longer:.1f} s longer than undisturbed", file=sys.stderr)
        self.assertLess(longer, 30)  # NCCL's watchdog would hold its rank up for 60

    def test_a_lost_rank_is_replaced(self):
        self.replaced("gloo")
        self.replaced("gloo", "--preload=torch")

    def test_a_lost_rank_is_replaced_over_nccl(self):
        self.replaced("nccl")
        self.replaced("nccl", "--preload=torch")


class Misuse(unittest.TestCase):
    def refused(self, script, expected, *flags):
        code, _, err = run(NET + script, "--nproc-per-node=2", *flags)
        self.assertIn(code, (1, 3), err)  # 3: the script's own
        self.assertIn(expected, err)

    def test_a_state_that_differs_between_ranks_names_the_entry(self):
        differs = "elastic: the state of rank 1 is not that of rank 0: "
        self.refused("""
if rank == 1: net = torch.nn.Linear(4, 1)
elastic.run(elastic.State(model=net))(lambda: None)()
""", differs + "model.weight: (1, 4) torch.float32, not (1, 3) torch.float32\n")
        self.refused("""
net.register_buffer("seen", torch.zeros(3 + rank))
elastic.run(elastic.State(model=net))(lambda: None)()
""", differs + "model.seen: (4,) torch.float32, not (3,) torch.float32\n")
        self.refused("""
if rank == 1: optimizer = torch.optim.SGD([net.weight], lr=0.1)
elastic.run(elastic.State(model=net, optimizer=optimizer))(lambda: None)()
""", differs + "optimizer, group 0: 1 parameters, not 2 parameters\n")
        self.refused("elastic.run(elastic.State(model=net, names={'a', 'b', 'c'}, epoch=rank))(lambda: None)()", differs + "epoch: 1, not 0\n")
        self.refused("elastic.run(elastic.State(model=net, best=torch.full((2,), float(rank))))(lambda: None)()",
                     differs + "best: ('(2,)', 'torch.float32', [1.0, 1.0]), not ('(2,)', 'torch.float32', [0.0, 0.0])\n")

    def test_a_wrapped_module_that_is_kept_from_the_round_before(self):
        self.refused("""
state, kept = elastic.State(model=net, optimizer=optimizer), []
@elastic.run(state)
def train():
    if not kept: kept.append(torch.nn.parallel.DistributedDataParallel(net))
    if os.environ["DDPRUN_ROUND"] == "0" and rank == 1: os.kill(os.getpid(), 9)
    for _ in range(3): kept[0](torch.ones(2, 3)).sum().backward()
train()
""", "elastic: this DistributedDataParallel belongs to a round that is over: create it again in the function", "--recover=rank", "--max-restarts=1", "--preload=torch")

    def test_a_group_of_the_programs_own(self):
        self.refused("dist.init_process_group('gloo')\nelastic.run(elastic.State(model=net))(lambda: None)()",
                     "torch.distributed is initialized already")
        self.refused("elastic.run(elastic.State(model=net))(lambda: dist.init_process_group('gloo'))()",
                     "RuntimeError: elastic: torch.distributed is initialized already: remove your call of init_process_group, because elastic.run() "
                     "makes a group in each round\n")

    def test_a_group_that_the_program_destroys_in_or_after_the_function(self):
        program = """
from torch.distributed import destroy_process_group
state = elastic.State(model=net)
@elastic.run(state)
def train():
    if os.environ.get("DDPRUN_ROUND") == "0" and rank == 1: os.kill(os.getpid(), 9)
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.destroy_process_group(dist.new_group())
    if os.environ["LAST"] == "in": destroy_process_group()
    print(f"{total.item():.0f} ranks", flush=True)
train()
assert not dist.is_initialized()
dist.destroy_process_group()
destroy_process_group()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # one of the program's own
destroy_process_group()
assert not dist.is_initialized()
"""
        for last in "in", "after":
            code, out, err = run(NET + program, "--nproc-per-node=2", "--recover=rank", "--max-restarts=1", "--preload=torch", LAST=last)
            self.assertEqual((0, ["2 ranks"] * 2), (code, out.splitlines()), err)
            self.assertEqual(1, err.count("replacing only this rank"), err)
            code, out, err = run(NET + program, launcher=[PYTHON], LAST=last)
            self.assertEqual((0, ["1 ranks"]), (code, out.splitlines()), err)

    def test_restarts_without_recovery_are_said(self):
        for flags, lines in (["--max-restarts=2"], 1), (["--max-restarts=2", "--recover=rank"], 0), ([], 0):
            code, _, err = run(NET + "elastic.run(elastic.State(model=net))(lambda: None)()\n" * 2, "--nproc-per-node=2", *flags)
            self.assertEqual((0, lines), (code, err.count("with --recover=rank ddprun would replace only that rank")), err)

    def test_steps_without_a_commit_are_said_once(self):
        program = """
state = elastic.State(model=net, optimizer=optimizer)
@elastic.run(state)
def train():
    for step in range(int(os.environ["STEPS"])):
        optimizer.step()
        if step in map(int, os.environ["COMMITS"].split()): state.commit()
train()
"""
        for launcher, steps, commits, said in (None, "300", "", "100 optimizer steps and"), ([PYTHON], "2", "", "2 optimizer steps and"), ([PYTHON], "300", "98", ""):
            code, _, err = run(NET + program, "--nproc-per-node=2", launcher=launcher, STEPS=steps, COMMITS=commits)
            lines = [line for line in err.splitlines() if "commit" in line]
            self.assertEqual((0, 1 if said else 0), (code, len(lines)), err)
            self.assertIn(f"elastic: {said}" if said else "", "".join(lines))

    def test_commit_outside_of_run(self):
        self.refused("elastic.State(model=net).commit()", "commit() outside of the function that elastic.run() calls")

    def test_a_second_run(self):
        self.refused("""
state = elastic.State(model=net)
elastic.run(state)(lambda: elastic.run(state)(lambda: None)())()
""", "elastic: run() was called again for this State while the first call is still running")

    def test_a_wrapped_module_or_a_name_of_its_own(self):
        self.refused("""
@elastic.run(elastic.State(model=net))
def train(): elastic.State(model=torch.nn.parallel.DistributedDataParallel(net))
train()
""", "elastic.State: model is wrapped in DistributedDataParallel: give the bare module")
        self.refused("elastic.State(commit=1)", "elastic.State: 'commit' is a name that State itself uses")

    def test_an_optimizer_that_stepped_without_a_commit_is_no_state(self):
        self.refused("""
state = elastic.State(model=net, optimizer=optimizer)
@elastic.run(state)
def train():
    if os.environ["DDPRUN_ROUND"] != "0": return
    net(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    if rank == 1: os.kill(os.getpid(), 9)
    dist.barrier()
    state.commit()
train()
""", "Call commit() right after the last optimizer.step()", "--recover=rank", "--max-restarts=1")

    def test_a_step_that_failed_half_way_is_no_state(self):
        self.refused("""
class Halves(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self):
        net.weight += 1
        if rank == 1: os.kill(os.getpid(), 9)
        dist.barrier()
        net.bias += 1
optimizer = Halves(net.parameters(), {})
state = elastic.State(model=net, optimizer=optimizer)
@elastic.run(state)
def train():
    if os.environ["DDPRUN_ROUND"] != "0": return
    optimizer.step()
    state.commit()
train()
""", "Call commit() right after the last optimizer.step()", "--recover=rank", "--max-restarts=1")

    def test_sharded_parameters_are_said(self):
        self.refused("""
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
state = elastic.State(model=net)
@elastic.run(state)
def train():
    fully_shard(net, mesh=init_device_mesh("cpu", (2,)))
    state.commit()
    sys.exit(3)
train()
""", "elastic: if a rank is lost, all start again from your checkpoint: model has DTensors", "--recover=rank", "--max-restarts=1")

        self.refused("""
from torch.distributed.optim import ZeroRedundancyOptimizer
state = elastic.State(model=net, optimizer=optimizer)
@elastic.run(state)
def train():
    state.optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.1)
    state.commit()
    sys.exit(3)
train()
""", "elastic: if a rank is lost, all start again from your checkpoint: optimizer shards its state", "--recover=rank", "--max-restarts=1")

    def test_a_subgroup_that_is_kept_from_the_round_before(self):
        self.refused("""
state, kept = elastic.State(model=net, optimizer=optimizer), []
@elastic.run(state)
def train():
    if not kept: kept.append(dist.new_group())
    if os.environ["DDPRUN_ROUND"] == "0" and rank == 1: os.kill(os.getpid(), 9)
    dist.all_reduce(torch.ones(1), group=kept[0])
train()
""", "is not initialized in the world group map", "--recover=rank", "--max-restarts=1", "--preload=torch")

    def test_shards_without_a_copy_are_said(self):
        for mesh, model in ("(1, 2)", "fully_shard(net, mesh=mesh)"), ("(2,)", "parallelize_module(net, mesh, ColwiseParallel())"):
            self.refused(f"""
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
state = elastic.State(replicate=True)
@elastic.run(state)
def train():
    mesh = init_device_mesh("cpu", {mesh}, mesh_dim_names=tuple("ab"[:len({mesh})]))
    assert not state.restore(model={model})
    state.commit()
    sys.exit(3)
train()
""", "elastic: if a rank is lost, all start again from your checkpoint: model is on an HSDP or TP mesh", "--recover=rank", "--max-restarts=1")

    def test_shards_are_given_to_restore(self):
        self.refused("elastic.State(model=net, replicate=True)", "elastic.State: replicate=True cannot be used with model")
        self.refused("elastic.run(elastic.State())(elastic.State().restore)()", "restore() needs State(..., replicate=True)")
        self.refused("state = elastic.State(replicate=True)\nelastic.run(state)(state.commit)()", "elastic: commit() before restore()")
        self.refused("state = elastic.State(replicate=True)\nelastic.run(state)(lambda: state.restore(optimizer=optimizer))()",
                     "optimizer has parameters that do not belong to any of the modules given to restore()")


class Alone(unittest.TestCase):
    def passes(self, script):
        code, out, err = run(NET + script, launcher=[PYTHON])
        self.assertEqual(0, code, err)
        return out

    def test_what_the_program_loads_before_the_first_round_counts(self):
        self.passes("""
net = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.BatchNorm1d(1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
state = elastic.State(model=net, optimizer=optimizer, epoch=0, batch=0)
net(torch.randn(4, 3)).sum().backward()
optimizer.step()  # to warm up
state.epoch, optimizer.param_groups[0]["lr"] = 5, 0.5
net[1].running_mean.fill_(7)
weights = [p.detach().clone() for p in net.parameters()]
@elastic.run(state)
def train():
    assert (state.epoch, optimizer.param_groups[0]["lr"], net[1].running_mean.item()) == (5, 0.5, 7), state.epoch
    assert all(torch.equal(a, b) for a, b in zip(weights, net.parameters()))
    state.commit()
train()
""")

    def test_a_saved_state_resumes(self):
        self.passes("""
import pathlib, tempfile
from collections import Counter
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3], 0.5)
state = elastic.State(model=net, optimizer=optimizer, scheduler=scheduler, epoch=0, batch=0)
folder = tempfile.TemporaryDirectory()
path = pathlib.Path(folder.name, "state.pt")
assert not state.resume(path)
@elastic.run(state)
def train():
    for x in state.batches(list(torch.ones(5, 2, 3))):
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
        scheduler.step()
        state.commit()
        if state.commits == 3: state.save(path)
train()
kept = torch.load(path)
assert kept["commits"] == 3 and kept["values"] == {"epoch": 0, "batch": 3}, kept
end = [p.detach().clone() for p in net.parameters()]
assert state.resume(path) and state.batch == 3 and state.commits == 3
train()
assert state.commits == 5 and all(torch.equal(a, b) for a, b in zip(end, net.parameters()))
path.write_bytes(path.read_bytes()[:100])
try: state.resume(path)
except ValueError as error: assert str(path) in str(error), error
else: raise SystemExit("a damaged file was taken")
try: elastic.State(other=net).resume(path)
except ValueError: pass
for other in torch.nn.Linear(4, 1), torch.nn.Linear(3, 1, bias=False):
    before = [p.detach().clone() for p in other.parameters()]
    untouched = elastic.State(model=other, optimizer=torch.optim.SGD(other.parameters()), scheduler=scheduler, epoch=7, batch=0)
    saved = {**kept, "shapes": untouched._payload()["shapes"]} if other.bias is None else kept  # only load_state_dict() sees what differs
    torch.save(saved, path)
    try: untouched.resume(path)
    except ValueError as error: assert str(path) in str(error) and "\\n" not in str(error), error
    else: raise SystemExit("a state of another shape was taken")
    assert untouched.epoch == 7 and untouched.commits == 0 and all(map(torch.equal, before, other.parameters()))
assert os.listdir(folder.name) == ["state.pt"]
""")

    def test_a_link_whose_disk_is_missing_is_not_taken_for_no_state_and_stays(self):
        self.passes("""
import pathlib, tempfile
state = elastic.State(model=net, optimizer=optimizer, epoch=0)
folder = tempfile.TemporaryDirectory()
path, disk = pathlib.Path(folder.name, "state.pt"), pathlib.Path(folder.name, "disk")
path.symlink_to(disk / "state.pt")
try: state.resume(path)
except ValueError as error: assert str(path) in str(error) and str(disk) in str(error), error
else: raise SystemExit("the training would begin again")
try: state.save(path)
except FileNotFoundError: pass
else: raise SystemExit("the link was replaced")
disk.mkdir()
state.save(path)
assert path.is_symlink() and not (disk / "state.pt").is_symlink() and state.resume(path)
assert os.listdir(disk) == ["state.pt"]
""")

    def test_a_folder_whose_disk_is_missing_is_not_taken_for_no_state(self):
        self.passes("""
import pathlib, tempfile
state = elastic.State(model=net, optimizer=optimizer, epoch=0)
folder = tempfile.TemporaryDirectory()
runs, disk = pathlib.Path(folder.name, "runs"), pathlib.Path(folder.name, "disk")
runs.symlink_to(disk)
try: state.resume(runs / "a/state.pt")
except ValueError as error: assert str(runs) in str(error) and str(disk) in str(error), error
else: raise SystemExit("the training would begin again")
disk.mkdir()
assert not state.resume(runs / "a/state.pt")
""")

    def test_a_value_that_could_not_be_read_again_is_not_saved(self):
        self.passes("""
import datetime, io, pathlib, tempfile
folder = tempfile.TemporaryDirectory()
path = pathlib.Path(folder.name, "state.pt")
state = elastic.State(model=net, optimizer=optimizer, epoch=0, best=0.5, kept=[1, {"a": (2.5, "b", None, net.weight.detach())}])
state.save(path)
state.best = datetime.timedelta(1)
state._keep()
try: state.save(path)
except TypeError as error: assert "elastic.State: best, a timedelta, could not be read again" in str(error), error
else: raise SystemExit("it was saved")
said, sys.stderr = sys.stderr, io.StringIO()
state._memory._write(1, state._payload())
assert "no longer copied to ddprun's memory: elastic.State: best" in sys.stderr.getvalue(), sys.stderr.getvalue()
sys.stderr = said
assert os.listdir(folder.name) == ["state.pt"] and state.resume(path) and state.best == 0.5
""")

    def test_a_state_that_cannot_be_looked_up_is_not_taken_for_none(self):
        self.passes("""
import errno
state = elastic.State(model=net, optimizer=optimizer, epoch=0)
real = os.stat
def stale(path, *rest, **more):
    if path == "of hours.pt": raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
    return real(path, *rest, **more)
os.stat = stale
try: state.resume("of hours.pt")
except ValueError as error: assert str(error) == "of hours.pt: Stale file handle", error
else: raise SystemExit("the training would begin again, and replace the state")
os.stat = real
assert not state.resume("of hours.pt")
""")

    def test_a_signal_within_a_commit_saves_no_mixed_state(self):
        """With an optimizer's step before it, and without one, as a commit() after each of several batches for a step."""
        self.passes("""
import pathlib, signal, tempfile
within = []
class Interrupted(torch.optim.lr_scheduler.StepLR):
    def state_dict(self):
        if within: os.kill(os.getpid(), within.pop())
        return super().state_dict()
scheduler = Interrupted(optimizer, 1, 0.5)
state = elastic.State(model=net, optimizer=optimizer, scheduler=scheduler, step=0)
folder = tempfile.TemporaryDirectory()
path = pathlib.Path(folder.name, "state.pt")
refused = []
def save(*_):
    try: state.save(path)
    except RuntimeError as error: refused.append(str(error))
signal.signal(signal.SIGUSR1, save)
@elastic.run(state)
def train():
    for steps in True, True, False:
        if steps:
            net(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            scheduler.step()
        state.step += 1
        if state.step > 1: within.append(signal.SIGUSR1)
        state.commit()
        assert not within and not path.exists(), "half a commit was saved"
    assert len(refused) == 2 and "between an optimizer's step and commit()" in refused[0], refused
    save()
    assert torch.load(path)["values"] == {"step": 3} and torch.load(path)["commits"] == 3
train()
""")

    def test_a_state_is_saved_as_of_the_last_commit(self):
        self.passes("""
import pathlib, tempfile
net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
state = elastic.State(model=net, optimizer=optimizer, scheduler=scheduler, epoch=0, batch=0)
folder = tempfile.TemporaryDirectory()
path = pathlib.Path(folder.name, "state.pt")
for pid in (1 << 30, 1): pathlib.Path(folder.name, f".state.pt.tmp.{pid}").touch()
@elastic.run(state)
def train():
    for state.epoch in range(2):
        for x in state.batches(list(torch.randn(3, 4, 3))):
            net(x).sum().backward()
            optimizer.step()
            try: state.save(path)
            except RuntimeError as error: assert "between an optimizer's step and commit()" in str(error), error
            else: raise SystemExit("half a step was saved")
            state.commit()
        mean = net[1].running_mean.clone()
        net(torch.randn(4, 3))
        scheduler.step()
        state.save(path)
        kept = torch.load(path)
        saved = kept["objects"]
        assert kept["values"] == {"epoch": state.epoch, "batch": 3}, kept["values"]
        assert torch.equal(saved["model"]["1.running_mean"], mean) and not torch.equal(net[1].running_mean, mean)
        assert torch.equal(saved["model"]["0.weight"], net[0].weight) and not saved["model"]["0.weight"].requires_grad
        assert saved["scheduler"]["last_epoch"] == state.epoch, saved["scheduler"]
        assert saved["optimizer"]["param_groups"][0]["lr"] == 0.1 * 0.5 ** state.epoch and saved["optimizer"]["param_groups"][0]["params"] == [0, 1, 2, 3]
train()
assert sorted(os.listdir(folder.name)) == [".state.pt.tmp.1", "state.pt"], os.listdir(folder.name)
""")

    def test_what_has_no_copy_of_the_last_commit_is_saved_as_it_is(self):
        """An average that is updated after commit(), a module with a state_dict() of its own, a new parameter group, and all after the function."""
        self.passes("""
import pathlib, tempfile
class Own(torch.nn.Linear):
    def state_dict(self): return {"both": torch.cat([self.weight.detach().flatten(), self.bias.detach()])}
    def load_state_dict(self, state): pass
net, own = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)), Own(2, 1)
optimizer = torch.optim.SGD([*net.parameters(), own.weight], 0.1)
average = torch.optim.swa_utils.AveragedModel(net)
state = elastic.State(memory_every=1, model=net, own=own, average=average, optimizer=optimizer)
folder = tempfile.TemporaryDirectory()
path = pathlib.Path(folder.name, "state.pt")
@elastic.run(state)
def train():
    for step in range(3):
        own(net(torch.randn(4, 3))).sum().backward()
        optimizer.step()
        state.commit()
        average.update_parameters(net)
        state.save(path)
        saved = torch.load(path)["objects"]
        assert saved["average"]["n_averaged"] == step + 1 and all(torch.equal(saved["average"][k], v) for k, v in average.state_dict().items())
    optimizer.add_param_group({"params": [own.bias], "lr": 0.5})
    state.save(path)
    assert [group["lr"] for group in torch.load(path)["objects"]["optimizer"]["param_groups"]] == [0.1, 0.5]
train()
torch.optim.swa_utils.update_bn([torch.randn(4, 3) + 3], net)
state.save(path)
assert torch.equal(torch.load(path)["objects"]["model"]["1.running_mean"], net[1].running_mean)
assert state.resume(path)
""")

    def test_commit_tells_ddprun_the_step_unless_the_program_does(self):
        self.passes("""
import ddprun
reading, writing = os.pipe()
os.set_blocking(writing, False)
os.environ["DDPRUN_STATUS_FD"] = str(writing)
state = elastic.State(model=net, optimizer=optimizer, epoch=3, batch=0)
@elastic.run(state)
def train():
    for _ in range(4):
        optimizer.zero_grad()
        net(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        if state.commits == 2: ddprun.status(step=70)
        if state.commits > 0: state._show_at = 0.0
        state.commit()
train()
lines = os.read(reading, 1 << 16).decode().splitlines()
assert lines == ['{"step": 1, "epoch": 3}', '{"step": 2, "epoch": 3}', '{"step": 70}'], lines
""")

    def test_of_two_states_in_memory_the_older_one_is_taken_where_the_newer_is_damaged(self):
        self.passes("""
import tempfile
file = tempfile.TemporaryFile()
os.environ["DDPRUN_STATE_FD"] = str(file.fileno())
def taken():
    state = elastic.State(step=0)
    elastic.run(state)(lambda: None)()
    return state.commits, state.step
def damage(number):
    _, _, offset, *_ = memory._slots(file.fileno())[number]
    os.pwrite(file.fileno(), b"damage", offset + 100)
memory = elastic._Memory()
assert taken() == (0, 0)
for commits in 3, 4, 5:
    memory.keep(commits, lambda: {"commits": commits, "values": {"step": commits}, "objects": {}})
    memory._writing.join()
assert taken() == (5, 5)
damage(0)
assert taken() == (4, 4)
damage(1)
assert taken() == (0, 0)
""")

    def test_the_module_is_there_after_import_ddprun(self):
        self.passes("""
import ddprun
del sys.modules["ddprun"], sys.modules["ddprun.elastic"]
import ddprun
assert "ddprun.elastic" not in sys.modules
assert ddprun.elastic.State is sys.modules["ddprun.elastic"].State and not hasattr(ddprun, "other")
""")

    def test_the_rest_of_an_epoch_is_its_end_and_nothing_done_is_loaded(self):
        self.passes("""
from torch.utils.data import DataLoader, Dataset
class Noted(Dataset):
    seen = []
    def __len__(self): return 20
    def __getitem__(self, i):
        self.seen.append(i)
        return i
def epoch(state, stop=None, **more):
    Noted.seen.clear()
    taken = []
    for number, batch in enumerate(state.batches(DataLoader(Noted(), batch_size=4, shuffle=True, **more))):
        if number == stop: return taken
        taken.append((batch.tolist(), torch.rand(1).item()))
    assert state.batch == 0
    return taken
state = elastic.State(model=net, epoch=1, batch=0)
whole = epoch(state)
assert len(whole) == 5
state.batch = 3
assert epoch(state) == whole[3:] and len(Noted.seen) == 8, Noted.seen
state.batch = 5
assert epoch(state) == []
state.epoch = 2
assert epoch(state) != whole
""")

    def test_the_epoch_and_the_rank_choose_what_is_drawn(self):
        self.passes("""
from torch.utils.data import DataLoader, Sampler
class Noted(Sampler):
    epochs = []
    def set_epoch(self, epoch): self.epochs.append(epoch)
    def __iter__(self): return iter(range(4))
    def __len__(self): return 4
state = elastic.State(model=net, epoch=3, batch=0)
def drawn(rank):
    os.environ["RANK"] = rank
    return [torch.rand(1).item() for _ in state.batches(DataLoader(range(4), sampler=Noted()))]
assert drawn("0") == drawn("0") != drawn("1")
assert set(Noted.epochs) == {3}, Noted.epochs
""")

    def test_a_copy_in_memory_is_written_while_the_training_goes_on(self):
        self.passes("""
import tempfile, time
file = tempfile.TemporaryFile()
os.environ["DDPRUN_STATE_FD"] = str(file.fileno())
def slow(memory, commits, payload):
    begun.append(commits)
    time.sleep(2)
    original(memory, commits, payload)
begun, original, elastic._Memory._write = [], elastic._Memory._write, slow
state = elastic.State(step=0, memory_every=1)
@elastic.run(state)
def train():
    begin = time.monotonic()
    for _ in range(5): state.commit()
    assert time.monotonic() - begin < 1.5
train()
assert begun == [1], begun  # those that were due meanwhile are left out
state._memory._writing.join()
memory = elastic._Memory()
assert memory._content(memory._slots(file.fileno())[0])[0]["commits"] == 1
""")

    def test_the_first_example_of_the_page_trains(self):
        [example] = re.findall(r"```python\n(from ddprun import elastic\n.*?)```", (SOURCE / "docs/python_module.md").read_text(), re.DOTALL)[:1]
        out = self.passes(f"""
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
data, epochs, loss_function = TensorDataset(torch.randn(130, 3), torch.randn(130, 1)), 2, torch.nn.functional.mse_loss
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
{example}
assert state.commits == 6
""")
        self.assertRegex(out, r"epoch 0: loss \S+\nepoch 1: loss \S+\n")

    def test_a_loader_that_draws_as_it_goes_gives_the_same_rest(self):
        self.passes("""
import random
from torch.utils.data import DataLoader, Dataset, IterableDataset
class Buffer(IterableDataset):
    def __iter__(self):
        held = []
        for i in range(24):
            held.append(i)
            if len(held) > 8: yield held.pop(random.randrange(len(held)))
        random.shuffle(held)
        yield from held
class Lazy:
    def __len__(self): return 6
    def __iter__(self):
        left = list(range(24))
        while left: yield [left.pop(random.randrange(len(left))) for _ in range(4)]
class Changed(Dataset):
    def __len__(self): return 24
    def __getitem__(self, i): return i + torch.rand(1)
def rest(loader, done, epoch=0):
    state = elastic.State(epoch=epoch, batch=done)
    batches = []
    for batch in state.batches(loader):
        batches.append(batch.flatten().tolist())
        random.random(), torch.rand(1)  # of a step
    return batches
for workers in 0, 1:
    for make in [lambda: DataLoader(Buffer(), batch_size=4, num_workers=workers),
                 lambda: DataLoader(range(24), batch_sampler=Lazy(), num_workers=workers),
                 lambda: DataLoader(Changed() if workers == 0 else range(24), batch_size=4, shuffle=True, num_workers=workers)]:
        whole = rest(make(), 0)
        assert sorted(int(x) for batch in whole for x in batch) == list(range(24)), whole
        assert rest(make(), 3) == whole[3:], (workers, rest(make(), 3), whole)
loader = DataLoader(range(24), batch_size=4, shuffle=True, num_workers=1, persistent_workers=True)
first, second = rest(loader, 0, epoch=0), rest(loader, 0, epoch=1)
[process] = vars(loader)["_ddprun_later"]._iterator._workers
assert second != first and rest(loader, 2, epoch=1) == second[2:]
assert process.is_alive() and vars(loader)["_ddprun_later"]._iterator._workers == [process]
assert rest(DataLoader(range(24), batch_size=4, shuffle=True), 2, epoch=1) == second[2:]
""")

    def test_garbage_from_before_is_freed_and_a_failure_leaves_nothing_set(self):
        self.passes("""
import gc, weakref
class Cycle: pass
gc.collect()
gc.disable()
cycle = Cycle()
cycle.itself, seen = cycle, weakref.ref(cycle)
del cycle
state = elastic.State(model=net)
elastic.run(state)(lambda: None)()
assert seen() is None
def fails(): raise OSError("no descriptor")
elastic._stand_by, working = fails, elastic._stand_by
try: elastic.run(state)(lambda: None)()
except OSError: pass
assert gc.get_freeze_count() == 0
elastic._stand_by = working
elastic.run(state)(lambda: None)()
""")

    def test_what_is_done_of_an_iterable_dataset_is_left_out(self):
        self.passes("""
from torch.utils.data import DataLoader, IterableDataset
class Lines(IterableDataset):
    def __iter__(self): return iter(range(20))
state = elastic.State(model=net, epoch=1, batch=3)
assert [batch.tolist() for batch in state.batches(DataLoader(Lines(), batch_size=4))] == [[12, 13, 14, 15], [16, 17, 18, 19]]
assert state.batch == 0
""")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
