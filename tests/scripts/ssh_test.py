"""--hosts over a real ssh to a real sshd: what the other hosts run and say, and that nothing is left on any of them, whoever is killed.

The hosts are all this machine: 127.0.0.1 is the one where ddprun is typed, 127.0.0.2 and the names node2 and node3, which only ssh knows,
are reached over an sshd that this test starts with keys of its own.

usage: ssh_test.py DDPRUN
"""
import os
import pathlib
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
import uuid

from waiting import wait_for

DDPRUN = str(pathlib.Path(sys.argv[1]).resolve())
SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
SKIPPED = 4


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def processes(wanted):
    """The living processes whose environment, as they started, has these bytes."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            pass
    return found


def command(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return [""]


class Hosts(unittest.TestCase):
    """Each test has its own sshd, folder, and mark in the environment of what it starts."""

    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)
        self.port = free_port()
        for key in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / key], check=True)
        shutil.copy(self.folder / "user.pub", self.folder / "authorized")
        (self.folder / "known").write_text(f"* {(self.folder / 'host.pub').read_text()}")
        (self.folder / "sshd_config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nListenAddress 127.0.0.2\nHostKey {self.folder}/host\n"
            f"AuthorizedKeysFile {self.folder}/authorized\nPidFile none\nUsePAM no\nStrictModes no\n"
            "PermitRootLogin yes\nMaxStartups 100\n")
        self.config = self.folder / "ssh_config"
        self.config.write_text(
            "Host node2\n  HostName 127.0.0.2\nHost node3\n  HostName 127.0.0.1\nHost silent\n  Port 1\n  HostName 127.0.0.1\n"
            f"Host *\n  Port {self.port}\n  IdentityFile {self.folder}/user\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.folder}/known\n  GlobalKnownHostsFile /dev/null\n")
        if os.geteuid() == 0:
            pathlib.Path("/run/sshd").mkdir(exist_ok=True)  # it refuses to start as root without
        with open(self.folder / "sshd.log", "wb") as log:
            self.sshd = subprocess.Popen([SSHD, "-D", "-e", "-f", self.folder / "sshd_config"], stdin=subprocess.DEVNULL,
                                         stdout=subprocess.DEVNULL, stderr=log)
        wait_for(lambda: "listening" in (self.folder / "sshd.log").read_text())
        self.mark = f"SSH_TEST={uuid.uuid4().hex}"
        self.work = self.folder / "a folder"
        self.work.mkdir()
        self.jobs = []

    def tearDown(self):
        for job in self.jobs:
            if job.poll() is None:
                job.kill()
            job.communicate()
        self.sshd.kill()
        self.sshd.wait()
        self.temporary.cleanup()

    def ssh(self, *options):
        return " ".join(["ssh", "-F", str(self.config), *options])

    def start(self, *words, env=(), hosts="127.0.0.1,127.0.0.2", ssh=None, **streams):
        name, _, value = self.mark.partition("=")
        environment = {**os.environ, name: value, "TERM": "dumb", **dict(env)}
        job = subprocess.Popen([DDPRUN, f"--hosts={hosts}", f"--ssh={ssh or self.ssh()}", *words], cwd=self.work, env=environment,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **streams)
        self.jobs.append(job)
        return job

    def run_job(self, *words, patience=120, **how):
        job = self.start(*words, **how)
        out, err = job.communicate(timeout=patience)
        return job.returncode, out, err

    def remote(self):
        """The processes that came over ssh."""
        return processes(b" %d\0" % self.port)

    def local(self):
        return [pid for pid in processes(self.mark.encode()) if pid not in self.remote()]

    def assert_nothing_is_left(self):
        wait_for(lambda: not self.remote() and not self.local())

    def remote_ddpruns(self):
        """Without their guards, whose parents have the same words."""
        pids = [pid for pid in self.remote() if "--started-over-ssh" in command(pid) and "ddprun" in command(pid)[0]]
        return [pid for pid in pids if pathlib.Path(f"/proc/{pid}/comm").read_text() != "ddprun-guard\n"]

    def running(self, *words, workers=2, **how):
        """A job whose workers have all begun."""
        job = self.start(*words, "sh", "-c", f"touch {self.folder}/begun$RANK; sleep 1000 & wait", **how)
        wait_for(lambda: len(list(self.folder.glob("begun*"))) == workers or job.poll() is not None)
        self.assertIsNone(job.poll(), job.poll() is not None and job.communicate())
        return job


class What(Hosts):
    def test_ddprun_on_the_other_host_is_part_of_the_job_in_the_same_folder(self):
        code, out, err = self.run_job("--nproc-per-node=2", "sh", "-c", "echo rank $RANK of $WORLD_SIZE local $LOCAL_RANK in \"$PWD\"")
        self.assertEqual(code, 0, err)
        self.assertEqual(sorted(out.splitlines()), [f"rank {i} of 4 local {i % 2} in {self.work}" for i in range(4)])
        self.assert_nothing_is_left()

    def test_a_host_that_is_not_in_the_list_only_starts_the_others(self):
        code, out, err = self.run_job("--rdzv-endpoint=127.0.0.2", "--prefix", "sh", "-c", "echo rank $RANK; ps -o comm= -p $PPID",
                                      hosts="node[2-3]")
        self.assertEqual(code, 0, err)
        self.assertEqual(sorted(out.splitlines()), ["[node2:default0]:ddprun", "[node2:default0]:rank 0",
                                                    "[node3:default0]:ddprun", "[node3:default0]:rank 1"])

    def test_the_exit_code_and_the_report_are_those_of_the_first_failure(self):
        for hosts, words in [("127.0.0.1,127.0.0.2", ()), ("node2,node3", ("--rdzv-endpoint=127.0.0.2",))]:
            code, _, err = self.run_job(*words, "sh", "-c", "[ $RANK = 0 ] && sleep 1000; exit 7", hosts=hosts)
            self.assertEqual(code, 7, err)
            self.assertEqual(err.count("Root Cause"), 1, err)
            self.assertEqual(err.count("rank 1 failed: exit code 7"), 1, err)
            self.assert_nothing_is_left()

    def test_bytes_of_the_program_arrive_unchanged(self):
        words = ["two words", "it's", 'a "quote"', "$HOME `id` \\ ! * ?", "", "ü\n\x01", "--hosts=x"]
        code, out, err = self.run_job("python3", "-c", "import sys; print(ascii(sys.argv[1:]))", *words)
        self.assertEqual(code, 0, err)
        self.assertEqual(out.splitlines(), [ascii(words)] * 2)

    def test_a_hostfile_gives_each_host_its_number_of_workers(self):
        (self.work / "hosts").write_text("# ours\n127.0.0.1 slots=1\n\n127.0.0.2:2 # and theirs\n")
        environment = {**os.environ, "DDPRUN_HOSTFILE": "hosts"}
        done = subprocess.run([DDPRUN, f"--ssh={self.ssh()}", "sh", "-c", "echo $RANK $LOCAL_WORLD_SIZE"], cwd=self.work,
                              env=environment, capture_output=True, text=True, timeout=120)
        self.assertEqual(sorted(done.stdout.splitlines()), ["0 1", "1 2", "2 2"], done.stderr)

    def test_chosen_variables_are_set_there_and_no_others(self):
        show = "echo $RANK $NCCL_DEBUG $OURS_A ${MINE:-none} ${DDPRUN_TOKEN:-none}; case $PATH in */there:*) echo found; esac"
        code, out, err = self.run_job("--ssh-env=OURS_*", "sh", "-c", show,
                                      env={"NCCL_DEBUG": "INFO", "OURS_A": "a b", "MINE": "1", "DDPRUN_TOKEN": "secret",
                                           "PATH": f"{self.folder}/there:{os.environ['PATH']}"})
        self.assertEqual(code, 0, err)
        self.assertIn("0 INFO a b 1 none\n", out)
        self.assertIn("1 INFO a b none none\n", out)
        self.assertEqual(out.count("found"), 2, out)

    def test_neither_token_nor_variables_are_in_a_command_line_or_in_sshs_environment(self):
        job = self.running("--ssh-env=OURS", env={"DDPRUN_TOKEN": "the-token-of-this-job", "OURS": "value-of-ours"})
        ssh = [pid for pid in self.local() if pathlib.Path(f"/proc/{pid}/comm").read_text() == "ssh\n"]
        self.assertEqual(len(ssh), 1)
        self.assertNotIn(b"the-token", pathlib.Path(f"/proc/{ssh[0]}/environ").read_bytes())
        for pid in [*self.local(), *self.remote()]:
            self.assertNotIn("the-token", " ".join(command(pid)))
            self.assertNotIn("value-of-ours", " ".join(command(pid)))
        for pid in self.remote():
            self.assertNotIn(b"the-token", pathlib.Path(f"/proc/{pid}/environ").read_bytes())
        job.terminate()
        job.wait(timeout=60)
        self.assert_nothing_is_left()

    def test_an_elastic_job_goes_on_without_a_host_that_cannot_be_reached(self):
        code, out, err = self.run_job("--nnodes=1:2", "--last-call=1", "sh", "-c", "echo rank $RANK of $WORLD_SIZE",
                                      hosts="127.0.0.1,silent", env={"DDPRUN_RDZV_ENDPOINT": "127.0.0.1"})
        self.assertEqual((code, out), (0, "rank 0 of 1\n"), err)
        self.assertIn("warning: silent: cannot start ddprun there: ssh: connect to host 127.0.0.1 port 1", err)

    def test_a_dry_run_shows_what_would_run_on_each_host(self):
        code, out, err = self.run_job("--dry-run", "train", hosts="127.0.0.1,127.0.0.2")
        self.assertEqual(code, 127, err)
        code, out, err = self.run_job("--dry-run", "true", env={"DDPRUN_TOKEN": "the-token"})
        self.assertEqual(code, 0, err)
        self.assertIn("host 127.0.0.1: this ddprun\n", out)
        self.assertRegex(out, r"host 127\.0\.0\.2\n  runs: ssh -F .* -o BatchMode=yes .* 127\.0\.0\.2 .*--started-over-ssh")
        self.assertNotIn("the-token", out + err)


    def test_the_folder_is_as_the_shell_calls_it(self):
        link = self.folder / "link"
        link.symlink_to(self.work)
        code, out, err = self.run_job("--dry-run", "true", env={"PWD": str(link)})
        self.assertEqual(code, 0, err)
        self.assertIn(f"folder: {link}\n", out)

    def test_a_task_of_mpirun_starts_no_other_hosts(self):
        task = {f"OMPI_COMM_WORLD_{name}": value for name, value in (("SIZE", "2"), ("RANK", "0"), ("LOCAL_SIZE", "2"), ("LOCAL_RANK", "0"))}
        code, _, err = self.run_job("true", env=task)
        self.assertEqual(code, 2, err)
        self.assertIn("--hosts: cannot be used under", err)

    def test_on_a_terminal_each_line_names_its_host(self):
        words = [DDPRUN, "--hosts=127.0.0.1,127.0.0.2", f"--ssh={self.ssh()}", "sh", "-c", "printf 'unfinished '; echo line"]
        done = subprocess.run(["script", "-qec", shlex.join(words), "/dev/null"], cwd=self.work, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=120, env={**os.environ, "TERM": "dumb"})
        lines = [line for line in done.stdout.splitlines() if not line.startswith("ddprun: ")]
        self.assertEqual(sorted(lines), [f"[127.0.0.{i}:default0]:unfinished line" for i in (1, 2)])


class Preflight(Hosts):
    def test_a_host_that_stays_out_is_told_of_once_and_ends_the_job(self):
        words = ["--preflight=echo no GPU $GROUP_RANK; [ $GROUP_RANK != 1 ]", "sleep", "1000"]
        for hosts, bad, more in [("127.0.0.1,127.0.0.2", "127.0.0.2", ()), ("node2,node3", "node3", ("--rdzv-endpoint=127.0.0.2",))]:
            code, _, err = self.run_job(*more, *words, hosts=hosts)
            self.assertEqual(code, 125, err)
            self.assertEqual(err.count("no GPU 1"), 1, err)
            self.assertRegex(err, rf"error: node {bad}.* stays out: --preflight failed: exit code 1: no GPU 1\n")
            self.assert_nothing_is_left()

    def test_the_other_hosts_are_waited_for(self):
        words = ["--preflight=[ $GROUP_RANK != 1 ] && { [ $GROUP_RANK = 0 ] || sleep 2; echo no GPU $GROUP_RANK; [ $GROUP_RANK = 0 ]; }"]
        code, _, err = self.run_job("--rdzv-endpoint=127.0.0.1", *words, "sleep", "1000", hosts="127.0.0.1,127.0.0.2,node3")
        self.assertEqual(code, 125, err)
        self.assertRegex(err, "error: node 127.0.0.2.* stays out: .*; node node3.* stays out: .*no GPU 2\n")
        self.assert_nothing_is_left()

    def test_a_spare_host_takes_the_place_of_one_that_stays_out(self):
        fails_on_one = "--preflight=[ -n \"$SSH_CONNECTION\" ] && mkdir out && echo no GPU && exit 1; exit 0"
        train = "touch begun$RANK; until [ -e go ]; do sleep 0.05; done; echo rank $RANK of $WORLD_SIZE"
        job = self.start("--spares=1", "--rdzv-endpoint=127.0.0.1", fails_on_one, "sh", "-c", train, hosts="127.0.0.1,127.0.0.2,node3")
        wait_for(lambda: all((self.work / name).exists() for name in ("begun0", "begun1", "out")))
        wait_for(lambda: len(self.remote_ddpruns()) == 1)  # the other one has been told that it stays out
        (self.work / "go").touch()
        out, err = job.communicate(timeout=120)
        code = job.returncode
        self.assertEqual((code, sorted(out.splitlines())), (0, ["rank 0 of 2", "rank 1 of 2"]), err)
        self.assertEqual(err.count("no GPU"), 1, err)
        self.assertRegex(err, "warning: refused: node (127.0.0.2|node3) .*stays out: --preflight failed: exit code 1: no GPU\n")

    def test_the_job_goes_on_without_the_host_where_it_is_typed(self):
        for code in (0, 5):
            got, out, err = self.run_job("--rdzv-endpoint=127.0.0.2", "--spares=1", "--shutdown-timeout=1", '--preflight=test -n "$SSH_CONNECTION"', "sh", "-c",
                                         f"sleep 1; echo rank $RANK; exit {code}", hosts="node2,127.0.0.1,node3")
            self.assertEqual(got, code, err)
            self.assertRegex(out, "rank 0" if code == 0 else "rank [01]", err)  # the first to fail may end the other
            self.assertIn("--preflight failed: exit code 1", err)
            self.assert_nothing_is_left()

    def test_a_host_that_cannot_be_reached_meanwhile_is_no_failure_of_the_preflight(self):
        code, _, err = self.run_job("--preflight=sleep 1000", "--rdzv-endpoint=127.0.0.1", "true", hosts="127.0.0.1,silent")
        self.assertEqual(code, 125, err)
        self.assertRegex(err, "error: silent: cannot start ddprun there: .*port 1: Connection refused")
        self.assertNotIn("preflight", err)
        self.assert_nothing_is_left()


class Failures(Hosts):
    def assert_one_line(self, done, *, reason, code=125):
        self.assertEqual(done[0], code, done[2])
        lines = [line for line in done[2].splitlines() if "error" in line or "ssh" in line]
        self.assertEqual(len(lines), 1, done[2])
        self.assertRegex(lines[0], reason)
        self.assert_nothing_is_left()

    def test_a_host_that_cannot_be_reached_is_named_in_one_line(self):
        for hosts in ("127.0.0.1,silent", "node2,silent"):
            done = self.run_job("--rdzv-endpoint=127.0.0.2", "sleep", "1000", hosts=hosts)
            self.assert_one_line(done, reason="^ddprun: error: silent: cannot start ddprun there: .*port 1: Connection refused")

    def test_an_ssh_that_fails_at_once_ends_the_job(self):
        for _ in range(10):  # it may end before this host's own ddprun has reached its coordinator
            done = self.run_job("--rdzv-endpoint=127.0.0.2", "sleep", "1000", hosts="127.0.0.1,silent", ssh="false", patience=20)
            self.assert_one_line(done, reason="^ddprun: error: silent: cannot start ddprun there: ssh has ended with exit code 1")

    def test_an_unknown_host_key_or_a_missing_key_ends_the_job_and_asks_nothing(self):
        done = self.run_job("sleep", "1000", ssh=self.ssh("-o", "UserKnownHostsFile=/dev/null"))
        self.assert_one_line(done, reason="127.0.0.2: cannot start ddprun there: Host key verification failed")
        done = self.run_job("sleep", "1000", ssh=self.ssh("-o", "PubkeyAuthentication=no"))
        self.assert_one_line(done, reason="127.0.0.2: cannot start ddprun there: .*Permission denied")

    def test_a_host_without_ddprun_is_named_in_one_line(self):
        done = self.run_job("--ssh-ddprun=/nowhere/ddprun", "sleep", "1000")
        self.assert_one_line(done, reason="127.0.0.2: cannot start ddprun there: there is no ddprun at /nowhere/ddprun")

    def test_a_host_without_the_folder_is_named_in_one_line(self):
        script = self.folder / "ssh"  # as if the folder were not there
        script.write_text(f"#!/bin/sh\nmv '{self.work}' '{self.folder}/moved'\nexec {self.ssh()} \"$@\"\n")
        script.chmod(0o700)
        done = self.run_job("sleep", "1000", ssh=str(script))
        self.assert_one_line(done, reason=f"127.0.0.2: cannot start ddprun there: cannot work in the folder {self.work}: No such file")

    def test_a_program_that_is_missing_there_ends_the_job_with_127(self):
        (self.folder / "here").mkdir()
        (self.folder / "here/only_here").symlink_to("/bin/sleep")
        script = self.folder / "ssh"
        script.write_text(f"#!/bin/sh\nrm -r '{self.folder}/here'\nexec {self.ssh()} \"$@\"\n")
        script.chmod(0o700)
        code, _, err = self.run_job("only_here", "1000", ssh=str(script), env={"PATH": f"{self.folder}/here:{os.environ['PATH']}"})
        self.assertEqual(code, 127, err)
        self.assertIn("ddprun on 127.0.0.2: error: cannot run only_here: not found in PATH", err)
        self.assert_nothing_is_left()


class Endings(Hosts):
    def test_a_signal_reaches_the_workers_of_all_hosts(self):
        for hosts, words in [("127.0.0.1,127.0.0.2", ()), ("node2,node3", ("--rdzv-endpoint=127.0.0.2",))]:
            job = self.running(*words, hosts=hosts)
            job.send_signal(signal.SIGINT)
            _, err = job.communicate(timeout=60)
            self.assertEqual(job.returncode, -signal.SIGINT)
            self.assertNotIn("error", err)
            self.assert_nothing_is_left()
            for file in self.folder.glob("begun*"):
                file.unlink()

    def test_workers_of_all_hosts_get_ctrl_c_once_and_nothing_before_it(self):
        program = ("import os, signal, sys, time\ngot = []\n"
                   "for one in (signal.SIGINT, signal.SIGTERM): signal.signal(one, lambda number, _: got.append(number))\n"
                   "print('begun', flush=True)\nwhile not got: time.sleep(0.01)\n"
                   "time.sleep(2)\nprint('got', *map(int, got), flush=True)")
        for hosts, words in [("127.0.0.1,127.0.0.2", ()), ("127.0.0.1,node2,node3", ("--rdzv-endpoint=127.0.0.1",)),
                             ("node2,node3", ("--rdzv-endpoint=127.0.0.2",)), ("127.0.0.1,127.0.0.2", ("--nnodes=1:2",))]:
            job = self.start(*words, "--shutdown-timeout=60", "python3", "-c", program, hosts=hosts)
            workers = len(hosts.split(","))
            begun = [job.stdout.readline() for _ in range(workers)]
            self.assertEqual(begun, ["begun\n"] * workers, "" in begun and job.communicate())
            job.send_signal(signal.SIGINT)
            out, err = job.communicate(timeout=60)
            self.assertEqual(out, "got 2\n" * workers, err)
            self.assert_nothing_is_left()

    def test_a_worker_that_saves_has_its_time_though_another_host_has_ended(self):
        saves = (f"trap 'sleep 8; touch {self.folder}/saved; exit 0' TERM; echo begun $RANK; "
                 "if [ $RANK = 0 ]; then trap - TERM; exec sleep 1000; fi; while :; do sleep 0.1; done")
        job = self.start("--rdzv-endpoint=127.0.0.2", "sh", "-c", saves, hosts="node2,node3")
        self.assertEqual({job.stdout.readline() for _ in range(2)}, {"begun 0\n", "begun 1\n"})
        job.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(timeout=60), -signal.SIGTERM)
        self.assertTrue((self.folder / "saved").exists())
        self.assert_nothing_is_left()

    def test_a_second_signal_kills_the_workers_of_all_hosts(self):
        for hosts, words in [("127.0.0.1,127.0.0.2", ()), ("node2,node3", ("--rdzv-endpoint=127.0.0.2",))]:
            stubborn = "trap : TERM; echo begun $RANK; while :; do sleep 1; done"
            job = self.start("--shutdown-timeout=1000", *words, "sh", "-c", stubborn, hosts=hosts)
            self.assertEqual({job.stdout.readline() for _ in range(2)}, {"begun 0\n", "begun 1\n"})
            job.send_signal(signal.SIGTERM)
            wait_for(lambda: "signal" in job.stderr.readline())
            job.send_signal(signal.SIGTERM)
            self.assertEqual(job.wait(timeout=60), -signal.SIGTERM)
            self.assert_nothing_is_left()

    def test_a_connection_that_ssh_shares_outlives_the_job(self):
        ssh = self.ssh("-o", "ControlMaster=auto", "-o", "ControlPersist=600", "-o", f"ControlPath={self.folder}/shared")
        code, out, err = self.run_job("--max-restarts=1", "sh", "-c", "[ $RANK = 0 ] && sleep 1000; exit 3", ssh=ssh)
        self.assertEqual(code, 3, err)
        self.assertIn("restart 1 of 1", err)
        self.assertNotIn("connection has ended", err)
        shared = [*shlex.split(ssh), "127.0.0.2"]
        self.assertIn("Master running", subprocess.run([*shared[:1], "-O", "check", *shared[1:]], capture_output=True, text=True).stderr)
        subprocess.run([*shared[:1], "-O", "exit", *shared[1:]], check=True, capture_output=True)
        self.assert_nothing_is_left()

    def test_a_forwarded_signal_reaches_the_workers_of_all_hosts(self):
        program = ("import os, signal, sys\nsignal.signal(signal.SIGUSR1, lambda *_: (print('got it', flush=True), sys.exit()))\n"
                   "print('begun', os.environ['RANK'], flush=True)\nsignal.pause()")
        job = self.start("python3", "-c", program)
        self.assertEqual({job.stdout.readline() for _ in range(2)}, {"begun 0\n", "begun 1\n"})
        job.send_signal(signal.SIGUSR1)
        out, err = job.communicate(timeout=60)
        self.assertEqual((job.returncode, out), (0, "got it\n" * 2), err)

    def kill_one(self, hosts, words, victims):
        job = self.running(*words, hosts=hosts)
        for pid in victims(job):
            os.kill(pid, signal.SIGKILL)
        _, err = job.communicate(timeout=90)
        self.assert_nothing_is_left()
        for file in self.folder.glob("begun*"):
            file.unlink()
        return job.returncode, err

    def test_a_signal_ends_the_wait_for_a_host_that_does_not_answer(self):
        with socket.socket() as deaf:  # connections are queued, and nobody says a word
            deaf.bind(("127.0.0.1", 0))
            deaf.listen()
            self.config.write_text(self.config.read_text().replace("Port 1\n", f"Port {deaf.getsockname()[1]}\n"))
            for hosts in ("127.0.0.1,silent", "node2,silent"):
                job = self.start("--rdzv-endpoint=127.0.0.1", "sleep", "1000", hosts=hosts)
                wait_for(lambda: "1 of 2 joined" in job.stderr.readline())
                job.terminate()
                self.assertEqual(job.wait(timeout=20), -signal.SIGTERM)
                self.assert_nothing_is_left()

    def test_a_host_that_does_not_answer_is_given_up_once_the_job_is_over_on_the_others(self):
        with socket.socket() as deaf:
            deaf.bind(("127.0.0.1", 0))
            deaf.listen()
            self.config.write_text(self.config.read_text().replace("Port 1\n", f"Port {deaf.getsockname()[1]}\n"))
            for hosts, exits, expected in (("node2,silent", 0, 0), ("node2,silent", 7, 7), ("silent,node2", 0, 125)):
                code, _, err = self.run_job("--rdzv-endpoint=127.0.0.2", "--nnodes=1:2", "--last-call=1", "--join-timeout=3", "sh", "-c",
                                            f"exit {exits}", hosts=hosts, ssh=self.ssh("-o", "ConnectTimeout=600"), patience=100)
                self.assertEqual(code, expected, err)
                self.assert_nothing_is_left()

    def test_a_spare_host_takes_the_place_of_one_whose_connection_is_lost(self):
        train = f"echo $PPID > {self.folder}/rank$RANK; until [ -e {self.folder}/go ]; do sleep 0.05; done; echo done $RANK"
        sockets = self.folder / "sockets"
        sockets.mkdir(mode=0o700)
        seen = {"DDPRUN_CONTROL_DIR": str(sockets)}
        job = self.start("--spares=1", "--rdzv-endpoint=127.0.0.1", "sh", "-c", train, hosts="127.0.0.1,node2,node3", env=seen)
        ask = [pathlib.Path(DDPRUN).with_name("ddpctl"), "drain", "nobody"]  # refused, with the names of all nodes

        def have_joined():
            refused = subprocess.run(ask, env={**os.environ, **seen}, capture_output=True, text=True).stderr
            return "node2" in refused and "node3" in refused
        wait_for(have_joined)
        rank_1 = self.folder / "rank1"
        wait_for(lambda: rank_1.exists() and rank_1.read_text())
        first = rank_1.read_text()
        session = int(pathlib.Path(f"/proc/{first.strip()}/stat").read_text().split()[3])
        self.assertIn("sshd", command(session)[0])
        os.kill(session, signal.SIGKILL)
        wait_for(lambda: rank_1.read_text() not in ("", first) or job.poll() is not None)
        (self.folder / "go").touch()
        out, err = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 0, err)
        self.assertEqual(sorted(line for line in out.splitlines() if "done" in line), ["done 0", "done 1"])
        self.assertIn(" is drained: ending this node's workers", err)

    def test_nothing_is_left_when_one_of_them_is_killed(self):
        def of_name(name):
            return lambda _: [pid for pid in self.local() if pathlib.Path(f"/proc/{pid}/comm").read_text() == f"{name}\n"][:1]

        def sessions(_):
            children = pathlib.Path(f"/proc/{self.sshd.pid}/task/{self.sshd.pid}/children").read_text().split()
            return [int(pid) for pid in children][:1]

        for hosts, words in [("127.0.0.1,127.0.0.2", ()), ("node2,node3", ("--rdzv-endpoint=127.0.0.2",))]:
            for name, victims, codes in [("ddprun", lambda job: [job.pid], {-signal.SIGKILL}),
                                         ("ssh", of_name("ssh"), {125, 143}),
                                         ("sshd", sessions, {125, 143}),
                                         ("the other ddprun", lambda _: self.remote_ddpruns()[:1], {125})]:
                with self.subTest(killed=name, hosts=hosts):
                    code, err = self.kill_one(hosts, words, victims)
                    self.assertIn(code, codes, err)


if __name__ == "__main__":
    if not SSHD or not shutil.which("ssh"):
        print("skipped: no sshd here (openssh-server: scripts/setup.sh --dev installs it)")
        sys.exit(SKIPPED)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
