"""ddprun --preload with the real PyTorch: forks train as processes do that have imported it themselves, and replace lost ranks.

usage: preload_test.py DDPRUN; DDPRUN_TEST_PYTHON names a Python with PyTorch
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
DDPRUN = sys.argv[1]
PYTHON = os.environ.get("DDPRUN_TEST_PYTHON")
if not PYTHON:
    print("skipped: DDPRUN_TEST_PYTHON names no Python with PyTorch")
    sys.exit(4)

TRAINING = """
import os, threading
import numpy, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(2704, 10))
model = DistributedDataParallel(net)
optimizer = torch.optim.Adam(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,)))
loader = torch.utils.data.DataLoader(data, batch_size=8, sampler=torch.utils.data.DistributedSampler(data), num_workers=1)
for images, labels in loader:
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    print(f"rank {rank} loss {loss.item():.17g}", flush=True)
print(f"rank {rank} threads {torch.get_num_threads()} mkldnn {torch.backends.mkldnn.is_available()} seed {torch.initial_seed()}", flush=True)
print(f"rank {rank} numpy {numpy.random.rand()}", flush=True)
dist.barrier()  # both have said all
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and "FAIL" in os.environ: os._exit(3)
dist.destroy_process_group()
"""


def environment(**more):
    return {**os.environ, "PYTHONPATH": str(SOURCE / "packaging"), "PYTHON_EXEC": PYTHON, **more}


def run(script, *flags, **variables):
    """Returns exit code, sorted lines of stdout, and stderr."""
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder, "program.py")
        program.write_text(script)
        done = subprocess.run([DDPRUN, "--nproc-per-node=2", *flags, program], capture_output=True, text=True, env=environment(**variables), timeout=200)
        return done.returncode, sorted(done.stdout.splitlines()), done.stderr


class Preload(unittest.TestCase):
    def test_forks_train_as_other_processes_do(self):
        for threads in "1", "2":  # NumPy's OpenBLAS starts threads when it is loaded
            code, ordinary, err = run(TRAINING, OMP_NUM_THREADS=threads)
            self.assertEqual(0, code, err)
            code, forked, err = run(TRAINING, "--preload=torch", OMP_NUM_THREADS=threads)
            self.assertEqual((0, ""), (code, err))
            alike = [[line for line in lines if " numpy " not in line] for lines in (ordinary, forked)]
            self.assertEqual(alike[0], alike[1])
            self.assertEqual(2 * 5, len(alike[0]))
            random = {line.split()[-1] for line in forked if " numpy " in line}
            self.assertEqual(2, len(random), "each fork has random numbers of its own")

    def test_a_restart_trains_the_same(self):
        code, lines, err = run(TRAINING, "--preload=torch", "--max-restarts=1", OMP_NUM_THREADS="1", FAIL="1")
        self.assertEqual(0, code, err)
        losses = [line for line in lines if " loss " in line]
        self.assertEqual(2 * len(set(losses)), len(losses))

    def test_a_lost_rank_is_replaced_by_a_fork(self):
        weights, kills = {}, [(20, 1), (60, 0)]
        for preload in [], ["--preload=torch"]:
            with tempfile.TemporaryDirectory() as folder:
                events = pathlib.Path(folder, "events.json")
                job = subprocess.Popen([DDPRUN, "--nproc-per-node=2", "--recover=rank", "--max-restarts=20", f"--events-json={events}", *preload, SOURCE / "examples/elastic.py"],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(OMP_NUM_THREADS="1", EPOCHS="3"))
                errors, out, left = [], "", kills[:] if preload else []
                reader = threading.Thread(target=lambda: errors.append(job.stderr.read()))
                reader.start()
                for line in job.stdout:
                    out += line
                    step = re.match(r"step (\d+): ", line)
                    if step and left and int(step[1]) >= left[0][0]:
                        started = [event for event in map(json.loads, events.read_text().splitlines()) if event["event"] == "started"]
                        os.kill([event["pid"] for event in started if event["rank"] == left[0][1]][-1], signal.SIGKILL)
                        left.pop(0)
                code = job.wait()
                reader.join()
                job.stdout.close()
                job.stderr.close()
                self.assertEqual(0, code, errors[0])
                self.assertEqual(len(kills) if preload else 0, errors[0].count("replacing only this rank"), errors[0])
                weights[bool(preload)] = sorted(re.findall(r"rank \d: weights .*", out))
        self.assertEqual(weights[False], weights[True])

    def test_a_module_that_does_not_exist(self):
        code, _, err = run(TRAINING, "--preload=torch,torch.nothing", OMP_NUM_THREADS="1")
        self.assertEqual((2, "ddprun: error: --preload: no module named torch.nothing\n"), (code, err))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
