#include "launcher/workers/job_processes.h"

#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include <ddprun/common/files.h>
#include "tests/support/catch.h"
#include "tests/support/child.h"

namespace ddprun::launcher {
namespace {

using namespace std::string_literals;
using test::Child;

/// The processes of a command that prints "ready" that get SIGTERM first; it leads a process group. Waits a
/// while for as many as that, if some may start after it prints.
std::size_t addressed(std::vector<std::string> argv, int signal = SIGTERM, std::size_t in_the_end = 1) {
  test::Command command{std::move(argv), {{"STUB", STUB_WORKER_PROGRAM}, {"RANK", "0"}}};
  command.in_child = [] { ::setsid(); };
  const Child child(command);
  REQUIRE(child.wait_for_output("ready"));
  REQUIRE(child.wait_for_output("child "));
  std::vector<pid_t> found;
  test::wait_until([&] { return (found = program_of(child.pid(), signal)).size() >= in_the_end; });
  CHECK(found.front() == child.pid());
  return found.size();
}

TEST_CASE("a program that handles the signal gets it alone", "[job_processes]") {
  CHECK(addressed({STUB_WORKER_PROGRAM, "child", "ready", "await"}) == 1);
}

TEST_CASE("whatever does not handle it passes it to its children", "[job_processes]") {
  CHECK(addressed({STUB_WORKER_PROGRAM, "child", "ready", "pause"}) == 2);
  CHECK(addressed({STUB_WORKER_PROGRAM, "ignore-term", "child", "ready", "pause"}) == 2);
  // It blocks the signal, and waits for its child.
  CHECK(addressed({"unshare", "--fork", STUB_WORKER_PROGRAM, "child", "ready", "await"}) == 2);
}

TEST_CASE("a shell passes it to its child, whether or not it handles it, and the child to nobody",
          "[job_processes]") {
  CHECK(addressed({"sh", "-c", "\"$STUB\" child ready await; exit"}) == 2);
  CHECK(addressed({"bash", "-c", "trap : TERM; \"$STUB\" child ready await; exit"}) == 2);
  CHECK(addressed({"sh", "-c", "sh -c '\"$STUB\" child ready await; exit'; exit"}) == 3);
  CHECK(addressed({"bash", "-c", "\"$STUB\" child ready await; exit"}, SIGINT) == 2);
  // The end of the pipe would die of it, and the program still writes there.
  CHECK(addressed({"bash", "-c", "\"$STUB\" child ready await | tee /dev/null; exit"}) == 2);
  CHECK(addressed({"bash", "-c", "cat <(sleep 600) | tee /dev/null & echo child ready; wait"}, SIGTERM, 4) ==
        4);
}

TEST_CASE("a program that waits for its only child leaves SIGINT, and nothing else, to it",
          "[job_processes]") {
  const auto is_left_to_child = [](const std::string& python, int signal) {
    test::Command command{
        {"python3", "-c", "import subprocess, sys\n" + python, STUB_WORKER_PROGRAM, "ready"}};
    command.argv.push_back("await");
    command.env["RANK"] = "0";
    command.in_child = [] { ::setsid(); };
    const Child child(command);
    REQUIRE(child.wait_for_output("ready"));
    const std::string call = "/proc/" + std::to_string(child.pid()) + "/syscall";
    REQUIRE(
        test::wait_until([&] { return read_or_empty(call).starts_with(std::to_string(SYS_wait4) + " "); }));
    const auto found = program_of(child.pid(), signal);
    REQUIRE(found.size() == 1);
    return found[0] != child.pid();
  };
  const std::string run = "subprocess.run(sys.argv[1:])\n";
  const std::string handler = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: None)\n";
  CHECK(is_left_to_child(run, SIGINT));
  CHECK_FALSE(is_left_to_child(handler + run, SIGTERM));  // such a wrapper passes it on itself
  // While it trains: it has a process that loads data, and waits for some tool.
  CHECK_FALSE(is_left_to_child("import os, signal\nif os.fork() == 0: signal.pause()\n" + run, SIGINT));
  CHECK_FALSE(is_left_to_child("print('ready', flush=True); subprocess.run(['sleep', '600'])", SIGINT));
}

TEST_CASE("a process that blocks all signals for moments survives only what it has a signalfd for",
          "[job_processes]") {
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigset_t all, one;
    sigfillset(&all);
    sigemptyset(&one);
    sigaddset(&one, SIGUSR2);
    ::sigprocmask(SIG_SETMASK, &one, nullptr);
    if (::signalfd(-1, &one, 0) < 0) ::_exit(1);
    for (;;) {  // as a shell that waits for its child
      ::sigprocmask(SIG_SETMASK, &all, nullptr);
      ::sigprocmask(SIG_SETMASK, &one, nullptr);
    }
  }
  CHECK(test::wait_until([&] { return survives(child, SIGUSR2); }));
  int with_signalfd = 0, without = 0;
  for (int i = 0; i < 1000; ++i) {
    with_signalfd += survives(child, SIGUSR2) ? 1 : 0;
    without += survives(child, SIGUSR1) ? 1 : 0;
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK(with_signalfd == 1000);
  CHECK(without == 0);
  CHECK_FALSE(survives(child, SIGUSR2));  // it is gone
}

TEST_CASE("a child in a group of its own is not addressed", "[job_processes]") {
  CHECK(addressed({"sh", "-c", "setsid \"$STUB\" child ready await; exit"}) == 1);
}

TEST_CASE("a process is of a job that its environment names, unless it is of another Slurm job",
          "[job_processes]") {
  const auto is_of_own = [](const std::string& environment, const std::optional<std::string>& slurm_job,
                            bool of_step = true) {
    return is_of_job(environment, "own", slurm_job, [&](const std::string&) { return of_step; });
  };
  CHECK(is_of_own("A=1\0DDPRUN_JOB_ID=outer/own\0B=2\0"s, {}));
  CHECK(is_of_own("DDPRUN_JOB_ID=own/inner\0"s, "7"));  // it may have cleared Slurm's variables
  CHECK(is_of_own("SLURM_JOB_ID=7\0DDPRUN_JOB_ID=own\0"s, "7"));
  CHECK_FALSE(is_of_own("SLURM_JOB_ID=8\0DDPRUN_JOB_ID=own\0"s, "7"));
  CHECK_FALSE(is_of_own("SLURM_JOB_ID=8\0DDPRUN_JOB_ID=own\0"s, {}));
  CHECK(is_of_own("SLURM_JOB_ID=8\0DDPRUN_JOB_ID=own\0"s, {}, false));  // a worker has set it itself
  CHECK_FALSE(is_of_own("DDPRUN_JOB_ID=other\0X=own\0"s, {}));
  CHECK_FALSE(is_of_own("", {}));
}

}  // namespace
}  // namespace ddprun::launcher
