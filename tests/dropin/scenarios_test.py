"""The scenarios of PyTorch's tests of its launcher and its agent, seen from outside: under ddprun, and under torchrun where a
Python has torch.

usage: scenarios_test.py DDPRUN [--ddprun-only] [--newest] [parts of tests' names]
  --newest  with the newest PyTorch: the folder that DDPRUN_TEST_NEWEST_TORCH names, ahead of that Python's own
Where the two differ on purpose, a test says so, and docs/moving_from_torchrun.md has a table.
"""
import concurrent.futures
import json
import os
import pathlib
import socket
import sys
import tempfile
import time
import traceback

from launchers import PROGRAMS, Launcher, find_newest_torch, find_python, has_torch, own_environment, torch_version

ACT = str(PROGRAMS / "act.py")
SHELL = str(PROGRAMS / "touch.sh")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Scenario:
    """One scenario under one launcher."""

    def __init__(self, launcher, name, torch):
        self.launcher, self.name, self.torch = launcher, name, torch
        self.is_ddprun = launcher.name == "ddprun"
        self.out = launcher.folder / name / f"out_of_{launcher.name}"
        self.out.mkdir(parents=True)

    def run(self, *words, node="one", **options):
        return self.launcher.run(f"{self.name}/{node}", *map(str, words), **options)

    def run_nodes(self, *nodes):
        """Each entry: the words of one node, started at once."""
        with concurrent.futures.ThreadPoolExecutor() as pool:
            futures = [pool.submit(self.run, *words, node=f"node{i}") for i, words in enumerate(nodes)]
            return [future.result() for future in futures]

    def facts(self):
        """What the workers said of themselves, by attempt and rank."""
        found = {}
        for file in self.out.glob("*.json"):
            attempt, rank = map(int, file.stem.split("-"))
            found[attempt, rank] = json.loads(file.read_text())
        return found

    def check_ranks(self, count, attempts=1):
        expected = {(attempt, rank) for attempt in range(attempts) for rank in range(count)}
        assert self.facts().keys() == expected, self.facts().keys()

    def refused(self, job, error):
        """A wrong command line: torchrun shows an exception, or its usage; ddprun one line, and exits with 2."""
        assert job.status == 2 if self.is_ddprun else job.status in (1, 2), job
        assert not self.facts() and (error in job.err if self.is_ddprun else True), job.err


def elastic(port, nodes="1:2", **conf):
    pairs = {"join_timeout": 60, "last_call_timeout": 2, **conf}
    return [f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}", "--rdzv-id=scenario",
            "--rdzv-conf=" + ",".join(f"{key}={value}" for key, value in pairs.items())]


POLL = ["--monitor-interval=0.2", "--start-method=spawn"]


def test_a_script(s):
    job = s.run("--nnodes=1", "--nproc-per-node=4", "--rdzv-id=77", *POLL, ACT, s.out)
    assert job.status == 0, job
    s.check_ranks(4)
    for (_, rank), facts in s.facts().items():
        assert facts["RANK"] == facts["LOCAL_RANK"] == facts["ROLE_RANK"] == str(rank), facts
        assert facts["WORLD_SIZE"] == facts["LOCAL_WORLD_SIZE"] == facts["ROLE_WORLD_SIZE"] == "4", facts
        assert (facts["GROUP_RANK"], facts["GROUP_WORLD_SIZE"], facts["ROLE_NAME"]) == ("0", "1", "default"), facts
        assert facts["TORCHELASTIC_RUN_ID"] == "77" or (not s.is_ddprun and s.torch >= (2, 12)), facts  # it makes one up
        assert facts["TORCHELASTIC_RESTART_COUNT"] == "0", facts
        assert facts["TORCHELASTIC_MAX_RESTARTS"] == "0", facts
        assert facts["TORCHELASTIC_SIGNALS_TO_HANDLE"] == "SIGTERM,SIGINT,SIGHUP,SIGQUIT", facts


