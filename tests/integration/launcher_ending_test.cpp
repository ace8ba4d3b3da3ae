// How ddprun ends its workers: whom the signal reaches first, and what never keeps a job from an orderly end.

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "tests/integration/job.h"

namespace ddprun::test {
namespace {

namespace fs = std::filesystem;

/// Long enough that a test which waits it out fails at its deadline.
const std::string kNoHurry = "--shutdown-timeout=600";

/// A shell's lines that put a file in the place of the job's log folder, once both workers' files are there.
const std::string kBreakLogs =
    "if [ $LOCAL_RANK = 1 ]; then : > \"$STARTED\"; else until [ -e \"$STARTED\" ]; do sleep 0.01; done; "
    "for job in \"$LOGS\"/*; do rm -r \"$job\"; : > \"$job\"; done; fi; ";

/// How many Python processes of the job wait for a child.
long waiting_pythons(const Child& job) {
  const auto all = job.processes();
  return std::ranges::count_if(all, [](pid_t pid) {
    const std::string process = "/proc/" + std::to_string(pid);
    return read_or_empty(process + "/comm").starts_with("python") &&
           read_or_empty(process + "/syscall").starts_with(std::to_string(SYS_wait4) + " ");
  });
}

long sleeps(const Child& job) {
  const auto all = job.processes();
  return std::ranges::count_if(
      all, [](pid_t pid) { return read_or_empty("/proc/" + std::to_string(pid) + "/comm") == "sleep\n"; });
}

TEST_CASE("a program that saves as it ends still has the processes that load its data", "[launcher]") {
  const std::string wrapper =
      GENERATE("", "sh -c '\"$@\"; exit' sh", "bash -c 'trap : TERM; \"$@\"; exit' bash",
               "sh -c 'exec \"$@\"' sh", "env", "unshare --fork --kill-child");
  INFO(wrapper);
  Command command =
      script({"--nproc-per-node=2", kNoHurry}, "exec " + wrapper + " \"$STUB\" loader ready await load");
  command.env["STUB"] = STUB_WORKER_PROGRAM;
  Child ddprun(command);
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  ddprun.send_signal(SIGTERM);
  CHECK(ddprun.wait() == ExitStatus::killed(SIGTERM));
  CHECK(count_of("got SIGTERM", ddprun.out()) == 2);
  CHECK(count_of("loaded", ddprun.out()) == 2);
  CHECK(count_of("loader ends by SIGTERM", ddprun.out()) == 2);  // afterwards, and not by SIGKILL
  check_nothing_left(ddprun);
}

TEST_CASE("a program whose wrapper keeps the signal to itself gets it after half of the grace period",
          "[launcher]") {
  const std::string wrapper =
      "import signal, subprocess, sys; signal.signal(signal.SIGTERM, lambda *_: None); "
      "sys.exit(subprocess.call(sys.argv[1:]))";
  Child ddprun(ddprun_command({"--nproc-per-node=2", "--shutdown-timeout=4", "--no-python", "python3", "-c",
                               wrapper, STUB_WORKER_PROGRAM, "ready", "await", "expect-no-signal", "300"}));
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  ddprun.send_signal(SIGTERM);
  CHECK(ddprun.wait() == ExitStatus::killed(SIGTERM));
  CHECK(count_of("got SIGTERM", ddprun.out()) == 2);
  CHECK(count_of("no second signal", ddprun.out()) == 2);
  CHECK_THAT(ddprun.err(), !ContainsSubstring("sending SIGKILL"));
  check_nothing_left(ddprun);
}

TEST_CASE("the processes that load data are left until five seconds before the grace period ends",
          "[launcher]") {
  Child ddprun(job({"--nproc-per-node=2", "--shutdown-timeout=12"},
                   {"loader", "ready", "await", "expect-no-signal", "6500", "load", "exit", "0"}));
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  ddprun.send_signal(SIGTERM);
  CHECK(ddprun.wait() == ExitStatus::killed(SIGTERM));
  CHECK(count_of("loaded", ddprun.out()) == 2);  // after more than half of it
  check_nothing_left(ddprun);
}

TEST_CASE("a program that Python's subprocess.run() waits for has its time after Ctrl-C", "[launcher]") {
  const std::string wrapper = GENERATE("", "sh -c '\"$@\"; exit' sh ");  // as `conda run` has
  CAPTURE(wrapper);
  Command command = script({"--nproc-per-node=2", kNoHurry},
                           "exec python3 -c 'import subprocess, sys; "
                           "sys.exit(subprocess.run(sys.argv[1:]).returncode)' " +
                               wrapper + "\"$STUB\" ready await expect-no-signal 500 say saved exit 3");
  command.env["STUB"] = STUB_WORKER_PROGRAM;
  Child ddprun(command);
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  REQUIRE(wait_until([&] { return waiting_pythons(ddprun) == 2; }));
  ddprun.send_signal(SIGINT);
  CHECK(ddprun.wait() == ExitStatus::killed(SIGINT));
  CHECK(count_of("got SIGINT", ddprun.out()) == 2);
  CHECK(count_of("no second signal", ddprun.out()) == 2);
  CHECK_THAT(ddprun.err(), !ContainsSubstring("KeyboardInterrupt"));
  check_nothing_left(ddprun);
}

TEST_CASE("a program that Ctrl-C does not reach in system() or subprocess.run() gets it when it goes on",
          "[launcher]") {
  const std::string call =
      GENERATE("os.system('sleep 600; exit')", "subprocess.run(['sh', '-c', 'sleep 600; exit'])",
               "pid = os.fork(); pid or signal.default_int_handler and os.execvp('sh', "
               "['sh', '-c', 'sleep 600; exit']); os.waitpid(pid, 0)");
  const std::string outer = GENERATE("exec ", "");  // "": below a shell
  CAPTURE(call, outer);
  const std::string program =
      "import os, signal, subprocess, time\n"
      "signal.signal(signal.SIGINT, lambda *_: (os.write(1, b\"saved\\n\"), os._exit(0)))\n" +
      call + "\nwhile True: time.sleep(1)";
  Command command = script({"--nproc-per-node=2", kNoHurry}, outer + "python3 -c \"$PROGRAM\"; exit");
  command.env["PROGRAM"] = program;
  Child ddprun(command);
  REQUIRE(wait_until([&] { return sleeps(ddprun) == 2; }));           // a shell waits for it
  REQUIRE(wait_until([&] { return waiting_pythons(ddprun) == 2; }));  // Python may get there after its child
  ddprun.send_signal(SIGINT);
  CHECK(ddprun.wait() == ExitStatus::killed(SIGINT));
  CHECK(count_of("saved", ddprun.out()) == 2);
  CHECK_THAT(ddprun.err(), !ContainsSubstring("sending SIGKILL"));
  check_nothing_left(ddprun);
}

TEST_CASE("what a shell has started in the background ends with its program after Ctrl-C", "[launcher]") {
  const std::string background =
      GENERATE("sleep 600 & ", "setsid sleep 600 & ", "while :; do sleep 5; done & ");
  const std::string how = GENERATE("exec \"$STUB\"", "\"$STUB\"");
  CAPTURE(background, how);
  Command command = script({"--nproc-per-node=2", kNoHurry},
                           background + how + " ready await expect-no-signal 300 say saved; exit");
  command.env["STUB"] = STUB_WORKER_PROGRAM;
  Child ddprun(command);
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  ddprun.send_signal(SIGINT);
  CHECK(ddprun.wait() == ExitStatus::killed(SIGINT));
  CHECK(count_of("no second signal", ddprun.out()) == 2);
  CHECK(count_of("saved", ddprun.out()) == 2);
  CHECK_THAT(ddprun.err(), !ContainsSubstring("sending SIGKILL"));
  check_nothing_left(ddprun);
}

TEST_CASE("what ended with one rank's failure is asked in the same order", "[launcher]") {
  const Finished run(job(
      {"--nproc-per-node=2", kNoHurry},
      {"--rank", "0", "loader", "listen-store-fd", "await", "load", "--rank", "1", "connect", "exit", "3"}));
  CHECK(run.status == ExitStatus::exited(3));
  CHECK(count_of("loaded", run.out) == 1);
}

TEST_CASE("with --signal-group all processes of a worker get the signal at once", "[launcher]") {
  Child ddprun(
      job({"--nproc-per-node=2", kNoHurry, "--signal-group"}, {"loader", "ready", "await", "loader-ends"}));
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  ddprun.send_signal(SIGTERM);
  CHECK(ddprun.wait() == ExitStatus::killed(SIGTERM));
  CHECK(count_of("the loader has ended", ddprun.out()) == 2);
  check_nothing_left(ddprun);
}

TEST_CASE("an error in the event loop ends the workers in order", "[launcher]") {
  need_no_sanitizer();
  const TempDir folder;
  const auto go = (folder.path() / "go").string(), end = (folder.path() / "end").string();
  Command command =
      script({"--nproc-per-node=2", kNoHurry},
             "[ $RANK = 0 ] || exec \"$STUB\" daemon ready await wait-for-file " + end +
                 "; echo ready; until [ -e " + go + " ]; do sleep 0.02; done; exec head -c 900000 /dev/zero");
  command.env["STUB"] = STUB_WORKER_PROGRAM;
  Child ddprun(command);
  REQUIRE(ddprun.wait_for_output("ready", 2));
  // A line without an end does not fit into the memory that is left.
  const rlimit none{1, RLIM_INFINITY}, enough{RLIM_INFINITY, RLIM_INFINITY};
  REQUIRE(::prlimit(ddprun.pid(), RLIMIT_AS, &none, nullptr) == 0);
  write_file_atomic(go, "");
  CHECK(ddprun.wait_for_output("got SIGTERM rank 1"));
  REQUIRE(::prlimit(ddprun.pid(), RLIMIT_AS, &enough, nullptr) == 0);
  write_file_atomic(end, "");
  CHECK(ddprun.wait() == ExitStatus::exited(125));
  CHECK_THAT(ddprun.err(), ContainsSubstring("bad_alloc"));
  check_nothing_left(ddprun);
}

TEST_CASE("a restart whose log folder cannot be made shows its output on the console", "[restarts]") {
  const TempDir folder, started;
  Command command =
      script({"--nproc-per-node=2", "--redirects=3", "--log-dir", folder.path(), "--max-restarts=1"},
             "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || { " + kBreakLogs +
                 "[ $LOCAL_RANK = 0 ] || sleep 600; exit 3; }; echo restarted; [ -d "
                 "\"${TORCHELASTIC_ERROR_FILE%/*}\" ]");
  command.env["LOGS"] = folder.path();
  command.env["STARTED"] = started.path() / "rank_1";
  const Finished run(command);
  CHECK(run.status == ExitStatus::exited(0));
  for (const char* rank : {"0", "1"})
    CHECK(count_of("[default" + std::string(rank) + "]:restarted\n", run.out) == 1);
  CHECK(count_of("the output goes to the console instead; the job goes on", run.err) == 1);
}

TEST_CASE("a restart for which one log file cannot be made shows that file's output on the console",
          "[restarts]") {
  const TempDir folder;
  Command command =
      script({"--nproc-per-node=2", "--redirects=3", "--log-dir", folder.path(), "--max-restarts=1"},
             "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || { [ $LOCAL_RANK = 0 ] || exec sleep 600; umask 077; "
             "mkdir -p \"$LOGS\"/latest/attempt_1/0/stdout.log; exit 3; }; "
             "echo restarted $RANK; echo to stderr >&2");
  command.env["LOGS"] = folder.path();
  const Finished run(command);
  CHECK(run.status == ExitStatus::exited(0));
  CHECK(count_of("restarted 0\n", run.out) == 1);
  CHECK(count_of("restarted 1\n", run.out) == 0);
  CHECK(count_of("the output goes to the console instead; the job goes on", run.err) == 1);
  const auto logs = folder.path() / "latest/attempt_1";
  CHECK(read_file(logs / "0/stderr.log") == "to stderr\n");
  CHECK(read_file(logs / "1/stdout.log") == "restarted 1\n");
  CHECK(read_file(logs / "1/stderr.log") == "to stderr\n");
}

TEST_CASE("without a debugger a job that is too late waits for none", "[timeouts]") {
  const TempDir folder;
  Command command =
      job({"--nproc-per-node=2", "--timeout=0.5", "--log-dir", folder.path()}, {"ready", "pause"});
  command.env["PATH"] = "/nowhere";
  Child ddprun(command);
  CHECK(ddprun.wait(std::chrono::seconds(20)) == ExitStatus::exited(124));  // a debugger may take 30
  CHECK(count_of("not found in PATH", ddprun.err()) == 2);
  check_nothing_left(ddprun);
}

TEST_CASE("a job that is too late ends in order where the log folder cannot be made", "[timeouts]") {
  const std::string limit = GENERATE("--timeout=3", "--hang-timeout=3");
  const TempDir folder, started;
  Command command =
      script({"--nproc-per-node=2", limit, "--log-dir", folder.path()},
             kBreakLogs +
                 "trap 'echo got a signal; exit' TERM ABRT; setsid sleep 600 & while :; do sleep 0.05; done");
  command.env["LOGS"] = folder.path();
  command.env["STARTED"] = started.path() / "rank_1";
  Child ddprun(command);
  CHECK(ddprun.wait() == ExitStatus::exited(124));
  CHECK(count_of("got a signal", ddprun.out()) == 2);
  CHECK(count_of("no stacks there", ddprun.err()) == 1);
  CHECK(ddprun.nothing_left());
  int stacks = 0;
  for (const auto& entry : fs::recursive_directory_iterator(ddprun.temp_folder()))
    stacks += entry.path().filename().string().starts_with("stacks_") ? 1 : 0;
  CHECK(stacks == 2);
}

}  // namespace
}  // namespace ddprun::test
