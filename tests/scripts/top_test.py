"""ddpctl top in a real terminal, tmux's: what it shows, its keys, sizes, and how it ends.

usage: top_test.py DDPRUN DDPCTL
"""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from waiting import wait_for

SOURCE = pathlib.Path(__file__).resolve().parents[2]
DDPRUN, DDPCTL = sys.argv[1:3]
SKIPPED = 4

TRAINING = """
import ddprun, os, time
rank = int(os.environ["RANK"])
own = 0.04 if rank == 5 else 0.02
print("rank", rank, "begins", flush=True)
for step in range(1, 100000):
    time.sleep(0.1)
    ddprun.status(step=step, steps=1000, phase="train", loss=1 / step, samples=32 * step,
                  seconds={"data": 0.001 * step, "compute": own * step, "communication": (0.09 - own) * step})
"""


class Screen:
    """A job, and ddpctl top in a terminal of this size."""

    def __init__(self, ranks, width, height, tool=""):
        self.folder = tempfile.TemporaryDirectory()
        environment = {**os.environ, "PYTHONPATH": str(SOURCE / "packaging"), "DDPRUN_CONTROL_DIR": f"{self.folder.name}/ddprun"}
        for name in ("py-spy", "eu-stack", "gdb") if tool else ():
            pathlib.Path(self.folder.name, name).write_text(f"#!/bin/sh\n{tool}\n")
            pathlib.Path(self.folder.name, name).chmod(0o700)
            environment["PATH"] = f"{self.folder.name}:{os.environ['PATH']}"
        self.job = subprocess.Popen([DDPRUN, f"--nproc-per-node={ranks}", "--prefix", "python3", "-c", TRAINING], env=environment,
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        sockets = pathlib.Path(self.folder.name, "ddprun")
        wait_for(lambda: list(sockets.glob("*.sock")), 30)
        self.name = next(sockets.glob("*.sock")).stem
        self.tmux = ["tmux", "-f", "/dev/null", "-S", f"{self.folder.name}/tmux"]
        self.call("new-session", "-d", "-s", "top", "-x", str(width), "-y", str(height),
                  f"'{DDPCTL}' top {self.name} --interval=0.5; echo left with $?; sleep 100", env=environment)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.job.terminate()
        self.job.wait(timeout=60)
        subprocess.run([*self.tmux, "kill-server"], capture_output=True)
        self.folder.cleanup()

    def call(self, *words, env=None):
        return subprocess.run([*self.tmux, *words], check=True, capture_output=True, text=True, env=env, timeout=30).stdout

    def text(self):
        return self.call("capture-pane", "-p", "-t", "top")

    def shows(self, *texts):
        try:
            return wait_for(lambda: (lambda seen: seen if all(text in seen for text in texts) else None)(self.text()), 30)
        except AssertionError:
            raise AssertionError(f"expected {texts}, got\n{self.text()}") from None

    def press(self, *keys):
        self.call("send-keys", "-t", "top", *keys)


@unittest.skipUnless(shutil.which("tmux"), "tmux is not installed")
class Top(unittest.TestCase):
    def test_two_ranks_on_a_small_terminal(self):
        with Screen(2, 80, 24) as screen:
            lines = screen.shows("STEP TIME", "ETA", "train", "samples/s").splitlines()
            self.assertIn(f"job {screen.name}", lines[0])
            self.assertTrue(all(len(line) <= 80 for line in lines))
            screen.press("Down", "l")
            screen.shows("rank 1: its last lines", "rank 1 begins")
            screen.press("k")
            screen.shows("rank 1: its stacks", "thread ")
            screen.press("h")
            screen.shows("OWN TIME ")
            screen.press("Escape")
            screen.shows("> ", " RANK  STATE")
            screen.press("Tab")
            screen.press("q")
            screen.shows("left with 0")

    def test_keys_work_while_stacks_are_on_their_way(self):
        with tempfile.TemporaryDirectory() as folder:
            begun, ended = pathlib.Path(folder, "begun"), pathlib.Path(folder, "ended")
            tool = f"trap 'echo >> {ended}; exit' TERM; touch {begun}; while :; do sleep 0.2; done"
            with Screen(2, 80, 24, tool) as screen:
                screen.shows("STEP TIME", "ETA")
                screen.press("k")
                screen.shows("looking at rank 0 ...")
                wait_for(begun.exists, 30)
                screen.press("Escape")
                screen.shows(" RANK  STATE")
                self.assertTrue(not ended.exists() or len(ended.read_text()) < 2)  # py-spy, and then eu-stack
                wait_for(ended.exists, 30)  # each has its time, and can still detach

    def test_a_narrow_terminal_shows_whole_columns_and_the_slow_rank(self):
        with Screen(6, 60, 14) as screen:
            lines = screen.shows(" OWN TIME\n", "2.0x compute\n").splitlines()
            self.assertTrue(all(len(line) <= 60 for line in lines))

    def test_when_ddprun_is_stopped_top_says_that_it_does_not_answer(self):
        with Screen(1, 80, 24) as screen:
            screen.shows("STEP TIME")
            screen.job.send_signal(signal.SIGSTOP)
            screen.shows("the job does not answer", "left with 1")
            screen.job.send_signal(signal.SIGCONT)

    def test_the_slow_one_of_64_ranks_is_named_and_comes_first_by_own_time(self):
        with Screen(64, 200, 50) as screen:
            screen.shows("RANK      PID", "SAMPLES/S", "x compute")
            screen.press("t")
            rows = screen.shows("sorted by t").splitlines()
            header = next(i for i, row in enumerate(rows) if "RANK      PID" in row)
            self.assertEqual("5", rows[header + 1].strip("> ").split()[0])
            screen.press("r", "NPage", "NPage", "NPage", "NPage")
            screen.shows(">  63")

    def test_top_ends_with_the_job(self):
        with Screen(2, 80, 24) as screen:
            screen.shows("STEP TIME")
            screen.job.terminate()
            screen.shows(f"job {screen.name} has ended", "left with 0")


if __name__ == "__main__":
    if not shutil.which("tmux"):
        print("skipped: tmux is not installed")
        sys.exit(SKIPPED)
    unittest.main(argv=sys.argv[:1])
