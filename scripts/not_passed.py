#!/usr/bin/env python3
"""Prints which tests were skipped and why, and which failed with the end of what they printed, from the report of
ctest --output-junit; nothing if all passed.

usage: not_passed.py REPORT.xml
"""
import collections
import re
import sys
import xml.etree.ElementTree

# As our skip() says it, and as Catch2 3 does.
REASON = re.compile(r"(?:^skipped: |explicitly with message:\s*)(.+)", re.M)
LINES = 30  # of a failed test's output


def main():
    skipped = collections.defaultdict(list)  # names by reason
    failed = []  # names and outputs
    for test in xml.etree.ElementTree.parse(sys.argv[1]).getroot().iter("testcase"):
        output = test.findtext("system-out") or ""
        if test.get("status") == "notrun":
            reason = REASON.search(output)
            skipped[reason.group(1) if reason else "it does not say why"].append(test.get("name"))
        elif test.get("status") == "fail":
            failed.append((test.get("name"), output.rstrip().splitlines()[-LINES:]))
    if skipped:
        print(f"\n{sum(map(len, skipped.values()))} skipped:")
    for reason, tests in sorted(skipped.items()):
        print(f"  {reason} ({len(tests)})")
        for name in tests:
            print(f"    {name}")
    if failed:
        print(f"\n{len(failed)} failed:")
    for name, lines in failed:
        print(f"  {name}")
        for line in lines:
            print(f"    {line}")


if __name__ == "__main__":
    main()
