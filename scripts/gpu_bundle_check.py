#!/usr/bin/env python3
"""Checks a bundle of gpu_bundle.sh against an installed torch: libraries and symbols, GPU tests, trainings in every precision
and with a CUDA graph beside the CPU's losses, faults, and steps per second without and with a graph beside Python's. Makes its data itself. Without a GPU it does
what needs none. Prints a line a check, and exits with 1 if one failed, with 4 if there was no GPU and none failed.

usage: gpu_check.sh --bundle DIR --torch .../site-packages/torch [--out DIR]
"""
import argparse
import csv
import gzip
import json
import os
import pathlib
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time

LIMIT = 600  # seconds of one command
TASKS = {"mnist": ["--batch-size=128"], "cifar10": ["--batch-size=128", "--stem=cifar", "--lr=0.01", "--val-split=0.1"],
         "toy": ["1", "1"], "linear": [], "sam": ["--data=nuclei-sample", "--architecture=tiny.json"]}
LONGER = {"linear": ["--epochs=30"]}  # else an epoch or the default has 24 steps
PRECISIONS = [["--precision=32"], ["--precision=bf16-mixed"], ["--precision=16-mixed"],
              ["--precision=bf16-mixed", "--channels-last"]]
TINY_SAM = {
    "vision_config": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_dim": 64, "image_size": 64,
                      "patch_size": 8, "output_channels": 32, "num_pos_feats": 16, "window_size": 3, "global_attn_indexes": [1]},
    "prompt_encoder_config": {"hidden_size": 32, "image_size": 64, "patch_size": 8, "mask_input_channels": 4},
    "mask_decoder_config": {"hidden_size": 32, "mlp_dim": 64, "num_attention_heads": 4, "iou_head_hidden_dim": 32}}


