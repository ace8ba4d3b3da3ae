#!/usr/bin/env python3
"""Checks a bundle of gpu_bundle.sh against an installed torch. The parts, in this order, each with a time limit:

  libraries   every library and symbol is found
  cpu         the tasks train on the CPU, whose losses the GPU's are compared with
  tests       the GPU tests
  trainings   every task in every precision, eager beside the CPU and as a CUDA graph beside eager; every optimizer
  faults      a hidden GPU, a missing plug-in, too little memory and a killed rank: one clear line and the right exit code;
              --preflight=gpus and --gpus beside nvidia-smi;
              a killed rank that is replaced, over Gloo and NCCL: the losses of an undisturbed run
  speed       steps per second of mnist, cifar10 and sam, eager and as a CUDA graph, beside Python's
  launch      from launch to the first step, ddprun and worker beside torchrun and Python
  profile     kernel launches and waits in a step
  accuracy    ResNet-18 to 94 % on the real CIFAR-10, if it is there

Makes its other data itself. Prints a line a check, names what there was no time for, and ends with tables for bench/RESULTS.md (in
--out: results.md and figures.json). Without a GPU it does what needs none. Exits with 1 if a check failed, with 4 if there was no
GPU and none failed. A goal that is missed is no failed check.

usage: gpu_check.sh --bundle DIR --torch .../site-packages/torch [--out DIR] [--parts A,B] [--minutes 47] [--cifar10 DIR]
"""
import argparse
import contextlib
import datetime
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from measure import check_accuracy, check_launch, check_profile, check_speed
from run import TASKS, Check, OutOfTime, children, ended, make_data, stopped_after
from table import markdown

MINUTES = {"libraries": 1, "cpu": 2, "tests": 8, "trainings": 10, "faults": 5, "speed": 8, "launch": 3, "profile": 4, "accuracy": 6}
PRECISIONS = [["--precision=32"], ["--precision=bf16-mixed"], ["--precision=16-mixed"], ["--precision=bf16-mixed", "--channels-last"]]
OPTIMIZERS = [["--optimizer=sgd", "--momentum=0.9", "--lr=0.01"], ["--optimizer=adamw"], ["--optimizer=adadelta", "--lr=0.1"]]


def check_libraries(check):
    def of(file):
        found = check.run(["ldd", "-r", file], {})
        lines = [line.strip() for line in (found.stdout + found.stderr).splitlines() if "not found" in line or "undefined symbol" in line]
        return "; ".join([line for line in lines if not line.startswith("libcuda.so.1 ")][:3])  # the driver's: only where there is one
    files = sorted([*(check.bundle / "bin").iterdir(), *(check.bundle / "tests").iterdir(), check.bundle / "lib/libddprun_cuda.so"])
    check.each([(f"libraries of {file.name}", lambda file=file: of(file)) for file in files])


def beside_cpu(task):
    """Without random numbers, which the GPU draws differently."""
    return ["--max-steps=8", *(["--dropout=0"] if task == "mnist" else [])]


def check_cpu(check):
    check.each([(f"{task} on the CPU", lambda task=task: ended(check.worker(
        task, f"{task}-cpu", [*beside_cpu(task), "--device=cpu", "--precision=32"]))) for task in TASKS], check.several())


def check_tests(check):
    programs = {"DDPRUN_PROGRAM": str(check.bundle / "bin/ddprun"), "WORKER_PROGRAM": str(check.bundle / "bin/worker")}

    def of(program, name):
        done = check.run([program, name.replace(",", "\\,")], programs)
        return "" if done.returncode == 0 else f"exit {done.returncode}: {(done.stdout + done.stderr)[-600:]}"
    for program in sorted((check.bundle / "tests").iterdir()):
        names = [name for name in check.run([program, "--list-test-names-only", "[gpu]"], {}).stdout.splitlines() if name]
        if not names:
            check.say(f"tests of {program.name}", "it has none")
        check.each([(f"test: {name}", lambda name=name: of(program, name)) for name in names], check.several())


def compared(check, what, done, out, beside, allowed):
    """Why a training is not as good as another one; empty if it is. Notes by how much their losses differ."""
    if done.returncode != 0:
        return ended(done)
    if not (check.folder / beside / "metrics.csv").exists():
        return f"no losses in {beside}"
    own, other = check.column(out, "train_loss"), check.column(beside, "train_loss")
    if len(own) != len(other):
        return f"{len(own)} losses, expected {len(other)}"
    if not all(map(math.isfinite, own)):
        return "a loss is not finite"
    difference = max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(own, other))
    check.figures.setdefault("trainings", {})[what] = difference
    return f"losses differ by {100 * difference:.1f} %, allowed are {100 * allowed:.0f} %" if difference > allowed else "", f"{100 * difference:.2f} %"


