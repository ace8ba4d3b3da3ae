#!/usr/bin/env python3
"""Checks what no build reads: every Python file compiles, every shell script parses, Markdown files link to and name files that exist,
no file contains merge markers, no test's name begins with "-", no C++ expression awaits after "&&", "||" or "?": GCC 12 awaits there even
if it should not; and the launcher takes the time from launcher/events/clock.h, which tests can stop.

usage: check_syntax.py [ROOT]      looks at the files that git knows; exit status 1 if one is wrong
"""
import pathlib
import re
import subprocess
import sys

MERGE_MARK = re.compile(rb"^(<<<<<<<|\|\|\|\|\|\|\||>>>>>>>)( |\r?$)", re.M)
LINK = re.compile(rb"\]\(([^)#\s:]+)(#[^)]*)?\)")  # to another file of ours; scripts/docs.sh checks anchors within docs/
SOURCE = re.compile(rb"`((?:common|launcher|worker|tests|scripts|examples|bench|cmake)/[\w./-]+\.\w+)`")  # decisions may name old ones
REAL_CLOCK = re.compile(rb"^(?!.*// the real clock).*\b(?:steady|system)_(?:clock::now|timer)\b", re.M)
FLAG_CASE = re.compile(rb'TEST_CASE\(\s*"-')
SHELL = re.compile(rb"#!\S*(/env )?\S*\b(bash|sh)\b")

CPP_NOISE = re.compile(rb'//[^\n]*|/\*.*?\*/|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.M | re.S)
CPP_MARK = re.compile(rb"\b(?:co_await|and|or)\b|&&|\|\||[!=<>]=|[?;{}(),=]")
CPP_VALUE = re.compile(rb"(?<![\w:<>])(?<!->)(?<!-> )[\w:<][\w:<>]*\s*$")  # before the "{" of a value, as in Point{1, 2}


def tracked(root):
    listed = subprocess.run(["git", "-c", "safe.directory=*", "-C", str(root), "ls-files", "-z"], capture_output=True)
    if listed.returncode != 0:
        sys.exit(f"{root}: expected a checkout of git: {listed.stderr.decode().strip()}")
    return [name for name in listed.stdout.decode().split("\0") if name and (root / name).is_file()]


def awaits_conditionally(content):
    """The offset of each co_await that is evaluated depending on what stands before it in its expression."""
    code = CPP_NOISE.sub(lambda found: re.sub(rb"[^\n]", b" ", found[0]), content)
    depends = [False]  # for each open parenthesis or brace: whether "&&", "||" or "?" came before in this operand
    blocks = [0]  # where in that list the innermost function or block begins
    for mark in CPP_MARK.finditer(code):
        if mark[0] in (b"(", b"{"):
            depends.append(False)
            if mark[0] == b"{" and not CPP_VALUE.search(code, max(0, mark.start() - 80), mark.start()):
                blocks.append(len(depends) - 1)
        elif mark[0] in (b")", b"}"):
            del depends[max(len(depends) - 1, 1):]
            while blocks[-1] >= len(depends):
                blocks.pop()
        elif mark[0] in (b",", b"=", b";"):
            depends[-1] = False
        elif mark[0] in (b"&&", b"||", b"?", b"and", b"or"):
            depends[-1] = True
        elif mark[0] == b"co_await" and any(depends[blocks[-1]:]):
            yield mark.start()


def faults(root, name):
    content = (root / name).read_bytes()
    for mark in MERGE_MARK.finditer(content):
        line = content.count(b"\n", 0, mark.start()) + 1
        yield f"{name}:{line}: the mark of a merge"
    for offset in awaits_conditionally(content) if name.endswith((".cpp", ".h")) else ():
        line = content.count(b"\n", 0, offset) + 1
        yield f"{name}:{line}: co_await after &&, || or ?: GCC 12 awaits in any case; expected a statement of its own"
    for clock in REAL_CLOCK.finditer(content) if name.startswith("launcher/") and name != "launcher/events/clock.h" else ():
        line = content.count(b"\n", 0, clock.start()) + 1
        yield f"{name}:{line}: a clock that tests cannot stop: expected LoopClock, WallClock, Timer or WallTimer, or '// the real clock: why'"
    for case in FLAG_CASE.finditer(content) if name.endswith("_test.cpp") else ():
        line = content.count(b"\n", 0, case.start()) + 1
        yield f"{name}:{line}: a test's name that begins with '-': Catch2 takes it for a flag of its own"
    if name.endswith(".py"):
        try:
            compile(content, name, "exec")
        except (SyntaxError, ValueError) as error:
            yield f"{name}:{getattr(error, 'lineno', 0)}: {error}"
    if name.endswith(".md"):
        for link in LINK.finditer(content):
            if not (root / name).parent.joinpath(link[1].decode()).exists():
                line = content.count(b"\n", 0, link.start()) + 1
                yield f"{name}:{line}: dead link to {link[1].decode()}"
        for source in SOURCE.finditer(content) if not name.startswith("docs/decisions/") else ():
            if not (root / source[1].decode()).exists():
                line = content.count(b"\n", 0, source.start()) + 1
                yield f"{name}:{line}: no such file: {source[1].decode()}"
    if name.endswith((".sh", ".bash")) or SHELL.match(content):
        done = subprocess.run(["bash", "-n", name], cwd=root, capture_output=True, text=True)
        if done.returncode != 0:
            yield done.stderr.strip()


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    files = tracked(root)
    found = [fault for name in files for fault in faults(root, name)]
    for fault in found:
        print(fault)
    print(f"{len(files)} files, {len(found)} faults")
    sys.exit(1 if found or not files else 0)


if __name__ == "__main__":
    main()