def test_the_flags_of_torch_distributed_launch(s):
    port = free_port()
    job = s.run("--nnodes=1", "--nproc-per-node=2", *POLL, "--master-addr=localhost", f"--master-port={port}", "--node-rank=0", ACT, s.out)
    assert job.status == 0, job
    s.check_ranks(2)
    for facts in s.facts().values():
        assert facts["MASTER_PORT"] == str(port), facts
        # Where the host's own name leads elsewhere, torchrun's workers do not meet.
        assert facts["MASTER_ADDR"] == ("127.0.0.1" if s.is_ddprun else "localhost"), facts


def test_a_shell_script(s):
    line = ["--nnodes=1", "--nproc-per-node=4", "--rdzv-id=7", *POLL, "--no-python"]
    s.refused(s.run(*line, "--module", SHELL, s.out), "--module: cannot be used with --no-python")
    job = s.run(*line, SHELL, s.out, node="two")
    assert job.status == 0, job
    assert sorted(file.name for file in s.out.iterdir()) == ["0", "1", "2", "3"]


def test_one_worker_by_default(s):
    assert s.run("--nnodes=1", *POLL, ACT, s.out).status == 0
    s.check_ranks(1)


def test_variables_in_place_of_flags(s):
    flags = {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "2", "PET_RDZV_ID": "7", "PET_MONITOR_INTERVAL": "1",
             "PET_START_METHOD": "spawn", "PET_NO_PYTHON": "1"}
    s.refused(s.run(SHELL, s.out, **flags, PET_MODULE="1"), "--module: cannot be used with --no-python")
    assert s.run(SHELL, s.out, node="two", **flags, PET_MODULE="0").status == 0
    assert sorted(file.name for file in s.out.iterdir()) == ["0", "1"]


def test_as_many_workers_as_asked_for(s):
    s.refused(s.run("--nproc-per-node=unknown", ACT, s.out), "--nproc-per-node: expected")
    assert s.run("--nproc-per-node=auto", *POLL, ACT, s.out, node="auto").status == 0
    # ddprun counts the CPUs that the job may use, torchrun all of the machine.
    cpus = len(os.sched_getaffinity(0)) if s.is_ddprun else os.cpu_count()
    assert 1 <= len(s.facts()) <= cpus if s.is_ddprun else len(s.facts()) == cpus, s.facts().keys()


def test_a_range_of_nodes(s):
    s.refused(s.run("--nnodes=2:20:30", ACT, s.out), "--nnodes: expected N or MIN:MAX")
    assert s.run(*elastic(free_port(), last_call_timeout=1, timeout=5), "--nproc-per-node=2", *POLL, ACT, s.out, node="alone").status == 0
    s.check_ranks(2)


def test_a_worker_that_fails_in_an_elastic_job(s):
    job = s.run(*elastic(free_port(), last_call_timeout=1), "--nproc-per-node=2", *POLL, "--max-restarts=0", ACT, s.out, "fail-odd")
    assert job.status == (5 if s.is_ddprun else 1), job  # ddprun's exit code is the worker's
    s.check_ranks(2)


def test_standalone_and_run_path(s):
    assert s.run("--nnodes=1", "--nproc-per-node=2", "--standalone", *POLL, ACT, s.out).status == 0
    s.check_ranks(2)
    assert s.run("--run-path", "--nproc-per-node=3", *POLL, ACT, s.out, node="two").status == 0
    s.check_ranks(3)


def test_two_nodes(s):
    words = [*elastic(free_port(), last_call_timeout=5), "--nproc-per-node=2", *POLL, ACT, s.out]
    assert [job.status for job in s.run_nodes(words, words)] == [0, 0]
    s.check_ranks(4)
    groups = {}
    for (_, rank), facts in s.facts().items():
        assert (facts["WORLD_SIZE"], facts["GROUP_WORLD_SIZE"]) == ("4", "2"), facts
        groups.setdefault(facts["GROUP_RANK"], []).append(rank)
    assert sorted(map(sorted, groups.values())) == [[0, 1], [2, 3]], groups


