#!/usr/bin/env python3
"""SAM's training with point prompts, side by side in one run: ddprun + worker against torchrun + a Python script.

usage: sam.py --torchrun TORCHRUN --script PYTHON_SCRIPT --data FOLDER [--sides 256] [--steps 10] [--runs 3]

FOLDER holds images/ and masks/. The script gets FOLDER --image-size N --steps N --batch-size 2 and prints a JSON line with
images_per_second (of all ranks, without its first two steps) and peak_mb. The model is the worker's `small` with another
image size: 4 layers of 192, windows of 14 patches but in the last. Two ranks, one thread and two images a step each.
Runs take turns; medians (min-max in brackets), and the medians of the ratios within a turn.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from training import cell, run_script, run_worker  # noqa: E402

BATCH, RANKS = 2, 2


def architecture(folder, side):
    path = pathlib.Path(folder, "config.json")
    path.write_text(json.dumps({
        "vision_config": dict(hidden_size=192, num_hidden_layers=4, num_attention_heads=3, mlp_dim=768, image_size=side,
                              global_attn_indexes=[3]),
        "prompt_encoder_config": dict(image_size=side)}))
    return path


def run_both(arguments, side):
    steps, batch = str(arguments.steps), str(BATCH)
    with tempfile.TemporaryDirectory() as folder:
        ours = run_worker(["sam", "--architecture", architecture(folder, side), "--data", arguments.data, "--batch-size", batch,
                           "--max-steps", steps, "--optimizer", "adam", "--lr", "1e-5", "--warmup-steps", "0",
                           "--limit-val", "2", "--sanity-batches", "0", "--no-report", "--no-tensorboard"])
    theirs = run_script(arguments.torchrun, [arguments.script, arguments.data, "--image-size", str(side), "--steps", steps,
                                             "--batch-size", batch], "images_per_second")
    return ours, theirs


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--torchrun", required=True)
    parser.add_argument("--script", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--sides", default="256")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("LOGLEVEL", "ERROR")
    print("| image side | program | images/s | times | CPU s an image and rank, training and start | peak MB per rank | of Python's |\n"
          "|---|---|---|---|---|---|---|")
    for side in map(int, arguments.sides.split(",")):
        ours, theirs = [], []
        for _ in range(arguments.runs):
            for runs, run in zip((ours, theirs), run_both(arguments, side)):
                runs.append(run)
        for name, runs in (("worker", ours), ("Python under torchrun", theirs)):
            rate = statistics.median(r["rate"] / t["rate"] for r, t in zip(runs, theirs))
            share = statistics.median(r["peak"] / t["peak"] for r, t in zip(runs, theirs))
            print(f"| {side} | {name} | {cell([r['rate'] for r in runs], 2)} | {rate:.2f} | "
                  f"{statistics.median(r['cpu'] for r in runs) / (arguments.steps * BATCH * RANKS):.2f} | "
                  f"{cell([r['peak'] for r in runs])} | {share:.0%} |", flush=True)


if __name__ == "__main__":
    main()
