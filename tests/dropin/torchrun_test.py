"""Programs do the same under ddprun as under torchrun, where we do not say otherwise.

usage: torchrun_test.py DDPRUN [--newest]
  --newest  with the newest PyTorch: the folder that DDPRUN_TEST_NEWEST_TORCH names, ahead of that Python's own
The differences that we mean are in DIFFERENCES below, in each test, and in docs/moving_from_torchrun.md.
"""
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import traceback

from launchers import PROGRAMS, Launcher, find_newest_torch, find_python, own_environment, torch_version

UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
SHOW = str(PROGRAMS / "show.py")

# Variables that are not equal to torchrun's: what they are under ddprun (None: not set), and why.
DIFFERENCES = {
    "MASTER_ADDR": (r"127\.0\.0\.1", "torchrun's host name need not resolve"),
    "MASTER_PORT": (r"\d+", "a port of this job"),
    "TORCHELASTIC_RUN_ID": (UUID, "random in both"),
    "TORCHELASTIC_USE_AGENT_STORE": ("False", "rank 0 hosts the store, the launcher has none"),
    "TORCHELASTIC_ERROR_FILE": (r"{folder}/logs/[^/]+/attempt_\d/\d/error\.json", "the run's folder has another name"),
    "OMP_NUM_THREADS": (r"\d+", "the share of the CPUs and not 1"),
    "DDPRUN_JOB_ID": (UUID, "ours"),
    "DDPRUN_SHARED_JOB_ID": (UUID, "ours"),
    "DDPRUN_LAUNCHER": (r"\d*:\d+:\d+:\d+", "ours"),
    "DDPRUN_COMMAND": (r".*ddprun.*", "ours"),
    "DDPRUN_STORE_FD": (r"\d+", "ours, in rank 0"),
    "DDPRUN_ROUND": (r"\d+", "ours"),
    "DDPRUN_STATUS_FD": (r"\d+", "ours"),
}


def compare_environments(torchruns, ours, allowed):
    for name in sorted(torchruns.keys() | ours.keys()):
        theirs, mine = torchruns.get(name), ours.get(name)
        if name not in allowed:
            assert theirs == mine, f"{name}: torchrun gives {theirs!r}, ddprun {mine!r}"
        elif DIFFERENCES[name][0] is None:
            assert mine is None, f"{name}: expected not to be set, got {mine!r}"
        elif name != "DDPRUN_STORE_FD" or ours["RANK"] == "0":
            assert mine is not None and re.fullmatch(DIFFERENCES[name][0], mine), f"{name}: {mine!r}"


def compare_views(theirs, mine, allowed):
    """What show.py saw under both."""
    compare_environments(theirs["environment"], mine["environment"], allowed)
    for what in theirs.keys() - {"environment", "arguments", "stdin"}:
        assert theirs[what] == mine[what], f"{what}: torchrun gives {theirs[what]!r}, ddprun {mine[what]!r}"


PARSER = """
import json, torch.distributed.run as run
print(json.dumps([action.option_strings for action in run.get_args_parser()._actions]))
"""


def test_every_flag_of_torchrun_is_one_of_ddprun(torchrun, ddprun):
    words = subprocess.run([torchrun.command[0], "-c", PARSER], env=torchrun.environment, check=True, capture_output=True, text=True).stdout
    script = subprocess.run([*ddprun.command, "--print-completion=bash"], check=True, capture_output=True, text=True).stdout
    ours = subprocess.run(["bash", "-c", script + "echo $_ddprun_flags"], check=True, capture_output=True, text=True).stdout.split()
    theirs = {word.replace("_", "-") for option in json.loads(words) for word in option}
    assert "--nproc-per-node" in theirs and theirs <= set(ours), theirs - set(ours)


def tee_lines(role, rank):
    lines = ["first line of {}", "loss {}: \u00e9, \ttab,  two spaces", "bytes \0 \ufffd of {}", "no end of line of {}"]
    return [f"[{role}{rank}]:" + line.format(rank) for line in lines]