def test_logs_specs_that_do_not_exist(s):
    job = s.run("--logs-specs=DOES_NOT_EXIST", ACT, s.out)
    assert job.status == (0 if s.is_ddprun else 1), job  # ddprun has no plug-ins, and says so
    assert "--logs-specs has no effect" in job.err if s.is_ddprun else not s.facts(), job


def test_a_template_of_the_prefix(s):
    job = s.run("--nproc-per-node=2", "--redirect=3", "--tee=3", "--log-dir={folder}/logs", *POLL, "--no-python", SHELL, s.out,
                TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="[rank${rank}]: ")
    assert job.status == 0, job
    for rank in range(2):
        assert f"[rank{rank}]: creating " in job.out, job


def test_a_prefix_with_the_hosts_name(s):
    """torchrun's since 2.14."""
    words = ["--nproc-per-node=2", "--redirect=3", "--tee=3", "--log-dir={folder}/logs", *POLL]
    variable = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "lost "}
    flag = s.run("--log_line_prefix_template=${hostname}|${rank}: ", *words, "--no-python", SHELL, s.out, node="flag", **variable)
    pet = s.run(*words, "--no-python", SHELL, s.out, node="pet", PET_LOG_LINE_PREFIX_TEMPLATE="${hostname}|${rank}: ", **variable)
    for job in flag, pet:
        assert job.status == 0, job
        for rank in range(2):
            assert f"{socket.gethostname()}|{rank}: creating " in job.out, job


