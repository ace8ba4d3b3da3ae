#!/usr/bin/env python3
"""Chooses what a run of .ci/run has to do: which tests that start processes, which files to compile by themselves, and whether a stage's
inputs have changed at all.

Each stage has a record in the cache folder: the commit that it last passed on, and the tests and files that it still owes. What has changed
since that commit decides. Without a record (a fresh clone, another machine, a commit that this clone does not know) a stage runs, and of the
tests a fifth does, another one with each commit.

usage: choose.py needed STAGE             exits with 0 if the stage has to run, with 1 if nothing that it uses has changed
       choose.py tests STAGE BUILD        prints what ctest's -I takes: the numbers of the tests to run
       choose.py files STAGE              prints the product's files to compile by themselves, one a line
       choose.py passed STAGE COMMIT      the stage has passed: remembers the commit if that is what is checked out, without changes
"""
import collections
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PARTS = 5  # without a record: the parts of the tests, of which each commit runs one
MOST_TESTS = 100  # in a run, beyond those that always run; the next run owes the others
MOST_TESTS_WITHOUT_RECORD = 40  # likewise, beyond that part
MOST_FILES = 40  # likewise, of files to compile by themselves
PROCESS_LABELS = {"ddp", "integration", "package"}

Test = collections.namedtuple("Test", "number name file labels")  # file: below tests/; a script's test has its name

BUILD_FILES = r"CMakeLists\.txt|CMakePresets\.json|cmake/|tests/CMakeLists\.txt|scripts/(common|build|setup)\.sh|\.ci/run"
# What the stages use, as patterns of paths. A stage that is not here always runs.
STAGE_INPUTS = {
    "newest LibTorch": rf"{BUILD_FILES}|worker/|common/|include/|scripts/try_libtorch\.sh|tests/(worker|support|golden)/",
    "quickstart": rf"{BUILD_FILES}|worker/|launcher/|common/|include/|share/|README\.md|scripts/quickstart\.sh",
    "sanitizers": rf"{BUILD_FILES}|launcher/|common/|include/|worker/(.*/)?(flight|commands)/|"
                  r"tests/(common|launcher|simulation|report_error|fuzz|integration|network|support|slurm|worker/(.*/)?flight)/",
    "fuzz targets": rf"{BUILD_FILES}|launcher/|common/|include/|worker/(.*/)?(serialize|state|loop)/|tests/fuzz/|scripts/fuzz\.sh",
}