class Check:
    def __init__(self, arguments, folder):
        self.bundle, self.torch, self.folder = arguments.bundle.resolve(), arguments.torch.resolve(), folder
        self.failed, self.figures = [], {}
        site = self.torch.parent
        libraries = [self.torch / "lib", *sorted(site.glob("nvidia/*/lib")), self.bundle / "lib"]
        self.environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
                            "DDPRUN_PROGRAM": str(self.bundle / "bin/ddprun"), "WORKER_PROGRAM": str(self.bundle / "bin/worker")}

    def run(self, words, environment=None, limit=LIMIT):
        try:
            return subprocess.run(list(map(str, words)), env={**self.environment, **(environment or {})}, cwd=self.folder,
                                  capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired as error:
            return subprocess.CompletedProcess(error.cmd, 124, "", f"no end within {limit} s")

    def say(self, what, problem, detail=""):
        print(f"{'FAILED' if problem else 'ok':6} {what}{': ' + problem if problem else ''}{' ' + detail if detail else ''}", flush=True)
        if problem:
            self.failed.append(what)

    def worker(self, task, out, flags, environment=None):
        return self.run([self.bundle / "bin/worker", task, f"--out={self.folder / out}", "--no-tensorboard", "--log-interval=1",
                         *data_of(task, self.folder), *TASKS[task], *flags], environment)

    def column(self, out, name):
        with open(self.folder / out / "metrics.csv") as file:
            return [float(row[name]) for row in csv.DictReader(file) if row.get(name)]

    def losses(self, out):
        return self.column(out, "train_loss")

    def rates(self, out):
        return self.column(out, "samples_per_second")


def data_of(task, folder):
    return [f"--data={folder / task}"] if task in ("mnist", "cifar10") else []


def make_data(folder):
    """Pictures whose class can be seen: a bright bar at a place of its own, in noise."""
    dice = random.Random(1)
    (folder / "mnist").mkdir()
    (folder / "cifar10").mkdir()

    def picture(label, side, channels):
        pixels = bytearray(dice.randbytes(side * side * channels))
        for i in range(len(pixels)):
            pixels[i] //= 4
        for channel in range(channels):
            row = (label * side // 10) * side + channel * side * side
            pixels[row:row + 2 * side] = bytes([230]) * (2 * side)
        return bytes(pixels)

    for name, count in (("train", 2048), ("t10k", 256)):
        labels = bytes(dice.randrange(10) for _ in range(count))
        with gzip.open(folder / f"mnist/{name}-labels-idx1-ubyte.gz", "wb") as file:
            file.write(struct.pack(">II", 0x801, count) + labels)
        with gzip.open(folder / f"mnist/{name}-images-idx3-ubyte.gz", "wb", 1) as file:
            file.write(struct.pack(">IIII", 0x803, count, 28, 28) + b"".join(picture(label, 28, 1) for label in labels))
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        labels = [dice.randrange(10) for _ in range(512)]
        (folder / f"cifar10/{name}.bin").write_bytes(b"".join(bytes([label]) + picture(label, 32, 3) for label in labels))
    (folder / "tiny.json").write_text(json.dumps(TINY_SAM))


def check_libraries(check):
    for file in sorted([*(check.bundle / "bin").iterdir(), *(check.bundle / "tests").iterdir(), check.bundle / "lib/libddprun_cuda.so"]):
        found = check.run(["ldd", "-r", file])
        lines = [line.strip() for line in (found.stdout + found.stderr).splitlines() if "not found" in line or "undefined symbol" in line]
        lines = [line for line in lines if not line.startswith("libcuda.so.1 ")]  # the driver's: only where there is one
        check.say(f"libraries of {file.name}", "; ".join(lines[:3]))


def check_cpu(check):
    """What a machine without a GPU can show; the CPU's losses are what the GPU's are compared with."""
    for task in TASKS:
        done = check.worker(task, f"{task}-cpu", ["--max-steps=8", "--device=cpu", "--precision=32"])
        check.say(f"{task} on the CPU", "" if done.returncode == 0 else f"exit {done.returncode}: {done.stderr[-300:]}")
    done = check.worker("toy", "hidden", ["--device=cuda"], {"CUDA_VISIBLE_DEVICES": ""})
    check.say("a GPU that is hidden or not there is named", "" if done.returncode == 2 and "--device=cuda: expected an NVIDIA GPU" in done.stderr
              else f"exit {done.returncode}: {done.stderr[-300:]}")


def check_tests(check):
    for program in sorted((check.bundle / "tests").iterdir()):
        names = check.run([program, "--list-test-names-only", "[gpu]"]).stdout.splitlines()
        for name in filter(None, names):
            done = check.run([program, name.replace(",", "\\,")])
            check.say(f"test: {name}", "" if done.returncode == 0 else f"exit {done.returncode}: {done.stdout[-600:]}")


def parted(check, done, out, beside, allowed):
    """Why a training is not as good as another one; empty if it is."""
    if done.returncode != 0:
        return f"exit {done.returncode}: {done.stderr[-400:]}"
    own, other = check.losses(out), check.losses(beside)
    if len(own) != len(other):
        return f"{len(own)} losses, expected {len(other)}"
    part = max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(own, other))
    return "" if part <= allowed else f"the losses part from those of {beside} by {part:.1%}, allowed are {allowed:.0%}"


def check_trainings(check):
    for task in TASKS:
        for precision in PRECISIONS:
            if "--channels-last" in precision and task not in ("cifar10", "mnist"):
                continue
            out = task + "-gpu" + "".join(precision)
            flags = ["--device=cuda", *precision]
            allowed = 0.01 if precision == ["--precision=32"] else 0.1
            done = check.worker(task, out, ["--max-steps=8", *flags], {"DDPRUN_SYNC_DEBUG_MODE": "error"})
            check.say(f"{task} on the GPU, {' '.join(precision)}, without a wait in a step", parted(check, done, out, f"{task}-cpu", allowed))
            # Eleven steps come before the graph. The random numbers are the GPU's in both.
            check.worker(task, out + "-eager", [*LONGER.get(task, []), "--max-steps=24", *flags])
            done = check.worker(task, out + "-graph", [*LONGER.get(task, []), "--max-steps=24", "--cuda-graph=on", *flags])
            problem = parted(check, done, out + "-graph", out + "-eager", allowed)
            check.say(f"{task} on the GPU, {' '.join(precision)}, as a CUDA graph",
                      problem or ("" if "as a CUDA graph" in done.stderr else "no graph was captured"))


def check_faults(check):
    done = check.worker("cifar10", "oom", ["--device=cuda", "--limit-train=2560", "--batch-size=2560", "--max-steps=1", "--precision=32"],
                        {"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.01", "PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.01"})
    check.say("out of memory shows the allocator's figures", "" if done.returncode == 1 and "out of memory" in done.stderr and "GiB" in done.stderr
              else f"exit {done.returncode}: {done.stderr[-400:]}")
    missing = check.worker("toy", "plugin", ["--device=cuda"], {"DDPRUN_CUDA_PLUGIN": "/no/such.so"})
    check.say("a missing plug-in is named", "" if missing.returncode == 2 and "/no/such.so" in missing.stderr else missing.stderr[-300:])
    job = subprocess.Popen([check.bundle / "bin/ddprun", "--nproc-per-node=2", check.bundle / "bin/worker", "toy", "100000", "1",
                            "--device=cuda", f"--out={check.folder / 'killed'}", "--no-tensorboard"], env=check.environment,
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    time.sleep(15)
    workers = subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True, text=True, check=False).stdout.split()
    if workers:
        os.kill(int(workers[-1]), signal.SIGKILL)
    try:
        _, errors = job.communicate(timeout=60)
        check.say("a killed rank ends the job", "" if job.returncode not in (0, None) else "it went on", errors.strip()[-200:])
    except subprocess.TimeoutExpired:
        job.kill()
        check.say("a killed rank ends the job", "not within a minute")


PYTHON = """
import sys, time, torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
task = sys.argv[1]
def block(a, b, s):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.c1, self.n1 = nn.Conv2d(a, b, 3, s, 1, bias=False), nn.BatchNorm2d(b)
            self.c2, self.n2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
            self.down = None if a == b and s == 1 else nn.Sequential(nn.Conv2d(a, b, 1, s, bias=False), nn.BatchNorm2d(b))
        def forward(self, x):
            y = self.n2(self.c2(F.relu(self.n1(self.c1(x)))))
            return F.relu(y + (x if self.down is None else self.down(x)))
    return Block()
if task == "mnist":
    model = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(),
                          nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10))
    shape, half = (1, 28, 28), False
else:
    parts, before = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()], 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        parts += [block(before, width, stride), block(width, width, 1)]
        before = width
    model = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)).to(memory_format=torch.channels_last)
    shape, half = (3, 32, 32), True
model = model.cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
data = torch.utils.data.TensorDataset(torch.rand(2048, *shape), torch.randint(10, (2048,)))
loader = torch.utils.data.DataLoader(data, 128, shuffle=True, pin_memory=True)
steps, begin = 0, None
for epoch in range(12):
    for x, y in loader:
        x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            loss = F.cross_entropy(model(x.contiguous(memory_format=torch.channels_last) if half else x), y)
        loss.backward()
        optimizer.step()
        steps += 1
    if epoch == 1:
        torch.cuda.synchronize()
        steps, begin = 0, time.time()
torch.cuda.synchronize()
print(steps / (time.time() - begin))
"""


def check_speed(check):
    for task, flags in (("mnist", []), ("cifar10", ["--precision=bf16-mixed", "--channels-last"])):
        common = ["--device=cuda", "--epochs=12", "--log-interval=1000", "--loader-threads=2", *flags]
        ours, errors = {}, ""
        for graph in ("off", "on"):
            done = check.worker(task, f"{task}-speed-{graph}", [*common, f"--cuda-graph={graph}"])
            errors += "" if done.returncode == 0 else f"--cuda-graph={graph}: {done.stderr[-300:]}"
            ours[graph] = 0 if done.returncode else max(check.rates(f"{task}-speed-{graph}"), default=0) / 128
        theirs = check.run([sys.executable, "-c", PYTHON, task])
        python = float(theirs.stdout.split()[-1]) if theirs.returncode == 0 else 0
        check.figures[task] = {"steps_per_s": ours["off"], "graph_steps_per_s": ours["on"], "python_steps_per_s": python}
        check.say(f"speed of {task}", errors or ("" if python else theirs.stderr[-300:]),
                  f"{ours['off']:.1f} steps/s, {ours['on']:.1f} with a CUDA graph, Python {python:.1f}")
        profile = check.worker(task, f"{task}-profile", ["--device=cuda", "--max-steps=20", "--profile", *flags])
        traces = list((check.folder / f"{task}-profile").rglob("*trace*.json"))
        if profile.returncode == 0 and traces:
            text = traces[0].read_text(errors="replace")
            waits = len(re.findall(r'"cuda(?:Stream|Device|Event)Synchronize"', text))
            check.figures[task].update(launches=len(re.findall(r'"cudaLaunchKernel', text)), synchronisations=waits)
            check.say(f"profile of {task}", "", str(check.figures[task]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=pathlib.Path, required=True)
    parser.add_argument("--torch", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, help="keep the runs and figures.json there")
    arguments = parser.parse_args()
    if not (arguments.torch / "lib/libtorch_cpu.so").exists():
        parser.error(f"--torch: expected a folder with lib/libtorch_cpu.so, got {arguments.torch}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.out or pathlib.Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        check = Check(arguments, folder)
        make_data(folder)
        check_libraries(check)
        check_cpu(check)
        gpu = check.run([check.bundle / "bin/worker", "env", "--device=cuda"])
        has_gpu = gpu.returncode == 0
        print(gpu.stdout if has_gpu else f"no usable GPU here: {(gpu.stdout + gpu.stderr).strip()[-200:]}", flush=True)
        if has_gpu:
            for part in (check_tests, check_trainings, check_faults, check_speed):
                part(check)
            (folder / "figures.json").write_text(json.dumps(check.figures, indent=1))
            print(json.dumps(check.figures))
    print(f"{len(check.failed)} failed" + "".join(f"\n  {what}" for what in check.failed))
    sys.exit(1 if check.failed else 0 if has_gpu else 4)


if __name__ == "__main__":
    main()
