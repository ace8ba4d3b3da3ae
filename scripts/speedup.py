#!/usr/bin/env python3
"""Compares runs of one training on different numbers of ranks by their summaries: a table of speed, speed-up and
efficiency over that of the fewest ranks on stdout, and a picture.

usage: speedup.py RUN_FOLDER... [--picture FILE.svg]
"""
import argparse
import json
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


def picture(runs):
    """The measured and the ideal speed-up over the number of ranks, as an SVG file."""
    first = runs[0]["world_size"]
    ranks = [run["world_size"] for run in runs]
    measured = [speedup_of(run, runs[0]) for run in runs]
    ideal = [rank / first for rank in ranks]
    left, top, right, bottom = 70, 60, 780, 440
    most = max(measured + ideal)
    span = max(ranks[-1] - first, 1)

    def place(rank, speedup):
        return f"{left + (rank - first) / span * (right - left):.1f},{bottom - speedup / most * (bottom - top):.1f}"

    def curve(values, colour):
        points = " ".join(place(rank, value) for rank, value in zip(ranks, values))
        marks = "".join('<circle cx="{}" cy="{}" r="4"/>'.format(*point.split(",")) for point in points.split())
        return f'<g stroke="{colour}" fill="{colour}"><polyline points="{points}" fill="none" stroke-width="2"/>{marks}</g>'

    def text(x, y, words, more=""):
        return f'<text x="{x}" y="{y}" {more}>{escape(words)}</text>'

    labels = [text(*place(rank, 0).split(","), str(rank), 'dy="20" text-anchor="middle"') for rank in ranks]
    labels += [text(*place(first, value).split(","), f"{value:g}", 'dx="-8" dy="4" text-anchor="end"') for value in ideal]
    return "\n".join([
        '<svg xmlns="http://www.w3.org/2000/svg" width="800" height="500" font-family="sans-serif" font-size="13">',
        '<rect width="800" height="500" fill="white"/>',
        text(14, 26, f"{runs[0]['task']}: speed-up", 'font-size="16" font-weight="bold"'),
        text(14, 48, "measured", 'fill="#0072b2"'), text(90, 48, "ideal", 'fill="#d55e00"'),
        f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="#888"/>', *labels,
        text((left + right) / 2, 485, "ranks", 'text-anchor="middle"'),
        text(-250, 20, f"times as fast as {first}", 'text-anchor="middle" transform="rotate(-90)"'),
        curve(measured, "#0072b2"), curve(ideal, "#d55e00"), "</svg>\n"])


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