# Which tests try what a changed file does: a pattern of its path, and patterns of the tests' files below tests/ or of the scripts' names.
# Besides, a file of ROOM/ concerns the tests in tests/ROOM/, and a changed test itself.
LAUNCHER = r"integration/launcher_|network/|report_error/"
TRAINING = r"integration/(?!launcher_)|worker/"
WORKER = r"worker/(?:.*/)?"
FRAMEWORKS = r"python_(accelerate|lightning|transformers)$"
ROOMS = [
    (r"launcher/cli/|common/settings/", [r"integration/launcher_(test|output|inherited|mpi)", r"network/readme", r"slurm_nodes$", r"package_flags$"]),
    (r"common/settings/", [r"integration/command_line"]),
    (r"launcher/plan/|common/worker_env", [r"integration/launcher_(worker_view|gpus|output|inherited|test)"]),
    (r"launcher/host/|common/nvml", [r"integration/launcher_(gpus|worker_view|strays|inherited|mpi)"]),
    (r"launcher/events/", [r"integration/launcher_(signals|ending|stalled|restarts)", r"prometheus$"]),
    (r"launcher/workers/|common/recovery", [r"integration/launcher_(signals|strays|ending|restarts|recover|faults)"]),
    (r"launcher/status/|common/status", [r"integration/launcher_(status|ctl)", r"report_error/report_status", r"prometheus$", r"top$"]),
    (r"launcher/output/", [r"integration/launcher_(output|stalled)", r"integration/training_reports"]),
    (r"launcher/outcome/|common/error_file", [r"integration/launcher_(faults|restarts|stalled)", r"report_error/", r"dropin_scenarios$"]),
    (r"launcher/job/", [r"integration/launcher_(restarts|ending|stalled|recover|nodes_test|nodes_hang|inherited)", r"network/nodes_faults"]),
    (r"launcher/rendezvous/|common/recovery", [r"integration/launcher_nodes", r"network/", r"slurm_"]),
    (r"launcher/(remote|cli|job|rendezvous)/", [r"ssh$"]),
    (r"launcher/rendezvous/", [r"integration/launcher_(drain|status)", r"etcd$"]),
    (r"launcher/(job/preflight|host/(gpu|nvml))", [r"preflight$"]),
    (r"launcher/job/(node_)?supervisor", [r"integration/launcher_drain", r"etcd$"]),
    (r"launcher/(remote/|cli/mpi)", [r"network/nodes_ssh"]),
    (r"launcher/events/restart_policy", [r"integration/launcher_status"]),
    (r"launcher/ctl/", [r"integration/launcher_ctl", r"top$"]),
    (r"launcher/[^/]+$", [r"integration/launcher_(test|signals)"]),
    (r"common/recovery", [r"integration/(launcher_recover|training_recover)"]),
    (r"common/held_port", [r"integration/launcher_(test|restarts|nodes_test)", r"worker/.*group/process_group"]),
    (r"common/(files|text|logging|errors|[^/]*\.txt)",
     [r"integration/(launcher_(test|faults)|training_(failures|folder)|command_line)"]),
    (WORKER + r"flight/", [r"integration/flight", r"worker/.*ddp/step_fault"]),
    (WORKER + r"group/", [r"network/(local_address|nodes_training)", r"integration/(training_test|training_fake_gpu)", r"dropin_torchrun$",
                           r"worker/.*ddp/(distributed_data_parallel|ddp_errors)", r"worker/commands/env_report"]),
    (WORKER + r"ddp/", [r"integration/(ddp_flags|training_test)", r"worker/.*sharding/zero"]),
    (WORKER + r"sharding/", [r"worker/.*state/(sharded_checkpoint|checkpoint_ranks)", r"integration/sam_test"]),
    (WORKER + r"(image|report)/", [r"integration/training_reports", r"live_report$", r"notebooks$"]),
    (WORKER + r"data/", [r"integration/(tasks|training_test|evaluation|sam_test)", r"worker/.*loop/fit_rules"]),
    (WORKER + r"serialize/", [r"integration/(training_resume|sam_files|evaluation)", r"worker/.*state/sharded_checkpoint", r"lightning$"]),
    (WORKER + r"optim/", [r"worker/.*loop/fit_rules", r"integration/(training_resume|training_tuner|training_control)", r"lightning$"]),
    (WORKER + r"state/", [r"integration/(training_resume|training_folder|power_failure|training_recover)", r"worker/.*loop/fit_checkpoints",
                           r"lightning$"]),
    (WORKER + r"model/", [r"worker/.*loop/fit", r"integration/(evaluation|training_test|ddp_flags)"]),
    (WORKER + r"record/", [r"integration/training_(reports|control)", r"live_report$", r"worker/.*loop/fit_test"]),
    (WORKER + r"loop/", [r"integration/training_(control|resume|recover|fake_gpu|failures)", r"network/nodes_training"]),
    (WORKER + r"run/", [r"integration/training_(recover|failures|folder|test)", r"python_module$"]),
    (r"worker/config/|worker/commands/", [r"integration/(command_line|training_control|training_reports|sam_test|evaluation)"]),
    (r"worker/(models|tasks)/", [r"integration/(tasks|training_test|evaluation|anchors)"]),
    (r"worker/sam/|share/", [r"integration/sam_", r"worker/sam/"]),
    (r"worker/[^/]+$", [r"integration/(training_test|command_line|training_failures)"]),
    (r"include/.*/report_", [r"report_error/", r"python_module$"]),
    (r"include/", [r"python_module$", r"doc_snippets$"]),
]
# What concerns several rooms, or none.
MORE = [
    (r"(launcher|common|cmake|packaging)/|CMakeLists\.txt|pyproject\.toml", [r"package_(portable|deb|wheel)$"]),
    (r"(common|include)/.*\.h$|worker/.*\.h$|cmake/|CMakeLists\.txt|examples/", [r"package_(runtime|components)$"]),
    (r"packaging/|cmake/|worker/CMakeLists|pyproject\.toml", [r"package_worker_wheel$"]),
    (r"docs/.*\.md$|README\.md|worker/.*\.h$|tests/packages/snippets", [r"doc_snippets$"]),
    (r"README\.md|examples/", [r"network/readme"]),
    (r"examples/transformer|worker/ddprun/run/", [r"integration/transformer_example"]),
    (r"completions/|docs/(man/|launcher\.md)", [r"package_flags$"]),
    (r"share/|examples/.*\.py$|worker/.*report/", [r"notebooks$"]),
    (r"scripts/speedup", [r"integration/speedup"]),
    (r"scripts/slurm/|tests/slurm/with_slurm", [r"slurm_"]),
    (r"tests/support/(child|stub_)", [LAUNCHER]),
    (r"tests/support/(fake_cuda|fake_gpu)", [r"integration/training_fake_gpu", r"worker/.*group/cuda_backend"]),
    (r"tests/support/(disk_log|crashed_disk)", [r"integration/power_failure"]),
    (r"tests/support/(golden|run_ranks)|tests/golden/ddp|tests/golden/mnist", [WORKER + r"(ddp|group)/", r"integration/training_test"]),
    (r"tests/support/flipped_bit", [r"integration/training_recover"]),
    (r"tests/support/", [r"integration/launcher_(test|status|gpus)", r"integration/training_(test|failures)"]),
    (r"tests/integration/(job|node_job)\.h", [r"integration/launcher_"]),
    (r"tests/integration/(training_job|cifar10_files)\.h", [r"integration/(training_|tasks|evaluation|ddp_flags|command_line)"]),
    (r"tests/integration/sam_job\.h", [r"integration/sam_"]),
    (r"tests/network/[^/]*(?<!_test\.cpp)$", [r"network/"]),
    (r"tests/scripts/top_test", [r"top$"]),
    (r"tests/scripts/ssh_test", [r"ssh$"]),
    (r"tests/scripts/etcd_test", [r"etcd$"]),
    (r"tests/scripts/preflight_test", [r"preflight$"]),
    (r"tests/scripts/prometheus_test", [r"prometheus$"]),
    (r"tests/scripts/live_report_test", [r"live_report$"]),
    (r"tests/scripts/notebooks_test", [r"notebooks$"]),
    (r"tests/scripts/lightning_test", [r"lightning$"]),
    (r"tests/packages/image_test", [r"package_image$"]),
    (r"tests/packages/kubernetes_test", [r"kubernetes$"]),
    (r"tests/packages/(?!image|kubernetes)", [r"package_", r"python_module$", r"python_elastic", r"python_preload$", r"python_notebook$", FRAMEWORKS, r"doc_snippets$", r"kubernetes$"]),
    (r"packaging/kubernetes/Containerfile", [r"package_image$"]),
    (r"packaging/kubernetes/|docs/kubernetes\.md|scripts/package\.sh|launcher/(events|job)/", [r"kubernetes$"]),
    (r"packaging/ddprun/|examples/(elastic|transformers).*\.py|common/recovery", [r"python_module$", r"python_elastic", FRAMEWORKS]),
    (r"packaging/ddprun/", [r"python_notebook$", r"notebooks$"]),
    (r"launcher/workers/pre|common/recovery", [r"python_preload$", r"python_notebook$"]),
    (r"tests/dropin/", [r"dropin_"]),
]