def test_a_grace_period(s):
    """torchrun's since 2.12, after a signal; after a failure it stays at the default of 30 s."""
    for node, flags, variables in [("flag", ["--shutdown_timeout=1"], {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "60"}),
                                   ("pet", [], {"PET_SHUTDOWN_TIMEOUT": "1"}), ("own", [], {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1"})]:
        out = s.out / node
        out.mkdir()

        def end(process):
            while not (out / "0-1.json").exists():
                time.sleep(0.01)
            process.send_signal(15)
            end.begin = time.monotonic()
            return b""

        job = s.run(*flags, "--nproc-per-node=2", *POLL, ACT, out, "ignore-term", "sleep", "80", node=node, during=end, **variables)
        assert job.status == (-15 if s.is_ddprun else 1), job
        assert time.monotonic() - end.begin < 29, time.monotonic() - end.begin
    assert s.run("--shutdown-timeout=-1", ACT, s.out, node="bad").status == (2 if s.is_ddprun else 1)


def test_one_node_needs_no_address_of_its_own(s):
    """Two jobs on one host do not get in each other's way: torchrun's since 2.12."""
    assert s.run("--nproc-per-node=2", *POLL, ACT, s.out).status == 0
    facts = s.facts()[0, 0]
    assert facts["MASTER_PORT"] != "29500" and len(facts["TORCHELASTIC_RUN_ID"]) == 36, facts


def test_programs_meet_at_the_given_port(s):
    for url in ["env://", "tcp://localhost:{port}"]:
        port = free_port()
        job = s.run("--nproc-per-node=2", "--master-addr=localhost", f"--master-port={port}", *POLL, ACT, s.out,
                    "meet", url.format(port=port), node=url[:3])
        assert job.status == 0, job


def test_nodes_of_several_sizes_add_up(s):
    port = free_port()
    nodes = [[*elastic(port, "3"), f"--nproc-per-node={size}", *POLL, ACT, s.out, "sum"] for size in (1, 2, 3)]
    assert [job.status for job in s.run_nodes(*nodes)] == [0, 0, 0]
    s.check_ranks(6)


def test_remote_calls(s):
    words = [*elastic(free_port(), "2"), *POLL, ACT, s.out, "rpc"]
    assert [job.status for job in s.run_nodes(words, words)] == [0, 0]


def test_errors_reach_whoever_started_the_launcher(s):
    job = s.run("--nproc-per-node=2", *POLL, ACT, s.out, "fail-record", TORCHELASTIC_ERROR_FILE="{folder}/reply.json")
    assert job.status == 1, job
    message = json.loads((job.folder / "reply.json").read_text())["message"]
    assert message["message"] in ("RuntimeError: sad: rank 0", "RuntimeError: sad: rank 1"), message
    assert int(message["extraInfo"]["timestamp"]) > 0


def test_restarts_are_used_up(s):
    job = s.run("--nproc-per-node=2", "--max-restarts=2", "--standalone", *POLL, ACT, s.out, "fail-odd")
    assert job.status == (5 if s.is_ddprun else 1), job
    s.check_ranks(2, attempts=3)


def test_a_failure_ends_all_nodes_soon(s):
    words = [*elastic(free_port(), "2"), "--nproc-per-node=2", *POLL, ACT, s.out, "fail-odd"]
    ends = []

    def timed(node):
        status = s.run(*words, node=node).status
        ends.append(time.monotonic())
        return status

    with concurrent.futures.ThreadPoolExecutor() as pool:
        statuses = list(pool.map(timed, ["node0", "node1"]))
    assert statuses == ([5, 5] if s.is_ddprun else [1, 1]), statuses
    assert ends[1] - ends[0] < 20, ends


def test_a_node_that_ends_early_does_not_shrink_the_job(s):
    words = [*elastic(free_port(), "2"), "--nproc-per-node=1", *POLL, ACT, s.out, "sleep", "2"]
    assert [job.status for job in s.run_nodes(words, words)] == [0, 0]
    s.check_ranks(2)


def test_an_elastic_job_goes_on_without_a_node(s):
    port = free_port()

    def start(node, is_host):
        def kill(process):
            while not s.facts().keys() >= {(0, 0), (0, 1)}:
                time.sleep(0.05)
            process.kill()
            return b""

        conf = elastic(port, is_host=is_host, last_call_timeout=5, keep_alive_interval=1, keep_alive_max_attempt=3)
        return s.run(*conf, "--max-restarts=2", *POLL, ACT, s.out, "fail-unless-alone", "6", node=node, during=None if is_host else kill).status

    with concurrent.futures.ThreadPoolExecutor() as pool:
        assert list(pool.map(start, ["node0", "node1"], [True, False])) == [0, -9]


def test_file_timers(s):
    enabled = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
    job = s.run("--nproc-per-node=2", "--standalone", ACT, s.out, "timer", "1", node="file",
                TORCHELASTIC_TIMER_FILE="{folder}/timers", **enabled)
    # torchrun's watchdog kills torchrun too, and leaves rank 0 behind.
    assert job.status == (128 + 9 if s.is_ddprun else -9), job
    if s.is_ddprun:
        assert "rank 1: the timer" in job.err and "expired: sending SIGKILL" in job.err, job.err
    assert {facts["TORCHELASTIC_TIMER_FILE"] for facts in s.facts().values()} == {str(job.folder / "timers")}
    assert s.run("--standalone", ACT, s.out, "timer", "1", node="unnamed", **enabled).status == 0
    assert s.facts()[0, 0]["TORCHELASTIC_TIMER_FILE"], s.facts()


def probe(port, patience):
    """What answers an HTTP request at the port."""
    with socket.create_connection(("127.0.0.1", port), timeout=patience) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        return connection.recv(100)


def test_the_health_check_port(s):
    port = free_port()

    def look(process):
        while not s.facts():
            time.sleep(0.01)
        if not s.is_ddprun:  # torchrun as it is has only an interface for a server of one's own
            return b""
        assert probe(port, 5).startswith(b"HTTP/1.1 200 OK"), "no answer"
        with socket.create_connection(("127.0.0.1", port), timeout=5) as silent:
            assert silent.recv(100).startswith(b"HTTP/1.1 200 OK"), "only who speaks is answered"
        process.send_signal(19)  # SIGSTOP
        try:
            assert not probe(port, 0.7), "answered while it was stopped"
        except TimeoutError:
            pass
        finally:
            process.send_signal(18)  # SIGCONT
        assert probe(port, 5).startswith(b"HTTP/1.1 200 OK"), "no answer after it went on"
        return b""

    job = s.run("--nproc-per-node=2", "--standalone", ACT, s.out, "sleep", "4", during=look, TORCHELASTIC_HEALTH_CHECK_PORT=str(port))
    assert job.status == 0, job
    for bad in ("not-a-port", "0"):
        job = s.run("--standalone", ACT, s.out, node=bad, TORCHELASTIC_HEALTH_CHECK_PORT=bad)
        assert job.status == 0 and (not s.is_ddprun or "TORCHELASTIC_HEALTH_CHECK_PORT: expected a port" in job.err), job


def test_flags_in_rdzv_conf_as_scripts_write_them(s):
    """With the quotes that a script leaves in, a space after a comma, and a key that nobody knows."""
    job = s.run("--nnodes=1:2", "--nproc-per-node=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{free_port()}", *POLL,
                "--rdzv-conf='join_timeout=60, last_call_timeout=1,my_key=5'", ACT, s.out)
    assert job.status == 0, job
    s.check_ranks(2)


def test_ranks_within_a_role(s):
    port = free_port()
    nodes = [[*elastic(port, "3"), f"--role={role}", f"--nproc-per-node={size}", *POLL, ACT, s.out]
             for role, size in (("trainer", 2), ("trainer", 1), ("ps", 1))]
    assert [job.status for job in s.run_nodes(*nodes)] == [0, 0, 0]
    s.check_ranks(4)
    for role, size in ("trainer", 3), ("ps", 1):
        mine = sorted((int(facts["ROLE_RANK"]), facts["ROLE_WORLD_SIZE"]) for facts in s.facts().values() if facts["ROLE_NAME"] == role)
        assert mine == [(rank, str(size)) for rank in range(size)], mine


def test_static_nodes_share_the_port_with_the_program(s):
    port = free_port()
    nodes = [["--nnodes=2", f"--node-rank={rank}", "--master-addr=127.0.0.1", f"--master-port={port}", *POLL, ACT, s.out,
              "meet", f"tcp://127.0.0.1:{port}"] for rank in range(2)]
    assert [job.status for job in s.run_nodes(*nodes)] == [0, 0]
    assert {facts["MASTER_PORT"] for facts in s.facts().values()} == {str(port)}


NEEDS_TORCH = [test_programs_meet_at_the_given_port, test_nodes_of_several_sizes_add_up, test_remote_calls,
               test_errors_reach_whoever_started_the_launcher, test_file_timers,
               test_static_nodes_share_the_port_with_the_program]

# torchrun's tests of these need at least this version.
SINCE = {test_a_prefix_with_the_hosts_name: (2, 14), test_a_grace_period: (2, 12), test_one_node_needs_no_address_of_its_own: (2, 12)}


def run_all(launchers, torch):
    failed = 0
    only = [word for word in sys.argv[2:] if word not in ("", "--ddprun-only", "--newest")]
    for name, test in list(globals().items()):
        if not name.startswith("test_") or (test in NEEDS_TORCH and not torch) or (only and not any(word in name for word in only)):
            continue
        for launcher in launchers:
            if launcher.name == "torchrun" and torch < SINCE.get(test, torch):
                continue
            begin = time.monotonic()
            try:
                test(Scenario(launcher, name, torch))
                verdict = "passed"
            except Exception:
                traceback.print_exc()
                verdict, failed = "FAILED", failed + 1
            print(f"{verdict} after {time.monotonic() - begin:.1f} s: {launcher.name}, {name[5:].replace('_', ' ')}", flush=True)
    return failed


def main():
    python = os.environ.get("DDPRUN_TEST_PYTHON")
    newest = find_newest_torch(find_python()) if "--newest" in sys.argv else None
    torch = bool(python) and has_torch(python)
    python = python if torch else sys.executable
    commands = {"ddprun": [os.path.abspath(sys.argv[1])]}
    if torch and "--ddprun-only" not in sys.argv:
        commands["torchrun"] = [python, "-m", "torch.distributed.run"]
    environment = own_environment(python, newest)
    with tempfile.TemporaryDirectory(prefix="ddprun-scenarios-") as folder:
        launchers = [Launcher(name, words, pathlib.Path(folder), environment) for name, words in commands.items()]
        sys.exit(run_all(launchers, torch and torch_version(environment)) > 0)


main()
