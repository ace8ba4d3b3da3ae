""".ci/run counts what passed, failed and was skipped, and says which tests were skipped and why, and which failed.

The script runs as it is, in its own folder: its stages are short scripts, and ctest runs tests of a small project.
"""
import datetime
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

PROJECT = """cmake_minimum_required(VERSION 3.22)
project(small NONE)
enable_testing()
add_test(NAME "good" COMMAND sh -c "echo 'skipped: in the past'")
add_test(NAME "no data" COMMAND sh -c "echo 'skipped: no <data> here'; exit 4")
add_test(NAME "no data either" COMMAND sh -c "echo 'skipped: no <data> here'; exit 4")
add_test(NAME "of Catch2 3" COMMAND sh -c "printf 'a.cpp:3: SKIPPED:\\\\nexplicitly with message:\\\\n  no network\\\\n\\\\n==='; exit 4")
set_tests_properties("no data" "no data either" "of Catch2 3" PROPERTIES SKIP_RETURN_CODE 4)
foreach(i RANGE 1 7)
  add_test(NAME "with processes ${i}" COMMAND sh -c "echo ${i} >> ran")
endforeach()
set_tests_properties("with processes 1" "with processes 2" "with processes 3" "with processes 4" PROPERTIES LABELS integration)
set_tests_properties("with processes 5" "with processes 6" PROPERTIES LABELS ddp)
set_tests_properties("with processes 7" PROPERTIES LABELS package)
"""
TESTS = 'cmake -S . -B build >/dev/null && source scripts/common.sh && run_ctest build "$@"'
SKIPPED = """3 skipped:
  no <data> here (2)
    no data
    no data either
  no network (1)
    of Catch2 3
"""