def check_trainings(check):
    def plain(what, task, flags, beside=None):
        exact = "--precision=32" in flags
        out, none = what.replace(" ", ""), {"DDPRUN_SYNC_DEBUG_MODE": "error", **({"NVIDIA_TF32_OVERRIDE": "0"} if exact else {})}
        if beside is None:
            beside = f"{task}-cpu"
        else:
            done = check.worker(task, beside, [*beside_cpu(task), "--device=cpu", *flags])
            if done.returncode != 0:
                return ended(done)
        done = check.worker(task, out, [*beside_cpu(task), "--device=cuda", *flags], none)
        return compared(check, what, done, out, beside, 0.02 if exact else 0.1)

    def graph(what, task, flags):  # eleven steps come before it; the random numbers are the GPU's in both
        out = what.replace(" ", "")
        check.worker(task, out + "-eager", ["--max-steps=24", "--device=cuda", *flags])
        done = check.worker(task, out, ["--max-steps=24", "--device=cuda", "--cuda-graph=on", *flags])
        if done.returncode == 0 and "as a CUDA graph" not in done.stderr:
            return "no graph was captured"
        return compared(check, what, done, out, out + "-eager", 0.02 if "--precision=32" in flags else 0.1)

    checks = []
    for task in TASKS:
        for precision in PRECISIONS:
            if "--channels-last" not in precision or task in ("cifar10", "mnist"):
                for kind, function in (("without a wait", plain), ("as a CUDA graph", graph)):
                    checks.append((f"{task}, {' '.join(precision)}, {kind}", function, task, precision))
    for flags in OPTIMIZERS:
        name = flags[0].split("=")[1]
        checks.append((f"mnist, {name}", lambda *given, name=name: plain(*given, beside=f"mnist-{name}-cpu"), "mnist", [*flags, "--precision=32"]))
        checks.append((f"mnist, {name}, as a CUDA graph", graph, "mnist", [*flags, "--precision=32"]))
    check.each([(what, lambda what=what, function=function, rest=rest: function(what, *rest)) for what, function, *rest in checks], check.several())


def with_killed_rank(check, words, after):
    """Runs words on two ranks under ddprun and kills the second once a line says so. The end, or why there was no kill."""
    job = subprocess.Popen([check.bundle / "bin/ddprun", "--nproc-per-node=2", *words, f"--device={check.device}", "--overwrite", "--no-tensorboard"],
                           env=check.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    with stopped_after(job, min(90, check.seconds_left())):
        next((line for line in job.stdout if after in line), None)  # it trains
        workers = [pid for pid in children(job.pid) if b"--overwrite" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()]
        if not workers:
            return "no worker is there"
        os.kill(workers[-1], signal.SIGKILL)
        out, errors = job.communicate()
    return subprocess.CompletedProcess([], job.returncode, out, errors)


def gpus():
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=30, check=True).stdout
        count = sum(line.startswith("GPU ") for line in listed.splitlines())  # without the parts of a divided one
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return count if visible is None else min(count, len(visible.split(",")))
    return 0


def killed_rank(check):
    done = with_killed_rank(check, [check.bundle / "bin/worker", "toy", "100000", "1", f"--out={check.folder / 'killed'}"], "Epoch")
    return done if isinstance(done, str) else ended(done, 128 + signal.SIGKILL, ["signal 9 (SIGKILL)"])


def replaced_rank(check, backend):
    """If there is only one GPU, NCCL takes its two ranks for those of two hosts."""
    steps = 300

    def words(out):
        return ["--recover=rank", "--max-restarts=3", "sh", "-c", f'{"" if gpus() > 1 else "NCCL_HOSTID=$RANK "}exec "$0" "$@"',
                check.bundle / "bin/worker", "mnist",
                f"--data={check.folder / 'mnist'}", "--limit-train=32768", "--batch-size=32", f"--max-steps={steps}", "--log-interval=1", "--deterministic",
                f"--backend={backend}", "--recover-on-gpu", f"--out={check.folder / out}"]
    whole, out, times = f"whole-{backend}", f"replaced-{backend}", [time.monotonic()]
    undisturbed = check.run([check.bundle / "bin/ddprun", "--nproc-per-node=2", *words(whole), f"--device={check.device}", "--overwrite",
                             "--no-tensorboard"], {})
    if undisturbed.returncode != 0:
        return ended(undisturbed)
    times.append(time.monotonic())
    done = with_killed_rank(check, words(out), "(3%)")
    times.append(time.monotonic())
    if isinstance(done, str) or done.returncode != 0:
        return done if isinstance(done, str) else ended(done)
    if "continuing from memory after step" not in done.stdout:
        return f"nothing continued from memory: {done.stderr[-400:]}"
    losses, expected = (dict(check.column(name, "step", "train_loss")) for name in (out, whole))
    if len(losses) < steps - 1 or steps not in losses:  # the row of the step before the kill may be missing
        return f"losses of {len(losses)} steps, expected {steps}"
    differ = [step for step, loss in losses.items() if loss != expected.get(step)]
    if differ:
        return f"the losses differ from step {min(differ):.0f} on"
    longer = times[2] - times[1] - (times[1] - times[0])
    check.figures.setdefault("replaced", {})[backend] = longer
    # Undisturbed it takes seconds. NCCL's watchdog would hold its rank up for a minute.
    return "much longer" if longer > 30 else "", f"{longer:.1f} s longer than undisturbed"