def test_a_line_from_a_users_script_runs_with_one_word_changed(torchrun, ddprun):
    line = ["--standalone", "--nnodes=1", "--nproc_per_node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0",
            "--max_restarts=0", "--tee", "3", "--role", "trainer", "--duplicate_stdout_filters=loss,nothing",
            "--log_dir", "{folder}/logs",
            SHOW, "--lr", "0.1", "", "two words", "--", "$$", "${local_rank}", "--read", "--nnodes=7"]
    theirs, mine = torchrun.run("line", *line), ddprun.run("line", *line, stdin="typed")
    expanded = ddprun.run("expanded", "--expand", *line)
    assert theirs.status == mine.status == expanded.status == 0, (theirs, mine, expanded)

    for rank in range(2):
        compare_views(theirs.seen(0, rank), expanded.seen(0, rank), DIFFERENCES)
        # Other than torchrun we leave arguments alone, but for --expand.
        assert mine.seen(0, rank)["arguments"] == line[line.index(SHOW) + 1:], mine.seen(0, rank)
        assert theirs.seen(0, rank)["arguments"][-4:-2] == ["$", str(rank)], theirs.seen(0, rank)
        assert mine.seen(0, rank)["command"][1] == "-u"
        # Other than under torchrun only rank 0 reads what is typed: nobody takes it away from another.
        assert mine.seen(0, rank)["stdin"] == ("typed" if rank == 0 else "")
        threads = int(mine.seen(0, rank)["environment"]["OMP_NUM_THREADS"])
        assert 1 <= threads <= max(1, len(os.sched_getaffinity(0)) // 2), threads

    assert mine.files().keys() == theirs.files().keys()
    for path, content in theirs.files().items():  # of the filtered file the order of ranks is chance
        assert sorted(mine.files()[path].split(b"\n")) == sorted(content.split(b"\n")), path
    lines = sorted(tee_lines("trainer", 0) + tee_lines("trainer", 1))
    assert sorted(mine.out.rstrip("\n").split("\n")) == lines, mine.out
    for text in lines:  # torchrun does not end the last line of a rank, so that another's prefix may follow
        assert text in theirs.out, (text, theirs.out)
    for rank in range(2):
        assert f"[trainer{rank}]:a warning of {rank}\n" in mine.err and f"[trainer{rank}]:a warning of {rank}\n" in theirs.err


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def test_variables_give_flags_and_a_module_starts_again_after_a_failure(torchrun, ddprun):
    flags = {"PET_NPROC_PER_NODE": "2", "PET_MAX_RESTARTS": "1", "PET_MASTER_PORT": free_port(), "PET_RDZV_ID": "job 7",
             "PET_MODULE": "1", "PET_LOG_DIR": "{folder}/logs", "PET_REDIRECTS": "0:1,1:2", "PET_LOCAL_RANKS_FILTER": "1",
             "PET_MONITOR_INTERVAL": "0.1", "OMP_NUM_THREADS": "3", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
    theirs, mine = (launcher.run("variables", "show", "--fail-once", **flags) for launcher in (torchrun, ddprun))
    assert theirs.status == mine.status == 0, (theirs, mine)

    # torchrun's default is the static rendezvous, which has a fixed address; the id and the port were given.
    given = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "OMP_NUM_THREADS"}
    for attempt in range(2):
        for rank in range(2):
            assert mine.seen(attempt, rank)["environment"]["TORCHELASTIC_RESTART_COUNT"] == str(attempt)
            compare_views(theirs.seen(attempt, rank), mine.seen(attempt, rank), DIFFERENCES.keys() - given)

    assert mine.files() == theirs.files()
    assert mine.files().keys() == {f"attempt_{attempt}/{file}.log" for attempt in range(2) for file in ("0/stdout", "1/stderr")}
    # Of rank 1 alone: the filter hides what rank 0 does not redirect. ddprun ends the line that an attempt leaves open.
    assert mine.out == theirs.out.replace("no end of line of 1first", "no end of line of 1\nfirst"), (mine.out, theirs.out)
    assert not any(line.startswith("a warning") for job in (theirs, mine) for line in job.err.splitlines())
    assert " FAILED\n" in mine.err, "ddprun reports the failed attempt, other than torchrun"


def test_training_gives_bitwise_the_same_losses(torchrun, ddprun):
    line = ["--standalone", "--nproc-per-node=2", str(PROGRAMS / "train.py")]
    theirs, mine = torchrun.run("train", *line, OMP_NUM_THREADS="1"), ddprun.run("train", *line, OMP_NUM_THREADS="1")
    assert theirs.status == mine.status == 0, (theirs, mine)
    assert len(mine.out.splitlines()) == 2 * (2 * 4 + 1), mine.out
    assert sorted(mine.out.splitlines()) == sorted(theirs.out.splitlines()), (mine.out, theirs.out)
    assert mine.err == "", mine.err


def test_training_that_fails_and_resumes_ends_as_if_it_had_not(torchrun, ddprun):
    # torchrun without the failure: its restarts use the old store again, where Gloo now and then finds dead ranks.
    line = ["--standalone", "--nproc-per-node=2", "--max_restarts=1", "-r", "3", "--log_dir={folder}/logs",
            str(PROGRAMS / "resume.py")]
    theirs, mine = torchrun.run("resume", *line), ddprun.run("resume", *line, "--fail-once")
    assert theirs.status == mine.status == 0, (theirs, mine)
    assert theirs.out == mine.out == "", "all output was redirected"
    ports = set()
    for rank in range(2):
        first, second = (mine.files()[f"attempt_{attempt}/{rank}/stdout.log"].decode().splitlines() for attempt in range(2))
        whole = theirs.files()[f"attempt_0/{rank}/stdout.log"].decode().splitlines()
        assert first[0] == "attempt 0 of 1 begins at step 0" and second[0] == "attempt 1 of 1 begins at step 3", (first, second)
        assert first[2:] + second[2:] == whole[2:], (first, second, whole)
        ports |= {first[1], second[1]}
    assert len(ports) == 2, "every attempt has its own port"


def without_time(error):
    text, count = re.subn(r'"timestamp": ?"\d+"', '"timestamp": "then"', error)
    assert count == 1, error
    return json.loads(text)


def test_the_error_file_is_understood_and_passed_on(torchrun, ddprun):
    line = ["--standalone", "--nproc-per-node=2", "--log-dir={folder}/logs", str(PROGRAMS / "fail.py")]
    outer = {"TORCHELASTIC_ERROR_FILE": "{folder}/outer.json"}
    theirs, mine = (launcher.run("fail", *line, **outer) for launcher in (torchrun, ddprun))
    assert theirs.status == 1 and mine.status == 7, "ddprun's exit code is the worker's own, torchrun's always 1"
    assert "ValueError: batch 3 is empty: \u00e9" in theirs.err and "ValueError: batch 3 is empty: \u00e9" in mine.err
    assert "ended by ddprun: rank 0" in mine.err, mine.err  # torchrun lists it as one more failure

    for job in (theirs, mine):
        assert job.files().keys() == {"attempt_0/1/error.json"}, job.files()
    written = [without_time(job.files()["attempt_0/1/error.json"].decode()) for job in (theirs, mine)]
    passed_on = [without_time((job.folder / "outer.json").read_text()) for job in (theirs, mine)]
    assert written[0] == written[1], written
    assert passed_on[0] == passed_on[1], passed_on
    assert passed_on[1]["message"]["errorCode"] == 7


def test_a_signal_reaches_every_worker(torchrun, ddprun):
    def signals(*numbers):
        def send(process):
            seen = b"".join(process.stdout.readline() for _ in range(2))
            for number in numbers:
                process.send_signal(number)
                if number != numbers[-1]:
                    seen += b"".join(process.stdout.readline() for _ in range(2))
            return seen
        return send

    line = ["--standalone", "--nproc-per-node=2", str(PROGRAMS / "patient.py")]
    theirs = torchrun.run("signals", *line, during=signals(15))
    mine = ddprun.run("signals", *line, during=signals(10, 15))
    assert theirs.out == "ready\n" * 2 + "got SIGTERM\n" * 2, theirs
    assert mine.out == "ready\n" * 2 + "saved at SIGUSR1\n" * 2 + "got SIGTERM\n" * 2, mine  # it would end torchrun
    assert theirs.status == 1 and mine.status == -15, "torchrun exits with 1, ddprun dies of the signal"


def main():
    python = find_python()
    tests = [value for name, value in globals().items() if name.startswith("test_")]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="ddprun-dropin-") as folder:
        commands = {"torchrun": [python, "-m", "torch.distributed.run"], "ddprun": [os.path.abspath(sys.argv[1])]}
        environment = own_environment(python, find_newest_torch(python) if "--newest" in sys.argv else None)
        print("torch", *torch_version(environment), flush=True)
        launchers = [Launcher(name, words, pathlib.Path(folder), environment) for name, words in commands.items()]
        for test in tests:
            begin = time.monotonic()
            try:
                test(*launchers)
                verdict = "passed"
            except Exception:
                traceback.print_exc()
                verdict, failed = "FAILED", failed + 1
            print(f"{verdict} after {time.monotonic() - begin:.1f} s: {test.__name__[5:].replace('_', ' ')}", flush=True)
    sys.exit(failed > 0)


main()
