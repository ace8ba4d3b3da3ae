"""ddprun.elastic with FSDP2 and ZeroRedundancyOptimizer: shards of ranks that are killed come back from their copies, bit for bit.

usage: elastic_shards_test.py DDPRUN [tests]; DDPRUN_TEST_PYTHON names a Python with PyTorch
"""
import random
import sys
import unittest

from elastic_test import run

# KILLS is a list of ranks:step:moment, one for each round: before a step, in its backward pass, between the optimizer's own step and the broadcast of
# ZeroRedundancyOptimizer, and before and after a part of commit()'s exchange.
SHARDS = """
import hashlib, os, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from ddprun import _shards, elastic
torch.set_num_threads(1)
kind, round_ = os.environ["KIND"], int(os.environ.get("DDPRUN_ROUND") or 0)
kills = [kill.split(":") for kill in os.environ.get("KILLS", "").split()]
state = elastic.State(replicate=True, step=0)

def die(step, moment):
    number = int(os.environ.get("DDPRUN_ROUND") or 0)
    if number < len(kills) and str(rank) in kills[number][0].split(",") and [str(step), moment] == kills[number][1:]: os.kill(os.getpid(), 9)

def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor

@elastic.run(state)
def train():
    global rank
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 7, bias=False), torch.nn.BatchNorm1d(7), torch.nn.Tanh(), torch.nn.Linear(7, 3), torch.nn.Linear(3, 1)).double()
    if kind == "fsdp":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in net[0], net[3]: fully_shard(layer, mesh=mesh)
        model = fully_shard(net, mesh=mesh)
        optimizer = inner = torch.optim.Adam(net.parameters(), lr=0.01)
    else:
        optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01, parameters_as_bucket_view=kind == "buckets")
        inner = optimizer.optim
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9)
    restored = state.restore(model=net, optimizer=optimizer, schedule=schedule)
    assert restored == (state.step > 0), (restored, state.step)
    if kind != "fsdp": model = DistributedDataParallel(net)
    for step in range(state.step, 40):
        die(step, "before")
        optimizer.zero_grad()
        x = torch.randn(8, 5, generator=torch.Generator().manual_seed(10 * step + rank), dtype=torch.double)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        if step % 2: net[4].weight.register_hook(lambda g, step=step: die(step, "backward"))
        loss.backward()
        inner.register_step_post_hook(lambda *_: die(step, "step"))
        optimizer.step()
        schedule.step()
        state.step = step + 1
        move = _shards.Shards._move
        def moved(*arguments):
            die(step, "commit")
            move(*arguments)
            die(step, "copied")
        _shards.Shards._move = moved
        state.commit()
        _shards.Shards._move = move
    tensors = [local(t) for t in [*net.parameters(), *net.buffers()]]
    for p in [p for group in inner.param_groups for p in group["params"]]:
        tensors += [local(t) for _, t in sorted(inner.state[p].items())]
    numbers = torch.cat([t.detach().double().reshape(-1) for t in tensors])
    digest = hashlib.sha256(numbers.numpy().tobytes() if os.environ["EXACT"] == "1" else b"").hexdigest()[:16]
    print(f"rank {rank}: {digest} {optimizer.param_groups[0]['lr']:.17g} {state.commits} " + " ".join(f"{x:.17g}" for x in numbers.tolist()), flush=True)
train()
"""


class ShardsWithCopies(unittest.TestCase):
    """The whole state of FSDP2 and of ZeroRedundancyOptimizer, parameters, buffers and Adam's moments, after ranks are killed."""

    def train(self, kind, kills="", ranks=2, exact=True):
        code, out, err = run(SHARDS, f"--nproc-per-node={ranks}", "--recover=rank", "--max-restarts=9", "--preload=torch,torch.distributed.fsdp",
                             KIND=kind, KILLS=kills, EXACT=str(int(exact)))
        self.assertEqual(0, code, err)
        self.assertEqual(len(kills.split()), err.count("replacing only this rank"), err)
        self.assertEqual(len(kills.split()), err.count("for which every shard is known"), err)
        lines = sorted(line for line in out.splitlines() if line.startswith("rank "))
        self.assertEqual(ranks, len(lines), out)
        return lines

    def check(self, kind):
        undisturbed, chance = self.train(kind), random.Random(kind)
        moments = [(rank, moment) for rank in (0, 1) for moment in ("before", "backward", "step", "commit", "copied")]
        steps = sorted(chance.sample(range(1, 39, 2), 6))
        kills = " ".join(f"{rank}:{step}:{moment}" for step, (rank, moment) in zip(steps, chance.sample(moments, 6)))
        self.assertEqual(undisturbed, self.train(kind, kills), kills)

    def test_zero(self):
        self.check("zero")

    def test_zero_with_buckets(self):
        self.check("buckets")

    def test_fsdp2(self):
        self.check("fsdp")

    def test_three_ranks(self):
        for kind in "zero", "fsdp":
            undisturbed = self.train(kind, ranks=3, exact=False)
            disturbed = self.train(kind, "1:9:before 0:15:copied 2:25:commit 1:25:step", ranks=3, exact=False)
            for one, other in zip(undisturbed, disturbed):  # Gloo may add up in another order
                self.assertEqual(one.split()[:4], other.split()[:4])
                for a, b in zip(one.split()[4:], other.split()[4:]):
                    self.assertAlmostEqual(float(a), float(b), delta=1e-9 * max(1, abs(float(a))))

    def test_a_rank_is_lost_with_its_copy(self):
        undisturbed = self.train("fsdp", ranks=3)
        code, out, err = run(SHARDS, "--nproc-per-node=3", "--recover=rank", "--max-restarts=9", "--preload=torch,torch.distributed.fsdp",
                             KIND="fsdp", KILLS="0,1:9:before", EXACT="1")
        self.assertEqual(0, code, err)
        self.assertIn("elastic: a rank's shard was lost, and its copy too", err)
        self.assertEqual(undisturbed, sorted(line for line in out.splitlines() if line.startswith("rank ")))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
