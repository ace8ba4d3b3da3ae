"""What check.py measures: steps per second, starts, kernel launches and waits, and the time to 94 % on CIFAR-10."""
import json
import os
import pathlib
import statistics
import subprocess
import time

from run import LIMIT, ended, stopped_after
from table import calls_per_step

SPEED = {"mnist": ["--limit-train=60000"], "sam": [],
         "cifar10": ["--batch-size=128", "--precision=bf16-mixed", "--channels-last", "--cudnn-benchmark"]}
BATCH = {"mnist": 128, "cifar10": 128, "sam": 2}
EPOCHS_TO_94 = (10, 15, 20, 30)
RECIPE = ["--stem=cifar", "--precision=bf16-mixed", "--channels-last", "--cudnn-benchmark", "--cuda-graph=auto", "--batch-size=512",
          "--drop-last", "--val-split=0", "--monitor=train_loss_epoch", "--patience=0", "--save-top-k=0", "--save-every=1000", "--lr=0.4",
          "--lr-schedule=cosine", "--lr-interval=step", "--t-max=epochs", "--warmup-steps=194", "--label-smoothing=0.1", "--clip-norm=0",
          "--loader-threads=12", "--log-interval=1000", "--no-report", "--no-tensorboard"]


def check_speed(check):
    def of(task):
        rates = check.figures.setdefault("speed", {}).setdefault(task, {})
        problems = []
        for graph in ("off", "on"):
            out = f"{task}-speed-{graph}"
            done = check.worker(task, out, [f"--device={check.device}", "--epochs=6", "--log-interval=1000", "--loader-threads=8", *SPEED[task],
                                            f"--cuda-graph={graph}"])
            if done.returncode == 0:  # the first epoch has warm-up and capture
                rates["eager" if graph == "off" else "graph"] = statistics.median(check.column(out, "samples_per_second")[1:]) / BATCH[task]
            else:
                problems.append(f"--cuda-graph={graph}: {ended(done)}")
        for mode, name in (("eager", "python"), ("graph", "python_graph"), ("loader", "python_loader")):
            done = check.run([check.python, check.bundle / "gpu_bundle/python.py", "steps", task, mode, f"--device={check.device}",
                              f"--sam={check.bundle / 'sam_nuclei.json'}"])
            rates[name] = float(done.stdout.split()[-1]) if done.returncode == 0 else "failed"
            if done.returncode != 0 and mode == "eager":
                problems.append(f"Python: {done.stderr[-300:]}")
        return "; ".join(problems), ", ".join(f"{name} {rate if isinstance(rate, str) else format(rate, '.1f')}" for name, rate in rates.items())
    check.each([(f"speed of {task}", lambda task=task: of(task)) for task in SPEED])


def seconds_to(check, line, words, environment):
    """From the start of a job to its first line with these words."""
    begin = time.monotonic()
    job = subprocess.Popen(list(map(str, words)), env=environment, cwd=check.folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                           start_new_session=True)
    with stopped_after(job, min(LIMIT, check.seconds_left())):
        found = any(line in one for one in job.stdout)
        took = time.monotonic() - begin
        job.communicate()
    check.seconds_left()
    return took if found and job.returncode == 0 else None


def check_launch(check):
    launch = {"device": check.device, "worker": [], "python": []}

    def turn():
        ours = seconds_to(check, "Train Epoch", [
            check.bundle / "bin/ddprun", "--nproc-per-node=1", check.bundle / "bin/worker", "mnist", f"--data={check.folder / 'mnist'}",
            f"--device={check.device}", "--max-steps=1", "--log-interval=1", f"--out={check.folder / 'launch'}", "--overwrite"], check.environment)
        theirs = seconds_to(check, "first step", [
            check.python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=1", check.bundle / "gpu_bundle/python.py", "first",
            check.folder / "mnist", f"--device={check.device}"], dict(os.environ))
        if ours is None or theirs is None:
            return f"{'ours' if ours is None else 'Python'} had no first step, or failed"
        launch["worker"].append(ours)
        launch["python"].append(theirs)
        check.figures["launch"] = launch
        return "", f"{ours:.2f} s, Python {theirs:.2f} s"
    check.each([(f"launch to the first step on {check.device}, {i} of 5", turn) for i in range(1, 6)])


def check_profile(check):
    def of(task, graph):
        out = f"{task}-profile-{graph}"
        done = check.worker(task, out, [f"--device={check.device}", "--max-steps=24", "--log-interval=1000", "--profile", *SPEED[task],
                                        f"--cuda-graph={graph}"])
        if done.returncode != 0 or "profile of 10 steps" not in done.stderr:
            return ended(done) or f"no profile of ten steps: {done.stderr[-300:]}"
        try:
            launches, waits, names = calls_per_step(json.loads((check.folder / out / "profile/trace.json").read_text()), 10)
        except ValueError as error:
            return str(error)
        if check.device == "cuda":
            check.figures.setdefault("profile", {})[task + (", CUDA graph" if graph == "on" else "")] = {
                "launches": launches, "waits": waits, "names": names}
        return "", f"{launches:.1f} launches and {waits:.1f} waits a step"
    check.each([(f"profile of {task}, --cuda-graph={graph}", lambda task=task, graph=graph: of(task, graph))
                for task in SPEED for graph in (("off", "on") if check.device == "cuda" else ("off",))])


def check_accuracy(check):
    places = [check.cifar10, *(pathlib.Path(folder) / "cifar10" for folder in [os.environ.get("DDPRUN_DATA")] if folder)]
    folder = next((place for place in places if place and next(place.rglob("data_batch_1.bin"), None)), None)
    if folder is None:
        return check.leave("ResNet-18 to 94 %", "no CIFAR-10 (--cifar10 DIR, or $DDPRUN_DATA/cifar10)")

    def of(epochs):
        if check.figures.get("accuracy", {}).get("accuracy", 0) >= 0.94:
            return "", "reached before"
        begin = time.monotonic()
        out = check.folder / f"accuracy-{epochs}"
        done = check.run([check.bundle / "bin/worker", "cifar10", f"--data={folder.resolve()}", f"--out={out}", "--overwrite",
                          f"--device={check.device}", f"--epochs={epochs}", *RECIPE], {})
        took = time.monotonic() - begin
        if done.returncode != 0:
            return ended(done)
        accuracy = json.loads((out / "summary.json").read_text())["test_acc"]
        check.figures["accuracy"] = {"epochs": epochs, "accuracy": accuracy, "seconds": took}
        return "", f"{100 * accuracy:.2f} % after {took:.1f} s"
    check.each([(f"ResNet-18, {epochs} epochs", lambda epochs=epochs: of(epochs)) for epochs in EPOCHS_TO_94])
