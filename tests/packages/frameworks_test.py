"""Trainings with Accelerate, Lightning and Hugging Face's Trainer under the real ddprun: a killed rank leaves no trace in the weights.

usage: frameworks_test.py DDPRUN Accelerate|Lightning|Transformers; DDPRUN_TEST_PYTHON names a Python with PyTorch and them
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from elastic_test import Job, PYTHON, SOURCE, environment, run, weights

CASE = sys.argv[2]
PACKAGES = {"Accelerate": "accelerate", "Lightning": "lightning", "Transformers": "accelerate,transformers"}[CASE]
missing = [name for name in PACKAGES.split(",") if subprocess.run([PYTHON, "-c", f"import {name}"], capture_output=True).returncode != 0]
if missing:
    print(f"skipped: {PYTHON} cannot import {', '.join(missing)}")
    sys.exit(4)


class InPlace:
    """Both elastic examples have 2000 images, in steps of 40 on two ranks."""

    def job(self, kills):
        job = Job(kills, f"--preload=torch,{PACKAGES}", program=[SOURCE / f"examples/elastic_{PACKAGES}.py"], EPOCHS="3")
        self.assertEqual(0, job.code, job.err)
        self.assertEqual({"0", "1"}, set(weights(job.out)))
        return job

    def test_killed_ranks_are_replaced_without_a_lost_step(self):
        undisturbed = self.job([])
        self.assertEqual(list(range(1, 151)), undisturbed.steps)
        job = self.job([(20, 1), (50, 0), (99, 1), (130, [0, 1])])  # also between two epochs; at last the state in memory goes on
        self.assertEqual(weights(undisturbed.out), weights(job.out))
        self.assertGreaterEqual(job.err.count("replacing only this rank"), 3, job.err)
        steps = job.steps[:job.steps.index(130) + 1]
        self.assertEqual(sorted(set(steps)), steps, "a step is done twice")
        self.assertLessEqual(130 - len(steps), 1)  # what rank 0 was about to print when it was killed

    def test_alone(self):
        code, out, err = run(SOURCE / f"examples/elastic_{PACKAGES}.py", launcher=[PYTHON], EPOCHS="1")
        self.assertEqual(0, code, err)
        self.assertIn("after 100 steps", out)


class Accelerate(InPlace, unittest.TestCase):
    pass


class Lightning(InPlace, unittest.TestCase):
    pass


class Transformers(unittest.TestCase):
    """The Trainer's own checkpoints are 20 steps apart."""

    @classmethod
    def setUpClass(cls):
        cls.undisturbed = cls.job([])
        assert cls.undisturbed.steps == list(range(1, 161)), cls.undisturbed.err

    @classmethod
    def job(cls, kills, *flags):
        with tempfile.TemporaryDirectory() as folder:
            job = Job(kills, *flags, program=[SOURCE / "examples/transformers_trainer.py", folder])
            assert os.path.exists(f"{folder}/checkpoint-160/whole"), job.err
        return job

    def check(self, job):
        self.assertEqual(0, job.code, job.err)
        self.assertEqual({"0", "1"}, set(weights(job.out)))
        self.assertEqual(weights(self.undisturbed.out), weights(job.out))
        self.assertEqual(set(range(1, 161)), set(job.steps) | {50, 110})  # what rank 0 was about to print when it was killed
        self.assertLess(len(job.steps), 160 + 2 * 22)

    def test_only_the_lost_rank_is_replaced_by_a_standby_process(self):
        job = self.job([(50, 1), (110, 0)], "--standby=1")
        self.check(job)
        self.assertEqual(2, job.err.count("replacing only this rank"), job.err)
        self.assertNotIn("restarting all", job.err)

    def test_all_ranks_can_restart_warm(self):
        job = self.job([(50, 1), (110, 0)], "--recover=all", "--preload=torch,transformers.trainer")
        self.check(job)

    def test_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            code, out, err = run(pathlib.Path(folder), launcher=[PYTHON, SOURCE / "examples/transformers_trainer.py"])
        self.assertEqual(0, code, err)
        self.assertIn("after 320 steps", out)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], CASE], verbosity=2)