def gpus_of_nvml(check):
    """ddprun's preflight and --gpus, whose GPUs are those that nvidia-smi lists from the same library."""
    uuids = check.run(["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]).stdout.split()
    ddprun = [check.bundle / "bin/ddprun", "--preflight=gpus"]
    problem = ended(check.run([*ddprun, f"--nproc-per-node={len(uuids)}", "true"])) or ended(
        check.run([*ddprun, f"--nproc-per-node={len(uuids) + 1}", "true"]), 125, [f"{len(uuids)} of NVIDIA's GPUs are visible"])
    chosen = check.run([*ddprun, f"--gpus={uuids[-1]}", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"])
    known = chosen.returncode == 0 and chosen.stdout.strip() in (uuids[-1], str(len(uuids) - 1))
    return problem or ("" if known else f"--gpus={uuids[-1]}: {chosen.stdout}{chosen.stderr}")


def check_faults(check):
    def refused(task, code, line, flags, environment):
        done = check.worker(task, "fault", ["--device=cuda", *flags], environment)
        return ended(done, code, ["worker: error: ", line])

    few = "per_process_memory_fraction:0.01"
    checks = [("a hidden GPU", lambda: refused("toy", 2, "--device=cuda: expected an NVIDIA GPU", [], {"CUDA_VISIBLE_DEVICES": ""})),
              ("a killed rank", lambda: killed_rank(check)), ("a replaced rank, over gloo", lambda: replaced_rank(check, "gloo"))]
    if check.device == "cuda":
        checks += [("GPUs as the driver lists them", lambda: gpus_of_nvml(check)), ("a replaced rank, over nccl", lambda: replaced_rank(check, "nccl")),
                   ("a missing plug-in", lambda: refused("toy", 2, "/no/such.so", [], {"DDPRUN_CUDA_PLUGIN": "/no/such.so"})),
                   ("too little memory", lambda: refused("cifar10", 1, "out of memory", ["--batch-size=18432", "--max-steps=1", "--precision=32"],
                                                         {"PYTORCH_CUDA_ALLOC_CONF": few, "PYTORCH_ALLOC_CONF": few}))]
    check.each(checks)


PARTS = {"libraries": check_libraries, "cpu": check_cpu, "tests": check_tests, "trainings": check_trainings, "faults": check_faults,
         "speed": check_speed, "launch": check_launch, "profile": check_profile, "accuracy": check_accuracy}
NEED_A_GPU = {"tests", "trainings", "speed", "profile", "accuracy"}


def machine(check):
    """"NVIDIA H100 80GB HBM3, driver 580.1; 16 x Intel Xeon; torch 2.11.0+cu130; 2026-11-25"."""
    processor = next((line.partition(": ")[2].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                      if line.startswith("model name")), "unknown processor")
    version = next((line.split("'")[1] for line in (check.torch / "version.py").read_text().splitlines() if line.startswith("__version__")), "")
    gpu = "no GPU"
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        gpu = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True,
                             timeout=30, check=True).stdout.splitlines()[0].replace(", ", ", driver ")
    return f"{gpu}; {os.cpu_count()} x {processor}; torch {version}; {datetime.date.today()}"


def run_parts(check, parts):
    for name in parts:
        if check.device == "cpu" and name in NEED_A_GPU:
            check.leave(name, "needs a GPU")
            continue
        check.deadline = min(time.monotonic() + 60 * MINUTES[name], check.end)
        try:
            PARTS[name](check)
        except OutOfTime:
            check.leave(name, "no time left")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=pathlib.Path, required=True)
    parser.add_argument("--torch", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, help="keep the runs, results.md and figures.json there")
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS), help="only these, such as cpu,trainings")
    parser.add_argument("--minutes", type=float, default=47, help="limit for all parts (default: 47)")
    parser.add_argument("--cifar10", type=pathlib.Path, help="folder of CIFAR-10's binary version")
    arguments = parser.parse_args()
    if not (arguments.torch / "lib/libtorch_cpu.so").exists():
        parser.error(f"--torch: expected a folder with lib/libtorch_cpu.so, got {arguments.torch}")
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"--parts: expected some of {','.join(PARTS)}, got {','.join(unknown)}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.out or pathlib.Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        check = Check(arguments, folder)
        make_data(check)
        gpu = check.run([check.bundle / "bin/worker", "env", "--device=cuda"], {})
        check.device = "cuda" if gpu.returncode == 0 else "cpu"
        print(gpu.stdout if gpu.returncode == 0 else f"no usable GPU here: {(gpu.stdout + gpu.stderr).strip()[-200:]}", flush=True)
        run_parts(check, arguments.parts)
        check.figures.update({"machine": machine(check), "failed": check.failed, "not run": check.left})
        (folder / "figures.json").write_text(json.dumps(check.figures, indent=1))
        (folder / "results.md").write_text(markdown(check.figures))
        print(markdown(check.figures))
    print(f"{len(check.failed)} failed, {len(check.left)} not run")
    sys.exit(1 if check.failed else 0 if check.device == "cuda" else 4)


if __name__ == "__main__":
    main()
