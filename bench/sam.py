#!/usr/bin/env python3
"""SAM's training with point prompts, side by side in one run: ddprun + worker against torchrun + a Python script.

usage: sam.py --torchrun TORCHRUN --script PYTHON_SCRIPT --data FOLDER [--sides 256] [--steps 10] [--runs 3]
       sam.py --checkpointing --data FOLDER [--sides 512] [--steps 10] [--runs 3]

FOLDER holds images/ and masks/. The script gets FOLDER --image-size N --steps N --batch-size 2 and prints a JSON line with
images_per_second (of all ranks, without its first two steps) and peak_mb. The model is the worker's `small` with another
image size: 4 layers of 192, windows of 14 patches in all but the last. Two ranks, one thread and two images per step each.
Runs take turns; medians (min-max in brackets), and the medians of the ratios within a turn.
--checkpointing: only the worker, without and with --gradient-checkpointing.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from training import RANKS, cell, run_script, run_worker  # noqa: E402

BATCH = 2


def architecture(folder, side):
    path = pathlib.Path(folder, "config.json")
    path.write_text(json.dumps({
        "vision_config": dict(hidden_size=192, num_hidden_layers=4, num_attention_heads=3, mlp_dim=768, image_size=side,
                              global_attn_indexes=[3]),
        "prompt_encoder_config": dict(image_size=side)}))
    return path


def run_ours(arguments, side, *flags):
    with tempfile.TemporaryDirectory() as folder:
        return run_worker(["sam", "--architecture", architecture(folder, side), "--data", arguments.data,
                           "--batch-size", str(BATCH), "--max-steps", str(arguments.steps), "--loader-threads", "0",
                           "--optimizer", "adam", "--lr", "1e-5", "--warmup-steps", "0", "--limit-val", "2",
                           "--sanity-batches", "0", "--no-report", "--no-tensorboard", *flags])


def run_theirs(arguments, side):
    return run_script(arguments.torchrun, [arguments.script, arguments.data, "--image-size", str(side),
                                           "--steps", str(arguments.steps), "--batch-size", str(BATCH)], "images_per_second")


def compare(arguments, side, programs):
    """programs: name -> function that runs it once. The last is the reference for the others"""
    results = {name: [] for name in programs}
    for _ in range(arguments.runs):
        for name, run in programs.items():
            results[name].append(run())
    by = list(results.values())[-1]
    for name, runs in results.items():
        rate = statistics.median(r["rate"] / b["rate"] for r, b in zip(runs, by))
        share = statistics.median(r["peak"] / b["peak"] for r, b in zip(runs, by))
        print(f"| {side} | {name} | {cell([r['rate'] for r in runs], 2)} | {rate:.2f} | "
              f"{statistics.median(r['cpu'] for r in runs) / (arguments.steps * BATCH * RANKS):.2f} | "
              f"{cell([r['peak'] for r in runs])} | {share:.0%} |", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--torchrun")
    parser.add_argument("--script")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--data", required=True)
    parser.add_argument("--sides", default="256")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    if not arguments.checkpointing and not (arguments.torchrun and arguments.script):
        parser.error("expected --torchrun and --script, or --checkpointing")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("LOGLEVEL", "ERROR")
    of = "without" if arguments.checkpointing else "Python's"
    print("| image side | program | images/s | times | CPU s an image and rank, training and start | peak MB per rank "
          f"| of {of} |\n|---|---|---|---|---|---|---|")
    for side in map(int, arguments.sides.split(",")):
        if arguments.checkpointing:
            programs = {"worker --gradient-checkpointing": lambda: run_ours(arguments, side, "--gradient-checkpointing"),
                        "worker": lambda: run_ours(arguments, side)}
        else:
            programs = {"worker": lambda: run_ours(arguments, side),
                        "Python under torchrun": lambda: run_theirs(arguments, side)}
        compare(arguments, side, programs)


if __name__ == "__main__":
    main()
