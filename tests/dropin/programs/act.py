"""A worker that says who it is in OUT/ATTEMPT-RANK.json, and then does what its arguments say.

usage: act.py OUT [sum|rpc|meet URL|sleep SECONDS|ignore-term|fail-odd|fail-unless-alone SECONDS|fail-record|timer SECONDS]...
"""
import json
import os
import pathlib
import signal
import sys
import time

FACTS = ["RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
         "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
         "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_TIMER_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE"]
out = pathlib.Path(sys.argv[1])
rank = int(os.environ["RANK"])


def say_who():
    facts = {name: os.environ.get(name) for name in FACTS}
    file = out / f"{facts['TORCHELASTIC_RESTART_COUNT']}-{rank}"
    file.with_suffix(".new").write_text(json.dumps(facts))
    file.with_suffix(".new").rename(file.with_suffix(".json"))


def add_up(url="env://"):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=url, rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
    total = torch.tensor([rank])
    dist.all_reduce(total)
    assert total.item() == sum(range(dist.get_world_size())), total
    assert dist.is_torchelastic_launched()
    dist.barrier()  # rank 0 hosts the store under ddprun
    dist.destroy_process_group()


def call_next():
    import torch.distributed.rpc as rpc

    size = int(os.environ["WORLD_SIZE"])
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size)
    assert rpc.rpc_sync(f"worker{(rank + 1) % size}", max, args=(rank, 40)) == 40
    rpc.shutdown()


def fail_recorded():
    from torch.distributed.elastic.multiprocessing.errors import record

    @record
    def main():
        raise RuntimeError(f"sad: rank {rank}")

    main()


def set_timer(seconds):
    import torch.distributed.elastic.timer as timer

    timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
    with timer.expires(after=60):
        pass
    with timer.expires(after=seconds):
        time.sleep(0.1 if rank == 0 else 30)


if "ignore-term" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
say_who()
words = iter(sys.argv[2:])
for word in words:
    if word == "sum":
        add_up()
    elif word == "meet":
        add_up(next(words))
    elif word == "rpc":
        call_next()
    elif word == "sleep":
        time.sleep(float(next(words)) * rank)
    elif word == "fail-odd" and rank % 2 == 1:
        attempt, size = os.environ["TORCHELASTIC_RESTART_COUNT"], int(os.environ["WORLD_SIZE"])
        while len(list(out.glob(f"{attempt}-*.json"))) < size:  # its end would end the others before they have said who they are
            time.sleep(0.01)
        sys.exit(5)
    elif word == "fail-odd":
        time.sleep(60)
    elif word == "fail-unless-alone":  # as a collective does some time after a rank is lost
        seconds = float(next(words))
        if os.environ["WORLD_SIZE"] != "1":
            time.sleep(seconds)
            sys.exit(6)
    elif word == "fail-record":
        fail_recorded()
    elif word == "timer":
        set_timer(float(next(words)))
