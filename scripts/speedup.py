#!/usr/bin/env python3
"""Compares runs of one training on different numbers of ranks by their summaries: a table of speed, speed-up and
efficiency over that of the fewest ranks on stdout, and a picture.

usage: speedup.py RUN_FOLDER... [--picture FILE.svg]
"""
import argparse
import json
import math
import pathlib
import sys
from xml.sax.saxutils import escape

KEYS = ("task", "world_size", "seconds", "samples_per_second")


class Parser(argparse.ArgumentParser):
    def error(self, message):
        fail(2, message)


def fail(status, message):
    print(f"speedup: {message}", file=sys.stderr)
    sys.exit(status)


def read_run(folder):
    path = folder / "summary.json"
    try:
        summary = json.loads(path.read_bytes())
        return {key: summary[key] for key in KEYS}
    except OSError as error:
        fail(1, f"{path}: {error.strerror}")
    except (ValueError, KeyError, TypeError):
        fail(1, f"{path}: expected the summary of a run")


def read_runs(folders):
    runs = sorted((read_run(folder) for folder in folders), key=lambda run: run["world_size"])
    for before, run in zip(runs, runs[1:]):
        if run["task"] != runs[0]["task"]:
            fail(2, f"expected runs of one task, got {runs[0]['task']} and {run['task']}")
        if run["world_size"] == before["world_size"]:
            fail(2, f"got two runs of {run['world_size']} ranks")
    return runs


def speedup_of(run, first):
    return run["samples_per_second"] / first["samples_per_second"]


def table(runs):
    yield "| ranks | whole job, s | samples/s | speed-up | efficiency |\n|---|---|---|---|---|"
    for run in runs:
        speedup = speedup_of(run, runs[0])
        efficiency = 100 * speedup * runs[0]["world_size"] / run["world_size"]
        yield (f"| {run['world_size']} | {run['seconds']:.2f} | {run['samples_per_second']:.0f} | {speedup:.2f} | "
               f"{efficiency:.0f} % |")


# The inks of worker's charts (worker/ddprun/report/charts.cpp), on a white ground and on a dark one.
INKS = {"ground": ("#ffffff", "#16191d"), "ink": ("#212429", "#e6e8ea"), "quiet": ("#61666e", "#9aa1a9"),
        "grid": ("#dee0e6", "#30373f"), "on": ("#ffffff", "#16191d"),
        "c0": ("#2563eb", "#6ea8fe"), "c1": ("#ea580c", "#fb923c")}
LEFT, TOP, WIDTH, HEIGHT, BETWEEN = 56, 84, 320, 330, 72  # of a panel, and to the next one


def text(x, y, words, ink="ink", anchor="middle", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{ink}" fill="{INKS[ink][0]}" {more}>{escape(words)}</text>'


def line(x, y, right, ink, more=""):
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{right:.1f}" y2="{y:.1f}" class="{ink}" stroke="{INKS[ink][0]}" {more}/>'


def nice_step(most):
    """1, 2 or 5 times a power of ten, so that at most six lines of the grid fit below it."""
    power = 10 ** math.floor(math.log10(most / 6))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= most / 6)


def panel(left, title, labels, values, ideals, shown):
    """Bars with their values, on a grid; a dashed line is the ideal."""
    most = 1.08 * max(values + ideals)
    step = nice_step(most)

    def height(value):
        return TOP + HEIGHT * (1 - value / most)

    yield text(left, TOP - 18, title, anchor="start", more='font-size="14" font-weight="bold"')
    for i in range(int(most / step) + 1):
        yield line(left, height(i * step), left + WIDTH, "grid")
        yield text(left - 8, height(i * step) + 4, f"{i * step:g}", "quiet", "end", 'font-size="12"')
    place = WIDTH / len(values)
    for i, (label, value, ideal) in enumerate(zip(labels, values, ideals)):
        middle, half = left + (i + 0.5) * place, min(0.32 * place, 40)
        yield (f'<rect x="{middle - half:.1f}" y="{height(value):.1f}" width="{2 * half:.1f}" height="{TOP + HEIGHT - height(value):.1f}" '
               f'class="c0" fill="{INKS["c0"][0]}"/>')
        yield line(middle - half - 4, height(ideal), middle + half + 4, "c1", 'stroke-width="2" stroke-dasharray="6 4"')
        # In the bar if the ideal's line is where it would be above it.
        above = value >= ideal or height(value) - height(ideal) > 20 or TOP + HEIGHT - height(value) < 24
        yield text(middle, height(value) + (-6 if above else 18), shown(value), "ink" if above else "on", more='font-weight="bold"')
        yield text(middle, TOP + HEIGHT + 20, label, "quiet")
    yield text(left + WIDTH / 2, TOP + HEIGHT + 42, "ranks", "quiet")


def picture(runs):
    """Bars of speed-up and efficiency for each number of ranks, as an SVG file."""
    first = runs[0]["world_size"]
    ranks = [run["world_size"] for run in runs]
    speedups = [speedup_of(run, runs[0]) for run in runs]
    ideals = [rank / first for rank in ranks]
    labels = [str(rank) for rank in ranks]
    efficiencies = [100 * speedup / ideal for speedup, ideal in zip(speedups, ideals)]
    of = f"{first} rank" + ("" if first == 1 else "s")
    right = LEFT + WIDTH + BETWEEN
    dark = "\n".join(f".{name}:not([stroke]) {{ fill: {ink}; }}\n.{name}[stroke] {{ stroke: {ink}; }}" for name, (_, ink) in INKS.items())
    return "\n".join([
        '<svg xmlns="http://www.w3.org/2000/svg" width="800" height="480" viewBox="0 0 800 480" font-size="13" '
        "font-family=\"system-ui, 'DejaVu Sans', Arial, sans-serif\">",
        f"<style>\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n</style>",
        f'<rect width="800" height="480" class="ground" fill="{INKS["ground"][0]}"/>',
        text(14, 26, f"{runs[0]['task']}: speed-up and efficiency", anchor="start", more='font-size="16" font-weight="bold"'),
        line(700, 22, 724, "c1", 'stroke-width="2" stroke-dasharray="6 4"'), text(730, 26, "ideal", anchor="start"),
        *panel(LEFT, f"speed-up: times as fast as {of}", labels, speedups, ideals, "{:.2f}".format),
        *panel(right, "efficiency: % of the ideal speed-up", labels, efficiencies, [100] * len(ranks), "{:.0f} %".format),
        "</svg>\n"])


def main():
    parser = Parser(prog="speedup.py", description="Compares runs of one training on different numbers of ranks.")
    parser.add_argument("runs", nargs="*", type=pathlib.Path, metavar="RUN_FOLDER", help="folders with a summary.json")
    parser.add_argument("--picture", type=pathlib.Path, metavar="FILE", help="draw it as an SVG file")
    arguments = parser.parse_args()
    if not arguments.runs:
        parser.error("RUN_FOLDER is required")
    runs = read_runs(arguments.runs)
    print("\n".join(table(runs)))
    if arguments.picture:
        arguments.picture.write_text(picture(runs))


if __name__ == "__main__":
    main()
