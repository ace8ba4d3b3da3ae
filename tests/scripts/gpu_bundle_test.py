"""What the check of a GPU bundle can be tried with here: traces are counted step by step, goals judged, and a part ends with its time."""
import contextlib
import io
import pathlib
import subprocess
import sys
import tempfile
import time
import types
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts" / "gpu_bundle"))
from run import Check, ended  # noqa: E402
from table import calls_per_step, goals, markdown  # noqa: E402


def trace(*names):
    """An event a microsecond, after one that has no duration."""
    return {"traceEvents": [{"ph": "f", "ts": 0, "name": "cudaLaunchKernel"},
                            *({"ph": "X", "ts": i, "name": name} for i, name in enumerate(names, 1))]}


EAGER = ["cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync", "aten::_fused_adam_"]
FIGURES = {"machine": "a machine", "speed": {"mnist": {"eager": 2.0, "graph": 10.0, "python": 2.0, "python_graph": "failed"},
                                             "cifar10": {"eager": 1.4, "graph": 1.2, "python": 1.0}},
           "launch": {"device": "cuda", "worker": [1.0, 9.0, 1.1], "python": [3.0, 4.0, 3.5]},
           "profile": {"mnist": {"launches": 2.0, "waits": 0.0, "names": []}},
           "accuracy": {"epochs": 10, "accuracy": 0.939, "seconds": 9.0}, "failed": ["a check"], "not run": []}


class Trace(unittest.TestCase):
    def test_counts_from_one_update_to_the_next(self):
        # What comes before the first update and after the last one, such as the profiler's own wait, belongs to no whole step.
        events = ["cudaDeviceSynchronize", *EAGER, *EAGER, *EAGER, "cudaDeviceSynchronize"]
        self.assertEqual(calls_per_step(trace(*events), 3), (2, 0, []))

    def test_names_what_waits(self):
        step = [*EAGER, "cudaStreamSynchronize", "cudaMemcpy", "cudaEventSynchronize"]
        self.assertEqual(calls_per_step(trace(*step, *step, *step), 3), (2, 3, ["cudaEventSynchronize", "cudaMemcpy", "cudaStreamSynchronize"]))

    def test_counts_two_groups_of_parameters_as_one_step(self):
        step = ["cuLaunchKernel", "aten::_fused_sgd_", "aten::_fused_sgd_"]
        self.assertEqual(calls_per_step(trace(*step, *step, *step), 3), (1, 0, []))

    def test_counts_from_one_graph_to_the_next(self):
        events = [*EAGER, *EAGER, *["cudaGraphLaunch", "cudaLaunchKernel"] * 4, "cudaDeviceSynchronize"]
        self.assertEqual(calls_per_step(trace(*events), 6), (2, 0, []))

    def test_refuses_a_trace_without_steps(self):
        with self.assertRaisesRegex(ValueError, "0 updates"):
            calls_per_step(trace("cudaLaunchKernel"), 10)


class Table(unittest.TestCase):
    def test_judges_each_goal(self):
        self.assertEqual([(measured, holds) for _, _, measured, holds in goals(FIGURES)],
                         [("5.00 times", True), ("1.40 times", True), ("0.0", True), ("0.31", True), (None, False)])

    def test_shows_what_failed_and_judges_the_rest(self):
        figures = {**FIGURES, "speed": {"mnist": {"graph": 10.0, "python": "failed"}, "cifar10": {"python": 1.0}}}
        self.assertEqual([holds for _, _, _, holds in goals(figures)], [False, False, True, True, False])
        self.assertIn("| mnist | - | 10.0 | failed | - | - |", markdown(figures))

    def test_is_markdown(self):
        text = markdown(FIGURES)
        self.assertIn("| mnist | 2.0 | 10.0 | 2.0 | failed | - |", text)
        self.assertIn("| less than 15 s | not measured | - |", text)
        self.assertIn("10 epochs: 93.90 % after 9.0 s", text)
        self.assertIn("Failed:\n\n- a check\n", text)

    def test_a_start_on_a_cpu_meets_no_goal(self):
        figures = {**FIGURES, "launch": {**FIGURES["launch"], "device": "cpu"}}
        self.assertEqual(goals(figures)[3][2:], (None, False))


class Time(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.check = Check(types.SimpleNamespace(bundle=self.folder, torch=self.folder / "lib/python3/site-packages/torch", cifar10=None, minutes=1),
                           self.folder)

    def test_a_part_names_what_it_had_no_time_for(self):
        self.check.deadline = time.monotonic() + 1
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            self.check.each([("first", lambda: ended(self.check.run(["true"], {}))), ("second", lambda: ended(self.check.run(["sleep", "60"], {}))),
                             ("third", lambda: ended(self.check.run(["true"], {})))])
        self.assertEqual([line.split(":")[0].rstrip() for line in output.getvalue().splitlines()], ["ok      first", "not run second", "not run third"])
        self.assertEqual((self.check.failed, len(self.check.left)), ([], 2))

    def test_a_check_that_breaks_ends_no_part(self):
        with contextlib.redirect_stdout(io.StringIO()):
            self.check.each([("first", lambda: 1 / 0), ("second", lambda: "")])
        self.assertEqual(self.check.failed, ["first"])

    def test_an_end_has_its_code_and_each_line_once(self):
        done = subprocess.CompletedProcess([], 2, "", "error: no GPU\nmore\n")
        self.assertEqual(ended(done, 2, ["no GPU"]), "")
        self.assertIn("exit 2, expected 0", ended(done))
        self.assertIn("one line with ['r']", ended(done, 2, ["r"]))


if __name__ == "__main__":
    unittest.main()