class CiRun(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="ci_run_test"))
        self.addCleanup(shutil.rmtree, self.root)
        self.addCleanup(shutil.rmtree, self.root.with_suffix(".cache"), ignore_errors=True)
        for name in [".ci/run", ".ci/choose.py", ".ci/second_attempts.py", "scripts/common.sh", "scripts/not_passed.py"]:
            (self.root / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        (self.root / "CMakeLists.txt").write_text(PROJECT)
        (self.root / "tests").mkdir()
        (self.root / "tests/requirements.txt").write_text("")
        (self.root / "tests/second_attempts.txt").write_text("")
        for name in ["setup", "quickstart", "format", "docs", "build", "file_by_file", "fuzz", "try_libtorch"]:
            self.script(f"scripts/{name}.sh", "true")
        for name in ["check_includes", "check_syntax"]:
            (self.root / "scripts" / f"{name}.py").write_text("")
        self.script("scripts/test.sh", TESTS)
        self.script("scripts/build.sh", 'cmake -S . -B build"${1:+-asan}" >/dev/null')

    def script(self, name, command):
        (self.root / name).write_text(f"#!/usr/bin/env bash\n{command}\n")
        (self.root / name).chmod(0o755)

    def run_all(self, *arguments, **more):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CTEST_")} | more
        done = subprocess.run([self.root / ".ci/run", *arguments], capture_output=True, text=True,
                              env={**environment, "XDG_CACHE_HOME": str(self.root.with_suffix(".cache"))})
        return done.returncode, done.stdout

    def commit(self):
        git = ["git", "-c", "user.name=a", "-c", "user.email=b", "-C", self.root]
        if not (self.root / ".git").exists():
            subprocess.run([*git, "init", "--quiet"], check=True)
            (self.root / ".gitignore").write_text("/build*/\n__pycache__/\n")
        subprocess.run([*git, "add", "--all"], check=True)
        subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "one more"], check=True)

    def ran(self, build):
        file = self.root / build / "ran"
        names = sorted(file.read_text().split()) if file.exists() else []
        file.unlink(missing_ok=True)
        return names

    def test_skipped_tests_are_not_counted_as_passed(self):
        status, output = self.run_all()
        self.assertEqual(status, 0, output)
        end = f"\ntests, {SKIPPED}launcher and common under ASan and UBSan, {SKIPPED}\n18 passed, 0 failed, 6 skipped\n"
        self.assertTrue(output.endswith(end), output)

    def test_failures_and_skipped_stages_are_counted(self):
        self.script("scripts/format.sh", "exit 4")
        self.script("scripts/test.sh", "cmake -S . -B build >/dev/null; echo '50% tests passed, 1 tests failed out of 2'; exit 8")
        self.script("scripts/fuzz.sh", "echo 'fuzz.sh: skipped: no clang++' >&2; exit 4")
        self.script("scripts/try_libtorch.sh", "echo 'try_libtorch.sh: skipped: no torch 2 to be had' >&2; exit 4")
        status, output = self.run_all()
        self.assertEqual(status, 1, output)
        self.assertIn("\nfuzz targets, fuzz.sh: skipped: no clang++\n", output)
        self.assertIn("\ntests with the newest LibTorch, try_libtorch.sh: skipped: no torch 2 to be had\n", output)
        self.assertTrue(output.endswith("\n15 passed, 2 failed, 5 skipped\n"), output)

    def test_without_a_record_tests_with_processes_take_turns_and_packages_run(self):
        ran = []
        for _ in range(3):
            self.commit()
            status, output = self.run_all()
            self.assertEqual(status, 0, output)
            ran.append([self.ran("build"), self.ran("build-asan")])
            shutil.rmtree(self.root.with_suffix(".cache"))
        # The tests of the turn are those whose number among all with processes leaves the number of commits when divided by 5.
        self.assertEqual(ran, [[["2", "7"], ["3"]], [["3", "7"], ["4"]], [["4", "7"], ["5"]]])

    def test_with_a_record_the_tests_that_always_run_and_those_of_the_change_run(self):
        (self.root / "tests/always.txt").write_text("# a page\nwith processes 1\n")
        (self.root / "docs").mkdir()
        self.commit()
        self.run_all()
        self.ran("build"), self.ran("build-asan")
        (self.root / "docs/x.md").write_text("new")
        self.commit()
        status, output = self.run_all()
        self.assertEqual(status, 0, output)
        self.assertEqual([self.ran("build"), self.ran("build-asan")], [["1"], []])
        for stage in ["quickstart", "sanitizers", "fuzz targets", "newest LibTorch"]:
            self.assertIn(f"\n==== {stage}: left out, nothing that it uses has changed since ", output)
        status, output = self.run_all("1")
        self.assertEqual(status, 0, output)
        self.assertEqual([self.ran("build"), self.ran("build-asan")], [list("1234567")] * 2)
        self.assertNotIn("left out", output)

    def test_a_test_that_always_runs_and_is_not_there_fails(self):
        (self.root / "tests/always.txt").write_text("with processes 8\n")
        status, output = self.run_all()
        self.assertEqual(status, 1, output)
        self.assertIn("choose.py: build: not there: with processes 8\n", output)

    def test_a_stage_that_failed_runs_again(self):
        self.script("scripts/fuzz.sh", 'test "$1" = --build || exit 1')
        self.commit()
        self.assertEqual(self.run_all()[0], 1)
        status, output = self.run_all()
        self.assertEqual(status, 1, output)
        self.assertIn("\n==== fuzz targets: FAILED", output)
        self.assertIn("\n==== sanitizers: left out", output)

    def test_a_late_stage_that_may_not_end_in_time_is_skipped_and_runs_the_next_time(self):
        self.commit()
        status, output = self.run_all(CI_MINUTES="11")
        self.assertEqual(status, 0, output)
        self.assertIn("\ntests with the newest LibTorch, skipped: 0 of 11 minutes have passed, and this may take 12\n", output)
        self.assertIn("\ntests with processes under ASan and UBSan, skipped: 0 of 11 minutes have passed, and this may take 12\n", output)
        self.assertNotEqual(self.ran("build"), [])
        self.assertEqual(self.ran("build-asan"), [])
        status, output = self.run_all()
        self.assertEqual(status, 0, output)
        self.assertIn("\n==== quickstart: left out", output)
        self.assertNotIn("this may take", output)
        self.assertNotEqual(self.ran("build-asan"), [])
        self.assertNotIn("this may take", self.run_all("1", CI_MINUTES="0")[1])

    def test_a_failed_test_is_named_at_the_end_with_its_output(self):
        bad = """add_test(NAME "bad" COMMAND sh -c "echo '1 is not <2>'; exit 1")\n"""
        (self.root / "CMakeLists.txt").write_text(PROJECT + bad)
        self.script("scripts/fuzz.sh", "echo 'a crash'; exit 77")
        status, output = self.run_all()
        self.assertEqual(status, 1, output)
        asan = "launcher and common under ASan and UBSan"
        failed = "\n1 failed:\n  bad\n    1 is not <2>\n"
        end = f"\n\ntests, exit status 8{failed}\n{asan}, exit status 8{failed}\nfuzz targets, exit status 77\na crash\n"
        self.assertTrue(output.endswith(end + "\n17 passed, 3 failed, 6 skipped\n"), output)

    def test_a_test_that_needs_a_second_attempt_is_named(self):
        flaky = """add_test(NAME "a: flaky one" COMMAND sh -c "test -e seen && exit 0; touch seen; exit 1")\n"""
        (self.root / "CMakeLists.txt").write_text(PROJECT + flaky)
        status, output = self.run_all()
        self.assertEqual(status, 0, output)
        line = f"{datetime.date.today()} - a: flaky one"
        self.assertIn(f"\ntests, passed at the second attempt; lines for tests/second_attempts.txt:\n  {line}\n", output)
        self.assertIn(" passed, 0 failed, 6 skipped\n", output)
        (self.root / "tests/second_attempts.txt").write_text(f"{line}\n" * 2)
        for build in ["build", "build-asan"]:
            (self.root / build / "seen").unlink()
        self.assertEqual(self.run_all()[0], 0)
        (self.root / "tests/second_attempts.txt").write_text(f"{line}\n" * 3)
        (self.root / "build/seen").unlink()
        status, output = self.run_all()
        self.assertEqual(status, 1, output)
        self.assertIn("\ntests, a test needed its second attempt once too often:\n", output)


if __name__ == "__main__":
    unittest.main()
