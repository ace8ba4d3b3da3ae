#!/usr/bin/env python3
"""Names the tests that failed and passed at their second attempt, in what ctest printed, each as a line for tests/second_attempts.txt.
Exits with 1 if that list already has three runs of one of them.

usage: second_attempts.py LOG COMMIT
"""
import collections
import datetime
import pathlib
import re
import sys

LIST = pathlib.Path(__file__).resolve().parents[1] / "tests" / "second_attempts.txt"
MOST = 3  # runs of a test in the list
ENDED = re.compile(r"Test +(#\d+): (.*?) \.\.+ *(\*\*\*(?:Failed|Timeout|Exception)|Passed )")


def needed_two(log):
    failed, names = set(), []
    for number, name, how in ENDED.findall(log):
        if how != "Passed ":
            failed.add(number)
        elif number in failed:
            names.append(name)
    return names


def runs_of(text):
    """How many runs of each test a list has: its lines are DATE COMMIT TEST."""
    return collections.Counter(line.split(maxsplit=2)[2] for line in text.splitlines() if line and not line.startswith("#"))


def main():
    log, commit = pathlib.Path(sys.argv[1]).read_text(errors="replace"), sys.argv[2]
    runs = runs_of(LIST.read_text()) if LIST.exists() else {}
    too_many = False
    for name in needed_two(log):
        print(f"  {datetime.date.today()} {commit[:12] or '-'} {name}")
        if runs.get(name, 0) >= MOST:
            print(f"    needed it in {MOST} runs before: repair it, and remove its lines from tests/second_attempts.txt")
            too_many = True
    return 1 if too_many else 0


if __name__ == "__main__":
    sys.exit(main())
