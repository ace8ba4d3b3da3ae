"""--preflight and --exclude: which nodes join, what a failing command or check says and where, and that nothing of it is left.

The nodes of a job are all on this machine, where they meet at a port of 127.0.0.1.

usage: preflight_test.py DDPRUN FOLDER_OF_FAKE_NVML LIBRARY_THAT_SETS_THE_CLOCK_BACK
"""
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from waiting import wait_for

DDPRUN = str(pathlib.Path(sys.argv[1]).resolve())
NVML = {"LD_LIBRARY_PATH": str(pathlib.Path(sys.argv[2]).resolve())}
SET_BACK = {"LD_PRELOAD": str(pathlib.Path(sys.argv[3]).resolve())}  # by an hour, a second after the start
SLEEP = f"sleep 1{os.getpid()}"  # no other process has these words
WORKER = ["sh", "-c", "echo rank $RANK of $WORLD_SIZE"]
# A node that stays out has to find the coordinator before the job is over.
UNTIL_GO = ["sh", "-c", "until [ -e go ]; do sleep 0.05; done; echo rank $RANK of $WORLD_SIZE"]


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Preflight(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.jobs = []

    def tearDown(self):
        for job in self.jobs:
            if job.poll() is None:
                job.kill()
            job.communicate()
        self.temporary.cleanup()

    def start(self, *words, program=WORKER, **env):
        job = subprocess.Popen([DDPRUN, *words, *program], env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, cwd=self.folder)
        self.jobs.append(job)
        return job

    def run_mounted(self, mounts, *words, **env):
        """Runs ddprun where these shell commands have changed what is mounted, for it alone."""
        probe = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs -o size=1m none /mnt"]
        if os.geteuid() != 0 or subprocess.run(probe, capture_output=True).returncode != 0:
            self.skipTest("this machine lets nobody mount a disk")
        job = subprocess.run(["unshare", "--mount", "sh", "-ec", f'{mounts}; exec "$@"', "sh", DDPRUN, *words, *WORKER], cwd=self.folder,
                             env={**os.environ, **env}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100)
        return job.returncode, job.stdout, job.stderr

    def run_job(self, *words, **how):
        return self.end_of(self.start(*words, **how))

    def end_of(self, job):
        out, err = job.communicate(timeout=100)
        return job.returncode, out, err

    def three_nodes(self, bad):
        """How each of two nodes and a spare ends, of which one fails its preflight; the first one has the coordinator."""
        self.endpoint = f"127.0.0.1:{free_port()}"
        (self.folder / "go").unlink(missing_ok=True)
        jobs = [self.node("--nnodes=2", "--spares=1", f"--preflight=[ {i} != {bad} ]", host=i == 0, program=UNTIL_GO) for i in range(3)]
        first = self.end_of(jobs[bad]) if bad else None
        (self.folder / "go").touch()
        return [first if first and job is jobs[bad] else self.end_of(job) for job in jobs]

    def node(self, *words, host=False, **how):
        """One of several nodes; the host has the coordinator."""
        return self.start(f"--rdzv-endpoint={self.endpoint}", f"--rdzv-conf=is_host={int(host)}", *words, **how)


class OneNode(Preflight):
    def test_the_workers_start_after_a_command_that_succeeds(self):
        code, out, err = self.run_job("--preflight=touch before", program=["sh", "-c", "ls; echo rank $RANK"])
        self.assertEqual((code, out), (0, "before\nrank 0\n"), err)
        self.assertIn("--preflight succeeded in", err)

    def test_a_command_that_fails_keeps_the_node_out_and_its_last_lines_say_why(self):
        code, out, err = self.run_job("--result-json=result", "--preflight=seq 100; echo no GPU 3 >&2; exit 7")
        self.assertEqual((code, out), (125, ""), err)
        self.assertIn("--preflight failed: exit code 7: 97; 98; 99; 100; no GPU 3\n", err)
        self.assertIn("no GPU 3", (self.folder / "result").read_text())

    def test_the_command_gets_a_workers_environment(self):
        script = "echo $LOCAL_WORLD_SIZE $ROLE_NAME. ${DDPRUN_JOB_ID:+job} ${RANK:-none}; exit 1"
        code, _, err = self.run_job("--nproc-per-node=2", f"--preflight={script}", RANK="5")
        self.assertEqual(code, 125)
        self.assertIn("exit code 1: 2 . job none\n", err)

    def test_a_command_that_hangs_is_ended_with_all_that_it_has_started(self):
        begin = time.monotonic()
        code, _, err = self.run_job(f"--preflight=echo begun; {SLEEP} & {SLEEP}", "--preflight-timeout=1")
        self.assertEqual(code, 125)
        self.assertIn("--preflight failed: not done within 1 s (--preflight-timeout): begun\n", err)
        self.assertLess(time.monotonic() - begin, 60)
        self.assertEqual(subprocess.run(["pgrep", "-f", f"^{SLEEP}$"], stdout=subprocess.DEVNULL).returncode, 1)

    def test_what_it_leaves_behind_ends_before_the_workers_start(self):
        script = f"setsid {SLEEP} >/dev/null 2>&1 & nohup {SLEEP} >/dev/null 2>&1 & sleep 0.2"
        code, out, err = self.run_job(f"--preflight={script}", program=["sh", "-c", f"pgrep -f '^{SLEEP}$' || echo none"])
        self.assertEqual((code, out), (0, "none\n"), err)

    def test_it_leaves_the_input_to_the_workers(self):
        job = subprocess.Popen([DDPRUN, "--preflight=! read line", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, cwd=self.folder)
        out, err = job.communicate("a line\n", timeout=100)
        self.assertEqual((job.returncode, out), (0, "a line\n"), err)

    def test_a_signal_that_is_passed_on_does_not_end_it(self):
        job = self.start("--preflight=touch begun; until [ -e go ]; do sleep 0.05; done")
        wait_for((self.folder / "begun").exists)
        job.send_signal(signal.SIGUSR1)
        time.sleep(0.3)
        (self.folder / "go").touch()
        self.assertEqual(self.end_of(job)[:2], (0, "rank 0 of 1\n"))

    def test_it_does_not_run_again_at_a_restart(self):
        code, out, err = self.run_job("--max-restarts=1", "--preflight=echo once >>runs", program=["sh", "-c", "cat runs; exit 3"])
        self.assertEqual((code, out), (3, "once\nonce\n"), err)

    def test_a_ddprun_in_it_has_no_preflight_of_the_environment(self):
        job = self.start("--nproc-per-node=1", DDPRUN_PREFLIGHT=f"echo >>runs; {DDPRUN} true", DDPRUN_TIMEOUT="20")
        self.assertEqual(self.end_of(job)[:2], (0, "rank 0 of 1\n"))
        self.assertEqual((self.folder / "runs").read_text(), "\n")

    def test_a_signal_ends_it_like_a_worker(self):
        job = self.start("--preflight=trap 'touch saved; exit 3' TERM; touch begun; while :; do sleep 0.05; done")
        wait_for((self.folder / "begun").exists)
        job.send_signal(signal.SIGTERM)
        code, out, err = self.end_of(job)
        self.assertEqual((code, out), (-signal.SIGTERM, ""), err)
        self.assertIn("received SIGTERM: ending --preflight and the job", err)
        self.assertTrue((self.folder / "saved").exists())

    def test_the_jobs_timeout_ends_it_too(self):
        code, out, err = self.run_job("--timeout=1", "--preflight=exec sleep 1000")
        self.assertEqual((code, out), (124, ""), err)
        self.assertIn("(--timeout) before --preflight was done", err)

    def test_the_checks_succeed_where_nothing_is_wrong(self):
        for checks in ("disk", "clock", "disk, clock"):
            code, out, err = self.run_job(f"--preflight={checks}", "--log-dir=logs/of/mine")
            self.assertEqual((code, out), (0, "rank 0 of 1\n"), err)
        self.assertEqual([path for path in self.folder.rglob("*preflight*")], [])

    def test_a_folder_that_cannot_be_written_fails_the_check_of_the_disk(self):
        code, _, err = self.run_job("--preflight=disk", "--log-dir=/proc/logs")
        self.assertEqual(code, 125, err)
        self.assertRegex(err, r"--preflight failed: disk: .* in /proc")

    def test_a_small_disk_fails_the_check_of_the_disk(self):
        (self.folder / "logs").mkdir()
        for size, free in (("300m", 300), ("100m", 100), ("1m", 0)):
            fill = "" if free else "; head -c 2m /dev/zero >logs/full 2>/dev/null || :"
            code, _, err = self.run_mounted(f"mount -t tmpfs -o size={size} none logs{fill}", "--preflight=disk", "--log-dir=logs")
            self.assertEqual(code, 0 if free == 300 else 125, err)
            if code:
                self.assertIn(f"--preflight failed: disk: only {free} MiB are free in {self.folder}/logs: expected at least 256\n", err)

    def test_a_small_shm_fails_the_check_of_it(self):
        mount = "mount -t tmpfs -o size={} none /dev/shm"
        self.assertEqual(self.run_mounted(mount.format("300m"), "--preflight=shm")[:2], (0, "rank 0 of 1\n"))
        code, _, err = self.run_mounted(mount.format("64m"), "--preflight=shm")
        self.assertEqual(code, 125, err)
        self.assertIn("--preflight failed: shm: only 64 MiB are free in /dev/shm: expected at least 256\n", err)
        code, _, err = self.run_mounted(f"{mount.format('300m')}; mount -o remount,ro /dev/shm", "--preflight=shm")
        self.assertEqual(code, 125, err)
        self.assertIn("--preflight failed: shm: cannot create a file in /dev/shm: Read-only file system\n", err)

    def test_a_gpu_with_errors_fails_the_check_of_the_gpus(self):
        healthy, broken = "uuid=GPU-a bus=3b", "uuid=GPU-b bus=86 ecc=2"
        self.assertEqual(self.run_job("--preflight=gpus", FAKE_NVML=healthy, **NVML)[:2], (0, "rank 0 of 1\n"))
        code, _, err = self.run_job("--preflight=gpus", "--nproc-per-node=2", FAKE_NVML=f"{healthy};{broken}", **NVML)
        self.assertEqual(code, 125, err)
        self.assertIn("--preflight failed: gpus: GPU 1 (0000:86:00.0): uncorrected ECC errors since the driver was loaded: 2\n", err)
        # One that the job does not use is none of its business.
        code, _, err = self.run_job("--preflight=gpus", FAKE_NVML=f"{healthy};{broken}", CUDA_VISIBLE_DEVICES="0", **NVML)
        self.assertEqual(code, 0, err)

    def test_an_error_in_the_kernels_log_fails_the_check_of_the_gpus(self):
        for xid, expected in ((79, 125), (13, 0)):  # 13 is a program's mistake
            (self.folder / "kmsg").write_text(f"4,1,1,-;NVRM: Xid (PCI:0000:3b:00): {xid}, pid=7, GPU has fallen off the bus.\n")
            code, _, err = self.run_mounted("mount --bind kmsg /dev/kmsg", "--preflight=gpus", FAKE_NVML="uuid=GPU-a bus=3b", **NVML)
            self.assertEqual(code, expected, err)
            if code:
                self.assertIn("--preflight failed: gpus: GPU 0000:3b:00: the kernel's log has Xid 79\n", err)

    def test_too_few_gpus_fail_the_check_of_the_gpus(self):
        code, _, err = self.run_job("--preflight=gpus", "--nproc-per-node=999")
        self.assertEqual(code, 125, err)
        self.assertIn("of NVIDIA's GPUs are visible: expected at least 999", err)

    def test_a_mistyped_check_is_a_usage_error(self):
        for value in ("disc", "disk,shn", "disk,", "gpu"):
            code, _, err = self.run_job(f"--preflight={value}")
            self.assertEqual(code, 2, err)
            self.assertIn("checks separated by commas (disk, shm, clock, gpus), or a shell command", err)
        for value in ("true", "/bin/true", "true disk", "test disk,shm = disk,shm"):
            self.assertEqual(self.run_job(f"--preflight={value}")[0], 0, value)


class SeveralNodes(Preflight):
    def test_a_job_that_lacks_a_node_ends_on_all_with_one_line(self):
        for bad in (0, 1):
            with self.subTest(unfit=bad):
                self.endpoint = f"127.0.0.1:{free_port()}"
                jobs = [self.node("--nnodes=2", f"--preflight={'echo broken; exit 3' if i == bad else 'true'}", host=i == 0)
                        for i in range(2)]
                ends = [self.end_of(job) for job in jobs]
                self.assertEqual([(code, out) for code, out, _ in ends], [(125, "")] * 2, ends)
                for _, _, err in ends:
                    self.assertIn("--preflight failed: exit code 3: broken", err)
                self.assertIn("stays out: --preflight failed", ends[1 - bad][2])

    def test_a_job_without_any_fit_node_ends_on_all(self):
        jobs = [self.node("--nnodes=2", "--last-call=1", "--preflight-timeout=5", f"--preflight=echo broken {i}; exit 3", host=i == 0)
                for i in range(2)]
        ends = [self.end_of(job) for job in jobs]
        self.assertEqual([(code, out) for code, out, _ in ends], [(125, "")] * 2, ends)
        for i in range(2):
            self.assertIn(f"stays out: --preflight failed: exit code 3: broken {i}", ends[0][2])

    def test_a_node_that_stays_out_does_not_wait_for_its_modules(self):
        (self.folder / "slow.py").write_text("import time\ntime.sleep(1000)\n")
        (self.folder / "train.py").touch()
        jobs = [self.node("--nnodes=2", *(["--preload=./slow.py"] if i else []), f"--preflight=[ {i} = 0 ]", host=i == 0,
                          program=["train.py"]) for i in range(2)]
        self.assertEqual([self.end_of(job)[0] for job in jobs], [125, 125])

    def test_a_spare_is_checked_before_it_stands_by(self):
        ends = self.three_nodes(bad=2)
        self.assertEqual([code for code, _, _ in ends], [0, 0, 125], ends)
        self.assertNotIn("standing by", ends[2][2])

    def test_the_users_signal_to_an_unfit_node_with_the_coordinator_ends_the_job(self):
        train = ["sh", "-c", "touch begun$RANK; exec sleep 1000"]
        jobs = [self.node("--nnodes=2", "--spares=1", f"--preflight=[ {i} != 0 ]", host=i == 0, program=train) for i in range(3)]
        wait_for(lambda: len(list(self.folder.glob("begun*"))) == 2)
        jobs[0].send_signal(signal.SIGTERM)
        ends = [self.end_of(job) for job in jobs]
        self.assertEqual([code for code, _, _ in ends], [-signal.SIGTERM, 128 + signal.SIGTERM, 128 + signal.SIGTERM], ends)

    def test_a_spare_takes_the_place_of_a_node_that_stays_out(self):
        for bad in (0, 1):  # the first one has the coordinator
            with self.subTest(unfit=bad):
                ends = self.three_nodes(bad)
                codes = [code for code, _, _ in ends]
                self.assertEqual(codes, [0, 0, 0] if bad == 0 else [0, 125, 0], ends)
                self.assertEqual(sorted("".join(out for _, out, _ in ends).splitlines()), ["rank 0 of 2", "rank 1 of 2"])
                self.assertIn("stays out: --preflight failed: exit code 1", ends[0][2])

    def test_a_node_that_fails_does_not_join_a_running_elastic_job(self):
        until = ["sh", "-c", "touch begun; until [ -e go ]; do sleep 0.05; done; echo rank $RANK of $WORLD_SIZE"]
        jobs = [self.node("--nnodes=2:3", "--last-call=0", host=i == 0, program=until) for i in range(2)]
        wait_for((self.folder / "begun").exists)
        code, out, err = self.end_of(self.node("--nnodes=2:3", "--preflight=exit 9", program=until))
        self.assertEqual((code, out), (125, ""), err)
        (self.folder / "go").touch()
        ends = [self.end_of(job) for job in jobs]
        self.assertEqual([code for code, _, _ in ends], [0, 0], ends)
        self.assertIn("of 2", ends[0][1])
        self.assertIn("stays out: --preflight failed: exit code 9", ends[0][2])

    def test_clocks_that_agree_let_the_nodes_join(self):
        jobs = [self.node("--nnodes=2", "--preflight=clock", host=i == 0) for i in range(2)]
        self.assertEqual([self.end_of(job)[0] for job in jobs], [0, 0])

    def test_a_node_whose_clock_is_wrong_stays_out(self):
        if subprocess.run([DDPRUN, "--version"], env={**os.environ, **SET_BACK}, capture_output=True).returncode != 0:
            self.skipTest("a sanitizer's library has to be loaded first")
        late = self.node("--nnodes=2", "--preflight=clock", host=False, **SET_BACK)
        time.sleep(2.5)  # it waits for the coordinator
        host = self.node("--nnodes=2", "--preflight=clock", "--join-timeout=60", host=True)
        code, out, err = self.end_of(late)
        self.assertEqual((code, out), (125, ""), err)
        self.assertRegex(err, r"its clock is 3[56]\d\d s behind the coordinator's")
        self.assertEqual(self.end_of(host)[:2], (125, ""))


class Exclude(Preflight):
    def test_an_excluded_node_does_not_join(self):
        name = socket.gethostname()
        code, out, err = self.end_of(self.start("--rdzv-endpoint=other", "--nnodes=2", f"--exclude=gpu[01-03],{name}"))
        self.assertEqual((code, out), (0, ""), err)
        self.assertIn("this node takes no part in the job (--exclude)", err)
        jobs = [self.node("--nnodes=2", "--exclude=gpu[01-03]", host=i == 0) for i in range(2)]
        self.assertEqual([self.end_of(job)[0] for job in jobs], [0, 0])

    def test_a_job_that_would_lack_the_node_is_refused(self):
        name = socket.gethostname()
        for words, said in [([], "where the whole job runs"),
                            (["--nnodes=2", "--rdzv-endpoint=node1", "--exclude=node1"], "where the nodes meet"),
                            (["--nnodes=2", "--master-addr=node1", "--node-rank=1"], "as node rank 1"),
                            (["--nnodes=2", "--rdzv-endpoint=node2", "--exclude=a b"], "names or addresses of hosts")]:
            if not any(word.startswith("--exclude") for word in words):
                words = [*words, f"--exclude={name}"]
            code, out, err = self.run_job(*words)
            self.assertEqual((code, out), (2, ""), err)
            self.assertIn(said, err)

    def test_an_excluded_host_is_not_started(self):
        # With this ssh, a host that is started would fail.
        code, out, err = self.run_job("--hosts=127.0.0.1,node3,node7", "--exclude=node[3-7]", "--ssh=false")
        self.assertEqual((code, out), (0, "rank 0 of 1\n"), err)
        self.assertIn("--exclude: node4 is not one of the hosts", err)
        code, _, err = self.run_job("--hosts=node3", "--exclude=node3")
        self.assertEqual(code, 2)
        self.assertIn("--exclude: expected at least one of the hosts to remain, got 'node3'", err)

    def test_excluded_nodes_of_a_slurm_step_stay_out_and_the_others_are_numbered_anew(self):
        step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "4",
                "SLURM_STEP_NODELIST": "n[1-4]", "SLURM_STEP_TASKS_PER_NODE": "1(x4)", "SLURM_LOCALID": "0"}

        def shown(node, *words, **more):
            return self.run_job("--dry-run", *words, SLURM_NODEID=str(node), SLURM_PROCID=str(node), SLURMD_NODENAME=f"n{node + 1}",
                                **{**step, **more})

        code, out, err = shown(3, "--exclude=n[1,3]")
        self.assertEqual(code, 0, err)
        self.assertIn("GROUP_RANK=1", out)
        self.assertIn("WORLD_SIZE=2", out)
        code, out, err = shown(2, "--exclude=n[1,3]")
        self.assertEqual((code, out), (0, ""), err)
        self.assertIn("takes no part", err)
        self.assertIn("WORLD_SIZE=1", shown(1, "--exclude=n[1,3-4]")[1])
        code, _, err = shown(0, "--exclude=n3", SLURM_STEP_NUM_TASKS="8", SLURM_STEP_TASKS_PER_NODE="2(x4)")
        self.assertEqual(code, 2, err)
        self.assertIn("expected srun --ntasks-per-node=1", err)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
