"""What check.py reads from Chrome traces, and what it writes for bench/RESULTS.md."""
import re
import statistics

LAUNCH = re.compile(r"cu(da)?(LaunchKernel|LaunchCooperativeKernel|GraphLaunch)")
WAIT = re.compile(r"cu(da)?((Stream|Device|Event|Ctx)Synchronize|Memcpy(?!\w*Async))")
GRAPH = re.compile(r"cu(da)?GraphLaunch")
UPDATE = re.compile(r"aten::_fused_(sgd|adamw?)_$")


def calls_per_step(trace, steps):
    """Kernel launches a step, waits a step, and the names of what waited, in all threads. A step lasts from one launch of the
    CUDA graph to the next if the trace has two or more, else from one update of the optimizer to the next.

    trace  a Chrome trace of Kineto's; steps  how many it has recorded
    """
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    marks = sorted(event["ts"] for event in events if GRAPH.match(event["name"]))
    if len(marks) < 2:
        marks = sorted(event["ts"] for event in events if UPDATE.match(event["name"]))
        if steps < 2 or not marks or len(marks) % steps:
            raise ValueError(f"{len(marks)} updates of a fused optimizer in {steps} steps")
        marks = marks[::len(marks) // steps]  # one for each group of parameters
    names = [event["name"] for event in events if marks[0] <= event["ts"] < marks[-1]]
    waits = [name for name in names if WAIT.match(name)]
    whole = len(marks) - 1
    return sum(map(bool, map(LAUNCH.match, names))) / whole, len(waits) / whole, sorted(set(waits))


def ratio(a, b):
    """None if one was not measured."""
    return a / b if isinstance(a, float) and isinstance(b, float) else None


def goals(figures):
    """(what, wanted, measured or None, whether it holds) for each"""
    speed, launch, accuracy = figures.get("speed", {}), figures.get("launch", {}), figures.get("accuracy") or {}
    mnist, resnet = speed.get("mnist", {}), speed.get("cifar10", {})
    waits = [one["waits"] for one in figures.get("profile", {}).values()]
    # On a CPU the start says nothing about a GPU's.
    started = [statistics.median(launch[who]) for who in ("worker", "python")] if launch.get("device") == "cuda" else [None, None]
    reached = accuracy.get("seconds") if accuracy.get("accuracy", 0) >= 0.94 else None
    rows = [("MNIST, batches of 128, as a CUDA graph: steps/s beside Python's eager ones", "at least 5 times",
             ratio(mnist.get("graph"), mnist.get("python")), lambda x: x >= 5, "{:.2f} times"),
            ("ResNet-18, bf16-mixed, channels-last: steps/s beside Python's eager ones", "at least 1.3 times",
             ratio(max((resnet[how] for how in ("eager", "graph") if how in resnet), default=None), resnet.get("python")), lambda x: x >= 1.3, "{:.2f} times"),
            ("waits for the GPU in a step", "0", max(waits, default=None), lambda x: x == 0, "{:.1f}"),
            ("from launch to the first step, beside Python's", "at most a third", ratio(*started), lambda x: x <= 1 / 3, "{:.2f}"),
            ("ResNet-18 reaches 94 % on CIFAR-10, whole process", "less than 15 s", reached, lambda x: x < 15, "{:.1f} s")]
    return [(what, wanted, None if value is None else form.format(value), value is not None and holds(value))
            for what, wanted, value, holds, form in rows]


def cell(value, form="{:.1f}"):
    return form.format(value) if isinstance(value, (int, float)) else value or "-"


def table(head, rows):
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]) + "\n"


def markdown(figures):
    parts = [f"## On a GPU\n\n{figures['machine']}. Python runs on batches that are in memory unless it says DataLoader.\n",
             table(["goal", "wanted", "measured", "holds"],
                   [[what, wanted, measured or "not measured", "yes" if holds else "no" if measured else "-"]
                    for what, wanted, measured, holds in goals(figures)])]
    if speed := figures.get("speed"):
        columns = {"eager": "worker", "graph": "worker, CUDA graph", "python": "Python", "python_graph": "Python, CUDA graph",
                   "python_loader": "Python, DataLoader"}
        parts.append(table(["steps/s", *columns.values()],
                           [[task, *(cell(rates.get(column)) for column in columns)] for task, rates in speed.items()]))
    if profile := figures.get("profile"):
        parts.append(table(["in a step", "kernel and graph launches", "waits", "what waits"],
                           [[what, cell(one["launches"]), cell(one["waits"]), ", ".join(one["names"]) or "-"]
                            for what, one in profile.items()]))
    if launch := figures.get("launch"):
        parts.append(table([f"launch to the first step of MNIST, on {launch['device']}, s", "median", "lowest and highest"],
                           [[name, f"{statistics.median(launch[who]):.2f}", f"{min(launch[who]):.2f}-{max(launch[who]):.2f}"]
                            for who, name in (("worker", "ddprun + worker"), ("python", "torchrun + Python"))]))
    if trainings := figures.get("trainings"):
        parts.append(table(["training, losses beside the CPU's or, as a graph, the GPU's", "largest difference"],
                           [[what, f"{100 * part:.2f} %"] for what, part in trainings.items()]))
    if accuracy := figures.get("accuracy"):
        parts.append(f"ResNet-18 on CIFAR-10, {accuracy['epochs']} epochs: {100 * accuracy['accuracy']:.2f} % after {accuracy['seconds']:.1f} s.\n")
    if replaced := figures.get("replaced"):
        parts.append("A rank of two that train MNIST is killed and replaced, seconds longer than undisturbed: " +
                     ", ".join(f"{seconds:.1f} over {backend}" for backend, seconds in replaced.items()) + ".\n")
    for name in ("failed", "not run"):
        if figures.get(name):
            parts.append(f"{name.capitalize()}:\n\n" + "".join(f"- {what}\n" for what in figures[name]))
    return "\n".join(parts)
