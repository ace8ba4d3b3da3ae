"""What .ci/choose.py chooses: its rules as pure functions, that they and tests/always.txt name tests that exist, and its records in a small
repository."""
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


choose = load("choose")
second_attempts = load("second_attempts")
SOURCES = {str(path.relative_to(ROOT / "tests")): path.read_text(errors="replace") for path in (ROOT / "tests").rglob("*.cpp")}
CASES = choose.test_cases(SOURCES)
CMAKE = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("CMakeLists.txt"))
# add_test's names; ddprun_add_slurm_test puts slurm_ before them.
SCRIPTS = set(re.findall(r"add_test\(NAME (\w+)", CMAKE)) | set(re.findall(r"ddprun_add_package_test\((\w+)", CMAKE)) | {
    f"slurm_{name}" for name in re.findall(r"ddprun_add_slurm_test\((\w+)", CMAKE)}


def some_tests(*files):
    return [choose.Test(number, f"a test of {file}", file, {"integration"}) for number, file in enumerate(files, 1)]


def names_touched(paths, tests):
    first, then = choose.touched(paths, tests)
    return {name.removeprefix("a test of ") for name in first + then}


class Rules(unittest.TestCase):
    FILES = sorted(set(CASES.values()) | SCRIPTS)

    def test_each_test_that_always_runs_exists(self):
        names = choose.always_run((ROOT / "tests/always.txt").read_text())
        programs = set(re.findall(r"ddprun_add_tests\((\w+)", CMAKE))
        for name in names:
            program, _, case = name.partition(":")
            if case:
                self.assertIn(program, programs, f"tests/always.txt: {name}: no such program")
                self.assertIn(case, CASES, f"tests/always.txt: {name}: no such test case")
            else:
                self.assertIn(name, SCRIPTS, f"tests/always.txt: {name}: no such test")
        self.assertEqual(len(names), len(set(names)), "a name stands twice in tests/always.txt")

    def test_each_pattern_of_a_rule_names_tests_that_exist(self):
        for path, patterns in choose.ROOMS + choose.MORE:
            for pattern in patterns:
                self.assertTrue(any(re.match(pattern, file) for file in self.FILES), f".ci/choose.py: {path}: no test matches {pattern}")

    def test_each_rule_is_for_files_that_exist(self):
        files = [str(path.relative_to(ROOT)) for folder in ["launcher", "common", "worker", "include", "tests", "cmake", "packaging", "scripts",
                 "share", "docs", "completions", "examples"] for path in (ROOT / folder).rglob("*") if path.is_file()]
        files += [path.name for path in ROOT.iterdir() if path.is_file()]
        for path, _ in choose.ROOMS + choose.MORE:
            self.assertTrue(any(re.match(path, file) for file in files), f".ci/choose.py: no file matches {path}")

    def test_each_room_has_a_rule(self):
        for area in ["launcher", "worker"]:
            for room in sorted({path.parent.relative_to(ROOT) for path in (ROOT / area).rglob("*.cpp")}):
                if room.name == "precompiled":  # concerns all of the worker
                    continue
                path = f"{room}/x.cpp"
                self.assertTrue(any(re.match(rule, path) for rule, _ in choose.ROOMS), f".ci/choose.py: no rule of ROOMS is for {room}/")

    def test_a_room_has_its_tests_and_not_all(self):
        tests = some_tests(*self.FILES)
        chosen = names_touched(["launcher/output/console.cpp"], tests)
        self.assertIn("integration/launcher_output_test.cpp", chosen)
        self.assertNotIn("integration/launcher_nodes_test.cpp", chosen)
        chosen = names_touched(["launcher/rendezvous/coordinator.cpp"], tests)
        self.assertIn("network/nodes_test.cpp", chosen)
        self.assertNotIn("integration/training_test.cpp", chosen)

    def test_a_file_of_no_known_room_concerns_its_whole_program(self):
        tests = some_tests("integration/launcher_test.cpp", "integration/training_test.cpp", "network/nodes_test.cpp")
        self.assertEqual(names_touched(["launcher/new_room/x.cpp"], tests), {"integration/launcher_test.cpp", "network/nodes_test.cpp"})
        self.assertEqual(names_touched(["worker/new_room/x.cpp"], tests), {"integration/training_test.cpp"})

    def test_a_changed_test_and_the_test_of_a_changed_file_come_first(self):
        tests = some_tests("worker/group/spawn_test.cpp", "worker/group/groups_test.cpp", "network/nodes_test.cpp")
        self.assertEqual(choose.touched(["worker/group/spawn.cpp"], tests),
                         (["a test of worker/group/spawn_test.cpp"], ["a test of worker/group/groups_test.cpp"]))
        self.assertEqual(choose.touched(["tests/network/nodes_test.cpp"], tests), (["a test of network/nodes_test.cpp"], []))

    def test_docs_concern_no_training(self):
        self.assertEqual(names_touched(["docs/launcher.md", "CHANGELOG.md"], some_tests(*self.FILES)), {"doc_snippets", "package_flags"})