def test_cases(sources):
    """The file of each test case: sources are texts by their paths below tests/."""
    literals = r'((?:"(?:[^"\\]|\\.)*"\s*)+)'
    files = {}
    for path, text in sources.items():
        for case in re.finditer(rf"\bTEST_CASE\(\s*{literals}", text):
            name = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', case.group(1)))
            files[re.sub(r"\\(.)", r"\1", name)] = path
    return files


def tests_of(listing, files):
    """ctest --show-only=json-v1, as Tests."""
    tests = []
    for number, entry in enumerate(listing["tests"], 1):
        labels = next((p["value"] for p in entry.get("properties", []) if p["name"] == "LABELS"), [])
        program, _, case = entry["name"].partition(":")
        tests.append(Test(number, entry["name"], files.get(case.strip(), entry["name"]) if case else entry["name"], set(labels)))
    return tests


def touched(paths, tests):
    """The tests that try what these paths hold, first those of changed test files and of files with a test of the same name."""
    named, others = {}, {}
    for path in paths:
        if path.endswith(".md") and path.startswith("CHANGELOG"):
            continue
        folder, stem = os.path.dirname(path), re.sub(r"\.\w+$", "", path)
        patterns = [pattern for rule, chosen in ROOMS if re.match(rule, path) for pattern in chosen]
        # A product file of a room that is not listed may change anything in its program.
        if not patterns and re.match(r"(launcher|common|worker|include)/", path):
            patterns = [LAUNCHER] if path.startswith("launcher/") else [TRAINING] if path.startswith("worker/") else [LAUNCHER, TRAINING]
        patterns += [pattern for rule, chosen in MORE if re.match(rule, path) for pattern in chosen]
        for test in tests:
            if f"tests/{test.file}" == path or test.file == f"{stem}_test.cpp":
                named[test.name] = test
            elif (os.path.dirname(test.file) == folder or path.startswith("tests/worker/") and f"tests/{os.path.dirname(test.file)}" == folder
                  and not path.endswith("_test.cpp") or any(re.match(pattern, test.file) for pattern in patterns)):
                others[test.name] = test
    return list(named), [name for name in others if name not in named]


