#!/usr/bin/env python3
"""Prints which tests were skipped and why, from the report of ctest --output-junit; nothing if none were.

usage: skipped_tests.py REPORT.xml
"""
import collections
import re
import sys
import xml.etree.ElementTree

# As our skip() says it, and as Catch2 3 does.
REASON = re.compile(r"(?:^skipped: |explicitly with message:\s*)(.+)", re.M)


def main():
    names = collections.defaultdict(list)  # by reason
    for test in xml.etree.ElementTree.parse(sys.argv[1]).getroot().iter("testcase"):
        if test.get("status") == "notrun":
            reason = REASON.search(test.findtext("system-out") or "")
            names[reason.group(1) if reason else "it does not say why"].append(test.get("name"))
    if names:
        print(f"\n{sum(map(len, names.values()))} skipped:")
    for reason, tests in sorted(names.items()):
        print(f"  {reason} ({len(tests)})")
        for name in tests:
            print(f"    {name}")


if __name__ == "__main__":
    main()
