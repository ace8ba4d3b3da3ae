"""The cell magic %%ddprun in a real Jupyter kernel.

usage: notebook_test.py DDPRUN [tests]; DDPRUN_TEST_PYTHON names a Python with Jupyter and PyTorch
"""
import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

python = os.environ.get("DDPRUN_TEST_PYTHON")
if not python:
    print("skipped: DDPRUN_TEST_PYTHON names no Python with Jupyter and PyTorch")
    sys.exit(4)
if pathlib.Path(sys.executable) != pathlib.Path(python):
    os.execv(python, [python, *sys.argv])
try:
    import ipykernel  # noqa: F401
    import torch  # noqa: F401
    import tqdm  # noqa: F401
    from jupyter_client.manager import start_new_kernel
except ImportError as error:
    print(f"skipped: {python}, which DDPRUN_TEST_PYTHON names: {error}")
    sys.exit(4)

SOURCE = pathlib.Path(__file__).resolve().parents[2]
DDPRUN = pathlib.Path(sys.argv[1]).resolve()
LIMIT = 120

PIDS = """
import os, pathlib, time
pathlib.Path(f"pid{os.environ['RANK']}").write_text(str(os.getpid()))
time.sleep(1000)
"""


def until(condition):
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.05)


def as_shown(text):
    """What JupyterLab makes of carriage returns: a shorter text leaves the rest of the line."""
    lines = []
    for line in text.split("\n"):
        shown = ""
        for state in line.split("\r"):
            shown = state + shown[len(state):]
        lines.append(shown.rstrip())
    return "\n".join(lines)


