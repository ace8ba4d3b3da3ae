"""The Python module: signs of life and error files reach the real ddprun, run folders of the real worker are read.

usage: python_test.py DDPRUN [WORKER]
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "packaging"))
import ddprun  # noqa: E402

DDPRUN = sys.argv[1]
WORKER = sys.argv[2] if len(sys.argv) > 2 else None


def job(script, *flags):
    """Runs the script under ddprun on two ranks; returns exit code and what ddprun said."""
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder, "program.py")
        program.write_text(script)
        environment = {**os.environ, "PYTHONPATH": str(SOURCE / "packaging"), "PYTHON_EXEC": sys.executable}
        done = subprocess.run([DDPRUN, "--nproc-per-node=2", *flags, program], capture_output=True, text=True,
                              env=environment, timeout=60)
        return done.returncode, done.stdout + done.stderr


def pipe_of_ddprun():
    """Its writing end does not block."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    return reading, writing


class Seam(unittest.TestCase):
    def test_a_rank_that_sends_signs_of_life_does_not_hang(self):
        beats = "import ddprun, time\nfor _ in range(20):\n    time.sleep(0.2)\n    ddprun.heartbeat()\n"
        self.assertEqual(0, job(beats, "--hang-timeout=2")[0])
        silent = beats.replace("    ddprun.heartbeat()", "    ddprun.heartbeat() if _ < 1 else None")
        code, said = job(silent, "--hang-timeout=2")
        self.assertEqual(124, code, said)

    def test_what_a_rank_says_reaches_ddprun(self):
        with tempfile.TemporaryDirectory() as folder:
            events = pathlib.Path(folder, "events.json")
            code, said = job("""
import ddprun, os, time
own = 0.01 * (1 + 2 * int(os.environ["RANK"]))
for step in range(1, 140):
    time.sleep(0.05)
    ddprun.status(step=step, loss=float("nan"), phase="train", seconds={"compute": own * step, "data": 0})
""", f"--events-json={events}")
            self.assertEqual(0, code, said)
            self.assertIn("rank 1 is 3.0 times slower than the median since step", said)
            self.assertIn('"event":"straggler"', events.read_text())

    def test_status_writes_only_to_a_pipe_and_never_waits(self):
        reading, writing = pipe_of_ddprun()
        os.environ["DDPRUN_STATUS_FD"] = str(writing)
        for step in range(10000):
            ddprun.status(step=step, loss=1)
        lines = os.read(reading, 1 << 16).decode().splitlines()
        self.assertEqual([{"step": step, "loss": 1.0} for step in range(len(lines))], [json.loads(line) for line in lines])
        with tempfile.TemporaryFile() as file:
            os.environ["DDPRUN_STATUS_FD"] = str(file.fileno())
            ddprun.status(step=1)
            self.assertEqual(0, os.fstat(file.fileno()).st_size)
        del os.environ["DDPRUN_STATUS_FD"]
        ddprun.status(step=1)

    def test_a_loss_that_is_no_number_is_said_as_null(self):
        reading, writing = pipe_of_ddprun()
        os.environ["DDPRUN_STATUS_FD"] = str(writing)
        ddprun.status(loss=float("nan"))
        del os.environ["DDPRUN_STATUS_FD"]
        self.assertEqual({"loss": None}, json.loads(os.read(reading, 1 << 16)))

    def test_heartbeat_does_nothing_without_ddprun(self):
        os.environ.pop("DDPRUN_HEARTBEAT_FD", None)
        ddprun.heartbeat()

    def test_heartbeat_writes_only_to_a_pipe(self):
        snippet = re.search(r"```python\n(import contextlib.*?)```", (SOURCE / "docs/hangs.md").read_text(), re.S).group(1)
        example = (SOURCE / "examples/heartbeat.py").read_text().split("if __name__")[0]
        beats = ["import ddprun\nddprun.heartbeat()", snippet + "\nheartbeat()", example + "\nheartbeat()"]
        reading, writing = pipe_of_ddprun()
        own, of_a_child = os.pipe()
        with tempfile.TemporaryFile() as file:
            for script in beats:
                for fd in file.fileno(), of_a_child, writing:
                    subprocess.run([sys.executable, "-c", script], check=True, pass_fds=[fd],
                                   env={**os.environ, "DDPRUN_HEARTBEAT_FD": str(fd), "PYTHONPATH": str(SOURCE / "packaging")})
            self.assertEqual(0, os.fstat(file.fileno()).st_size)
        self.assertEqual(b"...", os.read(reading, 100))
        os.close(of_a_child)
        self.assertEqual(b"", os.read(own, 100))

    def test_the_report_has_the_recorded_error_and_where_it_came_from_once(self):
        code, said = job("""
import ddprun, os, time
@ddprun.record
def main(what):
    if os.environ["RANK"] == "1":
        raise KeyError(what)
    time.sleep(60)
main("no such 'label'")
""", "--prefix")
        self.assertEqual(1, code, said)
        self.assertIn('''KeyError: "no such 'label'"''', said)
        self.assertEqual(1, said.count("in main\n"), said)  # as it happened, and not in the report again

    def test_an_error_file_that_is_there_stays(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "error.json")
            os.environ["TORCHELASTIC_ERROR_FILE"] = str(path)
            fail = ddprun.record(lambda text: int(text))
            for text in "first", "second":
                with self.assertRaises(ValueError):
                    fail(text)
            del os.environ["TORCHELASTIC_ERROR_FILE"]
            message = json.loads(path.read_text())["message"]
            self.assertIn("'first'", message["message"])
            self.assertEqual({"py_callstack", "timestamp"}, set(message["extraInfo"]))
            self.assertEqual(["error.json"], os.listdir(folder))