def in_turn(names, turn):
    """Another order with each turn, so that what does not fit into one run is in the next."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{turn} {name}".encode()).digest())


def choose(always, first, owed, then, most, turn):
    """What to do now, and what the next run owes: always and at most `most` others, of these `first` and `owed` before `then`."""
    queue = [*dict.fromkeys([*in_turn(first, turn), *in_turn(owed, turn), *in_turn(then, turn)])]
    queue = [name for name in queue if name not in set(always)]
    return [*always, *queue[:most]], queue[most:]


def always_run(text):
    """The names in tests/always.txt."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


# ---- effects -----------------------------------------------------------------------------------------------------------------------------

def git(*arguments):
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def records():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.environ.get("HOME", ""), ".cache")
    return pathlib.Path(cache) / "ddprun" / "ci"


def record_file(stage):
    return records() / (stage.replace(" ", "_") + ".json")


def read_record(stage):
    """The stage's record, or None if there is none or its commit is unknown here."""
    try:
        record = json.loads(record_file(stage).read_text())
        if git("cat-file", "-e", record["commit"] + "^{commit}") is not None:
            return {"commit": record["commit"], "owed": [str(name) for name in record.get("owed", [])]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return None


def changed_since(commit):
    """The paths that differ from a commit, also what is not committed or new."""
    if not commit:
        return []
    lines = (git("diff", "--name-only", "--no-renames", commit) or "") + "\n" + (git("ls-files", "--others", "--exclude-standard") or "")
    return sorted({line for line in lines.splitlines() if line})


def base_without_record():
    """Where this work began: at the remote's main branch, or else at the commit before."""
    head, base = git("rev-parse", "HEAD"), git("merge-base", "HEAD", "origin/main")
    return base if base and base != head else git("rev-parse", "--verify", "--quiet", "HEAD^")


def turn():
    return int(git("rev-list", "--count", "HEAD") or 0)


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(json.dumps(value) + "\n")
    os.replace(new, path)


def plan_file(stage):
    """What the stage will owe if it passes: in the build folder, because it is of this tree."""
    return ROOT / "build" / "ci" / record_file(stage).name


def say(text):
    print(f"choose.py: {text}", file=sys.stderr)


def needed(stage):
    pattern, record = STAGE_INPUTS.get(stage), read_record(stage)
    if not pattern or not record or record["owed"]:
        return 0
    if any(re.match(pattern, path) for path in changed_since(record["commit"])):
        return 0
    print(f"nothing that it uses has changed since {record['commit'][:12]}, on which it passed")
    return 1


def choose_tests(stage, build):
    sources = {str(path.relative_to(ROOT / "tests")): path.read_text(errors="replace") for path in (ROOT / "tests").rglob("*.cpp")}
    listing = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], capture_output=True, text=True, check=True).stdout
    tests = [test for test in tests_of(json.loads(listing), test_cases(sources))
             if test.labels & PROCESS_LABELS and "slow" not in test.labels]
    names = {test.name for test in tests}
    record, now = read_record(stage), turn()
    packages = stage == "processes"  # they build their own programs, or run Python: sanitizers would find little in that, and take minutes
    listed = ROOT / "tests" / "always.txt"
    always = always_run(listed.read_text()) if stage == "processes" and listed.exists() else []
    missing = [name for name in always if name not in names]
    if missing or not tests:  # a program that could not be built has no tests
        say(f"{build}: {'no tests that start processes' if not tests else 'not there: ' + ', '.join(missing)}")
        return 1
    first, then = touched(changed_since(record["commit"] if record else base_without_record()), tests)
    owed = [name for name in record["owed"] if name in names] if record else []
    if record:
        chosen, left = choose(always, first, owed, then, MOST_TESTS, now)
    else:
        part = (now + (stage != "processes")) % PARTS  # under the sanitizers another one
        fifth = [test.name for index, test in enumerate(tests) if index % PARTS == part or packages and "package" in test.labels]
        chosen, left = choose([*dict.fromkeys(always + fifth)], first, [], then, MOST_TESTS_WITHOUT_RECORD, now)
    since = f"the changes since {record['commit'][:12]}" if record else f"no record: a fifth of all{', packages' if packages else ''}, and the last changes"
    say(f"{len(chosen)} of {len(tests)} tests that start processes: {len(always)} that always run, and {since}"
        + (f"; {len(left)} more in the next runs, or with .ci/run 1" if left else ""))
    write(plan_file(stage), {"owed": left})
    print(",".join(["0,0,0", *(str(test.number) for test in tests if test.name in set(chosen))]) if chosen else "")
    return 0


def choose_files(stage):
    record = read_record(stage)
    changed = changed_since(record["commit"] if record else base_without_record())
    files = [path for path in changed if re.match(r"(launcher|common|worker|include)/.*\.(cpp|h)$", path)]
    chosen, left = choose([], [], record["owed"] if record else [], files, MOST_FILES, turn())
    write(plan_file(stage), {"owed": left})
    print("\n".join(chosen))
    return 0


def passed(stage, commit):
    plan = plan_file(stage)
    owed = json.loads(plan.read_text())["owed"] if plan.exists() else []
    if git("rev-parse", "HEAD") == commit and git("status", "--porcelain") == "":
        write(record_file(stage), {"commit": commit, "owed": owed})
    return 0


def main():
    commands = {"needed": needed, "tests": choose_tests, "files": choose_files, "passed": passed}
    if len(sys.argv) < 3 or sys.argv[1] not in commands:
        print(__doc__, file=sys.stderr)
        return 2
    return commands[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