class Kernel:
    """A kernel with folders of its own for the notebook and for temporary files."""

    def __init__(self, folder, **variables):
        self.folder, self.temp = pathlib.Path(folder, "notebook"), pathlib.Path(folder, "temp")
        self.folder.mkdir()
        self.temp.mkdir()
        environment = {**os.environ, "PATH": os.pathsep.join([str(DDPRUN.parent), os.environ["PATH"]]), "PYTHONPATH": str(SOURCE / "packaging"),
                       "TMPDIR": str(self.temp), "OMP_NUM_THREADS": "1", **variables}
        environment.pop("PYTHON_EXEC", None)
        self.manager, self.client = start_new_kernel(kernel_name="python3", env=environment, cwd=str(self.folder))
        self.run("%load_ext ddprun")

    def start(self, cell):
        self.cell = self.client.execute(cell)
        self.text, self.error = "", None

    def read(self, until=lambda text: False):
        """Takes what the cell writes, to its end or until the condition holds."""
        while not until(self.text):
            message = self.client.get_iopub_msg(timeout=LIMIT)
            if message["parent_header"].get("msg_id") != self.cell:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                self.text += content["text"]
            elif message["msg_type"] == "error":
                self.error = content
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                break

    def run(self, cell):
        self.start(cell)
        self.read()
        return self.text

    def processes(self):
        """Those that began with our folder for temporary files, the kernel among them."""
        found = {}
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.fsencode(f"TMPDIR={self.temp}") in (process / "environ").read_bytes().split(b"\0"):
                    found[int(process.name)] = (process / "cmdline").read_text().split("\0")
        return found

    def next_job_waits(self):
        """Whether a process waits for the lock of the next cell."""
        locked = [f":{file.stat().st_ino}" for file in self.temp.glob("*/wait_for_cell.py")]
        return any(inode + " " in line for line in pathlib.Path("/proc/locks").read_text().splitlines() if "->" in line for inode in locked)

    def shut_down(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel()


class Magic(unittest.TestCase):
    def kernel(self, **variables):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        kernel = Kernel(folder.name, **variables)

        def end():
            kernel.shut_down()
            until(lambda: not kernel.processes())
            self.assertEqual([], list(kernel.temp.glob("ddprun*")))

        self.addCleanup(end)
        return kernel

    def test_output_comes_as_it_is_written_with_its_rank(self):
        kernel = self.kernel()
        (kernel.folder / "beside.py").write_text("word = 'beside'\n")
        kernel.start("%%ddprun --nproc-per-node=2\n"
                     "import beside, os, pathlib, sys, time\n"
                     "print(beside.word, file=sys.stderr)\n"
                     "while not pathlib.Path('go').exists():\n    time.sleep(0.02)\n"
                     "print('gone on')\n")
        kernel.read(lambda text: all(f"[default{rank}]:beside\n" in text for rank in (0, 1)))
        self.assertNotIn("gone on", kernel.text)
        (kernel.folder / "go").touch()
        kernel.read()
        self.assertEqual(1, kernel.text.count("[default1]:gone on\n"), kernel.text)
        self.assertIsNone(kernel.error)
        self.assertEqual([], list(kernel.temp.iterdir()))

    def test_a_cell_is_utf_8_whatever_it_declares(self):
        kernel = self.kernel()
        kernel.run("%%ddprun --nproc-per-node=1\n# -*- coding: latin-1 -*-\nprint(len('\u00e9'))")
        self.assertIn("1\n", kernel.text)

    def test_a_failed_job_raises_with_its_exit_code(self):
        kernel = self.kernel()
        kernel.run("%%ddprun --nproc-per-node=2\nimport os\n\nif os.environ['RANK'] == '1':\n    raise ValueError('no such label')")
        self.assertIn('cell.py", line 5, in <module>', kernel.text)  # as the notebook counts
        self.assertRegex(kernel.text, r"Root Cause \(first observed failure\):\n  rank +: 1 ")  # ddprun's report
        self.assertEqual(("JobFailed", "the job ended with exit code 1"), (kernel.error["ename"], kernel.error["evalue"]))
        self.assertEqual(["JobFailed: the job ended with exit code 1"], kernel.error["traceback"])
        kernel.run("%%ddprun --nproc-per-node=none\npass")
        self.assertIn("--nproc-per-node", kernel.text)
        self.assertEqual("the job ended with exit code 2", kernel.error["evalue"])

    def test_an_interrupt_ends_the_job(self):
        kernel = self.kernel()
        kernel.start("%%ddprun --nproc-per-node=2\nprint('begun')" + PIDS)
        kernel.read(lambda text: text.count("begun") == 2)
        until(lambda: all((kernel.folder / f"pid{rank}").exists() for rank in (0, 1)))
        kernel.manager.interrupt_kernel()
        kernel.read()
        self.assertEqual("the job ended with exit code 130", kernel.error["evalue"])
        self.assertEqual(1, len(kernel.processes()), kernel.processes())  # the kernel
        self.assertEqual("2\n", kernel.run("print(1 + 1)"))

    def test_a_kernel_that_is_killed_leaves_no_job(self):
        kernel = self.kernel()
        kernel.run("%%ddprun --preload=json\npass")
        until(kernel.next_job_waits)
        kernel.start("%%ddprun --nproc-per-node=2" + PIDS)
        until(lambda: all((kernel.folder / f"pid{rank}").exists() for rank in (0, 1)))
        words = [words for words in kernel.processes().values() if "ddprun" in words[0]]
        self.assertGreaterEqual(len(words), 2, words)
        kernel.manager.signal_kernel(signal.SIGKILL)
        until(lambda: not kernel.processes())
        self.assertEqual(2, len(list(kernel.temp.glob("ddprun_cell_*"))))
        (kernel.temp / "ddprun_cell_mine").mkdir()
        with tempfile.TemporaryDirectory() as folder:  # the next one removes what it has left, and nothing else
            other = Kernel(folder, TMPDIR=str(kernel.temp))
            other.shut_down()
        self.assertEqual(["ddprun_cell_mine"], os.listdir(kernel.temp))
        (kernel.temp / "ddprun_cell_mine").rmdir()

    def test_a_kernel_removes_no_folder_of_a_job_that_runs(self):
        kernel = self.kernel()
        kernel.start("%%ddprun --nproc-per-node=2" + PIDS)
        until(lambda: all((kernel.folder / f"pid{rank}").exists() for rank in (0, 1)))
        before = sorted(kernel.temp.glob("*/*"))
        with tempfile.TemporaryDirectory() as folder:
            other = Kernel(folder, TMPDIR=str(kernel.temp))
            other.shut_down()
        self.assertEqual(before, sorted(kernel.temp.glob("*/*")))
        kernel.manager.interrupt_kernel()
        kernel.read()

    def test_many_lines_are_few_messages(self):
        kernel = self.kernel()
        kernel.run("from ipykernel.iostream import OutStream\nflushes, flush = [], OutStream.flush\n"
                   "OutStream.flush = lambda self, flushes=flushes, flush=flush: (flushes.append(1), flush(self))")
        begin = time.monotonic()
        kernel.run("%%ddprun --nproc-per-node=1\nimport time\nfor i in range(400):\n    print('line', i, flush=True)\n    time.sleep(0.003)\n")
        seconds = time.monotonic() - begin
        self.assertEqual(400, kernel.text.count("line"))
        self.assertLess(int(kernel.run("print(len(flushes))")), seconds / 0.05 + 10)

    def test_what_lies_beside_the_notebook_breaks_only_what_imports_it(self):
        kernel = self.kernel(PYTHONDONTWRITEBYTECODE="1")
        for folder in "plain", "with:colon":
            kernel.run(f"import os\nos.makedirs('{folder}')\nos.chdir('{folder}')")
            place = kernel.folder / folder
            (place / "beside.py").write_text("word = 'beside'\n")
            (place / "ctypes.py").write_text("raise SystemExit('not that of Python')\n")
            kernel.run("%%ddprun --nproc-per-node=1\nimport beside, os\nprint(beside.word, os.getcwd())")
            self.assertIn(f"beside {place}\n", kernel.text)
            kernel.run("os.chdir('..')")

    def test_a_folder_for_temporary_files_with_a_comma(self):
        folder = tempfile.TemporaryDirectory(prefix="with,comma")
        self.addCleanup(folder.cleanup)
        kernel = self.kernel(TMPDIR=folder.name)
        for _ in range(2):
            self.assertEqual("True\n", kernel.run("%%ddprun --nproc-per-node=1 --preload=json\nimport sys\nprint('json' in sys.modules)"))
        self.assertEqual([], os.listdir(folder.name))

    def test_flags_that_a_cell_cannot_have_and_wrong_ones(self):
        kernel = self.kernel()
        kernel.run("%%ddprun --nproc-per-node=1 --no-python\npass")
        self.assertEqual("%%ddprun: the program is the cell, which is Python: leave out --no-python", kernel.error["evalue"])
        kernel.run("%%ddprun --nproc-per-node=none --preload=json\npass")
        self.assertEqual("the job ended with exit code 2", kernel.error["evalue"])
        self.assertEqual([], list(kernel.temp.iterdir()))

    def test_the_second_run_does_not_wait_for_the_imports(self):
        kernel = self.kernel()
        cell = ("\nimport sys, time\nbegun = 'torch' in sys.modules, time.time()\nimport torch, torch.distributed as dist, torch.nn.parallel, os\n"
                "ready = time.time()\ndist.init_process_group('gloo')\ntotal = torch.ones(1)\ndist.all_reduce(total)\n"
                "if dist.get_rank() == 0:\n    print(*begun, ready, time.time(), total.item())\ndist.destroy_process_group()\n")

        def run(what, flags, more=""):
            start = time.time()
            kernel.run(f"%%ddprun --nproc-per-node=2 {flags}{cell}{more}")
            self.assertIsNone(kernel.error, kernel.text)
            imported, begun, ready, done = re.search(r"(True|False) (\S+) (\S+) (\S+) 2.0", kernel.text).groups()
            print(f"{what}: all_reduce after {float(done) - start:.2f} s", file=sys.stderr)
            return imported, float(ready) - float(begun), float(ready) - start

        _, imports, _ = run("first run", "")
        run("second run", "")
        self.assertEqual("True", run("first run with --preload", "--preload=torch")[0])
        until(kernel.next_job_waits)
        imported, _, ready = run("second run with --preload", "--preload=torch", "print('of another cell')\n")
        self.assertEqual("True", imported)
        self.assertIn("of another cell", kernel.text)
        self.assertLess(ready, imports / 2)

    def test_a_job_starts_ahead_only_for_the_same_settings(self):
        kernel = self.kernel()
        cell = "\nimport os\nprint(os.environ.get('FROM_NOTEBOOK'), os.getcwd())\n"
        kernel.run(f"%%ddprun --preload json --timeout=60{cell}")  # would count from now on
        self.assertEqual([], list(kernel.temp.iterdir()))
        kernel.run(f"%%ddprun --preload json{cell}")
        self.assertIn(f"None {kernel.folder}\n", kernel.text)
        until(kernel.next_job_waits)
        kernel.run("import os\nos.environ['FROM_NOTEBOOK'] = 'yes'\nos.mkdir('other')\n%cd other")
        kernel.run(f"%%ddprun --preload json{cell}")
        self.assertIn(f"yes {kernel.folder}/other\n", kernel.text)
        kernel.run("%unload_ext ddprun")
        self.assertEqual(1, len(kernel.processes()), kernel.processes())

    def test_a_cell_runs_when_the_job_ahead_was_lost_or_cannot_have_the_modules(self):
        kernel = self.kernel()
        (kernel.folder / "starts_thread.py").write_text("import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n")
        cell = "%%ddprun --preload=json\nprint('begun')"
        kernel.run(cell)
        until(kernel.next_job_waits)
        [modules] = [pid for pid, words in kernel.processes().items() if "-u" in words]
        os.kill(modules, signal.SIGKILL)
        until(lambda: len(kernel.processes()) == 1)
        self.assertEqual("begun\n", kernel.run(cell))
        for _ in range(2):
            kernel.run(cell.replace("json", "starts_thread"))
            self.assertEqual(1, kernel.text.count("begun"), kernel.text)
            self.assertIn("has started a thread", kernel.text)
            until(kernel.next_job_waits)

    def test_a_module_that_does_not_exist_is_named_each_time(self):
        kernel = self.kernel()
        for _ in range(2):
            kernel.run("%%ddprun --preload=json,no_such_module\nprint('begun')")
            self.assertRegex(kernel.text, r"^ddprun: \S*error:\S* --preload: no module named no_such_module\n$")
            self.assertEqual("the job ended with exit code 2", kernel.error["evalue"])
            until(lambda: len(kernel.processes()) == 1)

    def test_a_progress_bar_moves_and_stays_a_line(self):
        kernel = self.kernel()
        for ranks in 1, 2:
            kernel.start(f"%%ddprun --nproc-per-node={ranks}\nimport pathlib, time, tqdm\nfor step in tqdm.tqdm(range(300)):\n    time.sleep(0.005)\n"
                         f"    while step == 150 and not pathlib.Path('go{ranks}').exists():\n        time.sleep(0.02)\n")
            kernel.read(lambda text: re.search(r"\b\d\d%", text))
            self.assertNotIn("\n", kernel.text.strip())
            (kernel.folder / f"go{ranks}").touch()
            kernel.read()
            shown = as_shown(kernel.text)
            self.assertEqual(ranks, shown.count("100%"), shown)
            self.assertEqual(ranks, len(shown.strip().splitlines()), shown)
            self.assertNotIn("\x1b", shown)


class Begins(unittest.TestCase):
    def test_an_interrupt_while_a_job_begins_leaves_none(self):
        sys.path.insert(0, str(SOURCE / "packaging"))
        from ddprun import notebook

        begun = []

        def begin(*arguments, **keywords):
            begun.append(subprocess.Popen(*arguments, **keywords))
            os.kill(os.getpid(), signal.SIGINT)
            return begun[0]

        with tempfile.TemporaryDirectory() as folder, mock.patch.object(tempfile, "tempdir", folder), \
                mock.patch.object(notebook, "subprocess", mock.Mock(Popen=begin, DEVNULL=subprocess.DEVNULL)):
            try:
                with self.assertRaises(KeyboardInterrupt):
                    notebook._run_cell("--nproc-per-node=1", "import time\ntime.sleep(1000)")
                self.assertIsNotNone(begun[0].poll())
                self.assertEqual([], os.listdir(folder))
            finally:
                begun[0].terminate()


class Screen(unittest.TestCase):
    def test_what_a_program_clears_is_its_own(self):
        sys.path.insert(0, str(SOURCE / "packaging"))
        from ddprun.notebook import _Screen

        text = "keep me\r\x1b[Kreplaced\n"
        self.assertEqual(text, _Screen().shown(text, at_end=True))

    def test_what_a_terminal_clears_is_blank_however_it_comes(self):
        sys.path.insert(0, str(SOURCE / "packaging"))
        from ddprun.notebook import _Screen

        text = "a\n\r\x1b[K\x1b[?7l[0]: 50%|#####\x1b[?7h\r\x1b[Kb\n\r\x1b[K\x1b[?7l[1]: 1%\x1b[?7h\r\x1b[K\x1b[?7l[0]: 9%\x1b[?7h\r\x1b[Kc\r\nd\re"
        for size in range(1, len(text) + 1):
            screen = _Screen()
            pieces = [screen.shown(text[at:at + size], at_end=False) for at in range(0, len(text), size)]
            shown = "".join(pieces) + screen.shown("", at_end=True)
            self.assertEqual("a\nb\nc\ne", as_shown(shown.replace("\r\n", "\n")), size)
            self.assertNotIn("\x1b", shown)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