class Runs(unittest.TestCase):
    def test_a_run_folder_of_the_worker(self):
        if WORKER is None:
            self.skipTest("built without the worker")
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder, "run")
            subprocess.run([WORKER, "toy", "3", "1", "--out", out], check=True, capture_output=True, cwd=folder)
            run = ddprun.read_run(out)
            lengths = {len(column) for column in run["metrics"].values()}
            self.assertEqual(1, len(lengths))
            self.assertEqual(run["summary"]["steps"], run["metrics"]["step"][-1])
            self.assertEqual("toy", run["config"]["task"])
            self.assertTrue(run["checkpoints"] and run["checkpoints"][0].is_file())
            self.assertTrue(run["environment"]["torch"])
            python = os.environ.get("DDPRUN_TEST_PYTHON")
            if python:
                frame = ("import ddprun, pandas, sys\n"
                         "print(len(pandas.DataFrame(ddprun.read_run(sys.argv[1])['metrics'])))")
                done = subprocess.run([python, "-c", frame, out], capture_output=True, text=True, check=True,
                                      env={**os.environ, "PYTHONPATH": str(SOURCE / "packaging")})
                self.assertEqual(lengths, {int(done.stdout)})

    def test_a_row_that_is_being_written_is_left_out_and_a_broken_one_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "metrics.jsonl")
            file.write_text('{"step":1,"loss":null}\n{"step":2,"acc":0.5}\n{"st')
            self.assertEqual({"step": [1, 2], "loss": [None, None], "acc": [None, 0.5]}, ddprun.read_run(folder)["metrics"])
            file.write_text('{"step":1}\n{"st\n')
            with self.assertRaisesRegex(ValueError, r"metrics\.jsonl:2: "):
                ddprun.read_run(folder)

    def test_what_an_earlier_branch_ended_with_is_not_the_summary_of_the_one_that_was_killed(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "metrics.jsonl").write_text('{"step":1}\n{"step":2}\n')
            (folder / "summary.json").write_text('{"steps":5}')
            for summary, metrics, expected in (1, 2, {}), (2, 2, {"steps": 5}), (1, 1, {"steps": 5}):
                files = {"summary.json": summary, "metrics.jsonl": metrics}
                (folder / "run.json").write_text(json.dumps({"run": "0123abcd", "files": files}))
                self.assertEqual(expected, ddprun.read_run(folder)["summary"], files)
            (folder / "summary.json").write_text('{"steps":1}')  # resumed and killed in the same branch
            self.assertEqual({}, ddprun.read_run(folder)["summary"])

    def test_only_whole_checkpoints_are_listed(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "metrics.jsonl").write_text("")
            (folder / "checkpoints" / "last-step=2-0123abcd-4567.shards").mkdir(parents=True)
            for age, file in enumerate(("last.pt", ".last.pt.tmp.12", "best.ckpt", "notes.txt")):
                (folder / "checkpoints" / file).write_text("")
                os.utime(folder / "checkpoints" / file, (1000 - age, 1000 - age))
            (folder / "checkpoints" / "gone.pt").symlink_to("removed.pt")
            self.assertEqual(["best.ckpt", "last.pt"], [file.name for file in ddprun.read_run(folder)["checkpoints"]])

    def test_another_folder_is_refused(self):
        with tempfile.TemporaryDirectory() as folder, self.assertRaises(FileNotFoundError):
            ddprun.read_run(folder)


class Types(unittest.TestCase):
    def test_the_modules_are_typed(self):
        python = os.environ.get("DDPRUN_TEST_PYTHON")
        if not python:
            self.skipTest("no DDPRUN_TEST_PYTHON, which has mypy")
        done = subprocess.run([python, "-m", "mypy", "--strict", "--allow-any-generics", "--ignore-missing-imports",
                               "--cache-dir=/dev/null", "ddprun/__init__.py", "ddprun/_shards.py", "ddprun/elastic.py", "ddprun/lightning.py",
                               "ddprun/notebook.py"],
                              cwd=SOURCE / "packaging", capture_output=True, text=True)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