class Choice(unittest.TestCase):
    def test_what_does_not_fit_is_owed(self):
        chosen, left = choose.choose(["a"], ["b"], ["c"], ["a", "d", "e"], 2, 1)
        self.assertEqual(chosen, ["a", "b", "c"])
        self.assertEqual(sorted(left), ["d", "e"])

    def test_each_turn_has_another_order(self):
        names = [str(number) for number in range(20)]
        self.assertEqual(sorted(choose.in_turn(names, 1)), sorted(names))
        self.assertNotEqual(choose.in_turn(names, 1), choose.in_turn(names, 2))

    def test_test_cases_are_found_over_lines_and_with_quotes(self):
        text = 'TEST_CASE("one", "[a]") {}\nTEST_CASE(\n    "two \\"quoted\\", "\n    "in two lines: yes",\n    "[b][c]") {}\n'
        files = choose.test_cases({"x_test.cpp": text})
        self.assertEqual(files, {"one": "x_test.cpp", 'two "quoted", in two lines: yes': "x_test.cpp"})
        listing = {"tests": [{"name": "script"}, {"name": 'p:two "quoted", in two lines: yes', "properties": [
            {"name": "LABELS", "value": ["ddp"]}]}]}
        self.assertEqual(choose.tests_of(listing, files), [choose.Test(1, "script", "script", set()), choose.Test(
            2, 'p:two "quoted", in two lines: yes', "x_test.cpp", {"ddp"})])


class Records(unittest.TestCase):
    """In a repository of its own, with a cache folder of its own."""

    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="ci_choose_test"))
        self.addCleanup(shutil.rmtree, self.root)
        (self.root / "tree/.ci").mkdir(parents=True)
        shutil.copy(ROOT / ".ci/choose.py", self.root / "tree/.ci")
        (self.root / "tree/.gitignore").write_text("/build/\n__pycache__/\n")
        self.git("init", "--quiet")
        self.commit("first")

    def git(self, *arguments):
        done = subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=b", "-C", self.root / "tree", *arguments],
                              check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(self, text, path=".ci/x"):
        (self.root / "tree" / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / "tree" / path).write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", text)
        return self.git("rev-parse", "HEAD")

    def call(self, *arguments):
        return subprocess.run([self.root / "tree/.ci/choose.py", *arguments], capture_output=True, text=True,
                              env={**os.environ, "XDG_CACHE_HOME": str(self.root / "cache")})

    def test_a_stage_is_needed_until_it_has_passed_and_when_its_inputs_change(self):
        head = self.git("rev-parse", "HEAD")
        self.assertEqual(self.call("needed", "fuzz targets").returncode, 0)
        self.call("passed", "fuzz targets", head)
        done = self.call("needed", "fuzz targets")
        self.assertEqual((done.returncode, done.stdout), (1, f"nothing that it uses has changed since {head[:12]}, on which it passed\n"))
        self.commit("more", "docs/x.md")
        self.assertEqual(self.call("needed", "fuzz targets").returncode, 1)
        (self.root / "tree/launcher").mkdir()
        (self.root / "tree/launcher/new.cpp").write_text("not committed")
        self.assertEqual(self.call("needed", "fuzz targets").returncode, 0)
        self.commit("more", "launcher/new.cpp")
        self.assertEqual(self.call("needed", "fuzz targets").returncode, 0)

    def test_a_record_of_an_unknown_commit_counts_as_none(self):
        self.call("passed", "fuzz targets", self.git("rev-parse", "HEAD"))
        record = self.root / "cache/ddprun/ci/fuzz_targets.json"
        for text in [json.dumps({"commit": "1234567890" * 4, "owed": []}), "not JSON", "[]", json.dumps({"commit": 3})]:
            record.write_text(text)
            self.assertEqual(self.call("needed", "fuzz targets").returncode, 0, text)

    def test_what_was_tested_with_uncommitted_changes_is_not_remembered(self):
        head = self.git("rev-parse", "HEAD")
        (self.root / "tree/new").write_text("")
        self.call("passed", "fuzz targets", head)
        self.assertFalse((self.root / "cache").exists())

    def test_another_commit_than_the_one_that_was_tested_is_not_remembered(self):
        head = self.git("rev-parse", "HEAD")
        self.commit("during the run")
        self.call("passed", "fuzz targets", head)
        self.assertFalse((self.root / "cache").exists())

    def test_changed_files_are_compiled_in_parts_and_none_is_forgotten(self):
        self.call("passed", "file by file", self.git("rev-parse", "HEAD"))
        (self.root / "tree/launcher").mkdir()
        for number in range(50):
            (self.root / f"tree/launcher/{number}.cpp").write_text("")
        head = self.commit("fifty files", "launcher/x.h")
        first = self.call("files", "file by file").stdout.split()
        self.assertEqual(len(first), 40)
        self.call("passed", "file by file", head)
        second = self.call("files", "file by file").stdout.split()
        self.assertEqual(len(set(first + second)), 51)


class SecondAttempts(unittest.TestCase):
    LOG = """1/3 Test  #7: p:one ....***Failed    0.1 sec
    Test #7: p:one ....   Passed    0.1 sec
2/3 Test #8: two ...   Passed    0.1 sec
3/3 Test #9: three ...***Timeout   0.1 sec
"""

    def test_tests_that_failed_and_then_passed_are_named(self):
        self.assertEqual(second_attempts.needed_two(self.LOG), ["p:one"])

    def test_runs_are_counted_by_test(self):
        text = "# a comment\n2026-01-01 abc p:one\n2026-01-02 abd p:one\n2026-01-02 abd two words\n"
        self.assertEqual(second_attempts.runs_of(text), {"p:one": 2, "two words": 1})
        second_attempts.runs_of((ROOT / "tests/second_attempts.txt").read_text())


if __name__ == "__main__":
    unittest.main()
