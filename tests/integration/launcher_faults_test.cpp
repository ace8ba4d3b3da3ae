// Workers that fail, and what they leave behind.

#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include <ddprun/common/error_file.h>
#include "tests/integration/job.h"
#include "tests/support/forbid.h"

namespace ddprun::test {
namespace {

TEST_CASE("the summary names rank, pid, exit code, host, time and the worker's own message", "[launcher]") {
  const Finished run(job({"--nproc-per-node=3"}, {"--rank", "1", "ready", "error", "ValueError: bad\x1b[2J",
                                                  "exit", "7", "--all", "pause"}));
  CHECK(run.status == ExitStatus::exited(7));
  const std::string pid = run.out.substr(std::string("ready 1 ").size(), run.out.find('\n') - 8);
  CHECK_THAT(run.err, ContainsSubstring("rank      : 1 (local_rank: 1, pid: " + pid + ")"));
  CHECK_THAT(run.err, ContainsSubstring("exit code 7"));
  CHECK_THAT(run.err, ContainsSubstring("host      : "));
  CHECK_THAT(run.err, ContainsSubstring(" UTC"));
  CHECK_THAT(run.err, ContainsSubstring("ValueError: bad?[2J"));
  CHECK_THAT(run.err, ContainsSubstring("ended by ddprun: rank 0, 2"));
}

TEST_CASE("a rank that had ended before the failure is named: the others may have waited for it",
          "[launcher]") {
  const Finished run(script({"--nproc-per-node=3"},
                            "case $RANK in 1) exit 0;; 0) sleep 0.5; exit 7;; *) exec sleep 60; esac"));
  CHECK(run.status == ExitStatus::exited(7));
  CHECK_THAT(run.err, ContainsSubstring("had ended before, with exit code 0: rank 1\n"));
}

TEST_CASE("a rank that fails in its own way after the first one is listed, not blamed", "[launcher]") {
  const TempDir folder;
  const std::string go = (folder.path() / "go").string();
  Child ddprun(job({"--nproc-per-node=2"}, {"ready", "--rank", "0", "await", "exit", "9", "--rank", "1",
                                            "wait-for-file", go, "exit", "3"}));
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  write_file_atomic(go, "");
  CHECK(ddprun.wait() == ExitStatus::exited(3));
  CHECK_THAT(ddprun.err(), ContainsSubstring("rank      : 1"));
  CHECK_THAT(ddprun.err(), ContainsSubstring("Other Failures:\n  rank 0"));
  CHECK_THAT(ddprun.err(), ContainsSubstring("exit code 9, after ddprun told it to end"));
  check_nothing_left(ddprun);
}

TEST_CASE("the oldest error file names the root cause, not the first exit", "[launcher]") {
  const std::string script_text =
      "tell() { printf '{\"message\": \"%s\"}' \"$1\" > $TORCHELASTIC_ERROR_FILE; }; "
      "if [ $RANK = 1 ]; then tell 'E: the cause'; touch told; sleep 1; exit 3; fi; "
      "until [ -e told ]; do sleep 0.01; done; sleep 0.05; tell 'E: closed by peer'; exit 4";
  const TempDir folder;
  const Finished run(script({"--nproc-per-node=2"}, "cd " + folder.path().string() + "; " + script_text));
  CHECK(run.status == ExitStatus::exited(3));
  const auto root = run.err.find("Root Cause"), others = run.err.find("Other Failures");
  REQUIRE(root != std::string::npos);
  CHECK(run.err.substr(root, others - root).find("E: the cause") != std::string::npos);
  CHECK_THAT(run.err, ContainsSubstring("rank      : 1 "));
}

TEST_CASE("the root cause does not depend on the file system's clock, and gives the exit code",
          "[launcher][root_cause]") {
  // The file server's clock is wrong. Rank 0 exits with 4 and has no error file.
  const std::string loop = "while :; do sleep 0.01; done";
  const auto [rank_1, code, blamed] = GENERATE_COPY(table<std::string, int, int>({
      {"tell 1hour; until [ -s pid ] && ! kill -0 $(cat pid); do sleep 0.01; done; exit 5", 5, 1},
      {"trap 'tell -1hour; exit 5' TERM; touch told; " + loop, 4, 0},  // told to end before
      {"tell -1hour; exec sleep 600", 4, 0},                           // it goes on
      {"tell -1hour; exit 0", 4, 0},
  }));
  CAPTURE(rank_1);
  const TempDir folder, above;
  Command command =
      script({"--nproc-per-node=2", "--result-json", folder.path() / "result.json"},
             "cd " + folder.path().string() +
                 "; tell() { printf '{\"message\": \"E: mine\"}' > $TORCHELASTIC_ERROR_FILE; "
                 "touch -d $1 $TORCHELASTIC_ERROR_FILE; touch told; }; if [ $RANK = 1 ]; then " +
                 rank_1 + "; fi; until [ -e told ]; do sleep 0.01; done; echo $$ > pid; exit 4");
  command.env["TORCHELASTIC_ERROR_FILE"] = above.path() / "error.json";
  const Finished run(command);
  CHECK(run.status == ExitStatus::exited(code));
  CHECK_THAT(run.err, ContainsSubstring("rank      : " + std::to_string(blamed) + " "));
  const auto result = nlohmann::json::parse(read_file(folder.path() / "result.json"));
  CHECK(result.at("exit_code") == code);
  CHECK(result.at("root_cause_rank") == blamed);
  CHECK(read_error_file(above.path() / "error.json").error.value().error_code == code);
}

TEST_CASE("the root cause is a worker that ended, not one that reported an error and went on",
          "[root_cause]") {
  // Its file is an hour old by its own words, or has just been written.
  const bool old = GENERATE(true, false);
  const TempDir folder;
  const std::string report =
      R"(printf '{"message": {"message": "E: mine", "extraInfo": {"timestamp": "%s"}}}' )" +
      std::string(old ? "$(($(date +%s) - 3600))" : "$(date +%s)") + " > $TORCHELASTIC_ERROR_FILE";
  Command command = script({"--nproc-per-node=2", "--max-restarts=1", "--restart-on-codes=SIGSEGV",
                            "--result-json", folder.path() / "result.json"},
                           "[ $TORCHELASTIC_RESTART_COUNT = 0 ] || exit 0; cd " + folder.path().string() +
                               "; if [ $RANK = 1 ]; then " + report +
                               "; touch told; trap 'exit 6' TERM; while :; do sleep 0.01; done; fi; "
                               "until [ -e told ]; do sleep 0.01; done; kill -SEGV $$");
  const auto begin = std::chrono::steady_clock::now();
  const Finished run(command);
  if (old) CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(2));
  CHECK(run.status == ExitStatus::exited(0));
  CHECK_THAT(run.err, ContainsSubstring("rank      : 0 "));
}

TEST_CASE("an old error, or one before another worker's crash, is not the root cause if its worker exits too",
          "[root_cause]") {
  const auto [age, end, code] = GENERATE(table<std::string, std::string, int>({
      {"3600", "exit 9", 9},  // rank 0's end
      {"0", "kill -SEGV $$", 139},
  }));
  const TempDir folder;
  const auto go = folder.path() / "go";
  Child ddprun(script(
      {"--nproc-per-node=2"},
      "cd " + folder.path().string() +
          R"(; if [ $RANK = 1 ]; then printf '{"message": {"message": "E: mine", "extraInfo": {"timestamp": "%s"}}}' )" +
          "$(($(date +%s) - " + age +
          ")) > $TORCHELASTIC_ERROR_FILE; until [ -s pid ] && grep -q 'State:.Z' /proc/$(cat pid)/status; "
          "do sleep 0.01; done; echo $$ > pid; exit 3; fi; "
          "echo ready; until [ -e go ]; do sleep 0.01; done; echo $$ > new; mv new pid; " +
          end));
  REQUIRE(ddprun.wait_for_output("ready"));
  ddprun.send_signal(SIGSTOP);  // both have ended when it goes on
  write_file_atomic(go, "");
  const auto workers_ended = [&] {
    const auto all = ddprun.processes();
    return all.size() <= 2;  // and the guard
  };
  REQUIRE(wait_until(workers_ended));
  ddprun.send_signal(SIGCONT);
  CHECK(ddprun.wait() == ExitStatus::exited(code));
  CHECK_THAT(ddprun.err(), ContainsSubstring("rank      : 0 "));
  check_nothing_left(ddprun);
}

TEST_CASE("a crash whose report comes after the exit of a worker that noticed it is the root cause",
          "[root_cause]") {
  const TempDir folder;
  const std::string go = folder.path() / "go";
  Command command = job({"--nproc-per-node=2"},
                        {"ready", "--rank", "0", "pause", "--rank", "1", "wait-for-file", go, "exit", "3"});
  command.env["ASAN_OPTIONS"] = "handle_segv=0";  // else a worker with ASan ends by itself, with 1
  Child ddprun(command);
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  const std::string out = ddprun.out();
  const auto pid_of = [&](const std::string& rank) {
    return std::stoi(out.substr(out.find("ready " + rank + " ") + std::string("ready 0 ").size()));
  };
  const pid_t crashing = pid_of("0"), other = pid_of("1");
  if (::ptrace(PTRACE_SEIZE, crashing, nullptr, PTRACE_O_TRACEEXIT) != 0) skip("no debuggers here");
  ::kill(crashing, SIGSEGV);
  REQUIRE(::waitpid(crashing, nullptr, __WALL) == crashing);  // it gets the signal
  ::ptrace(PTRACE_CONT, crashing, nullptr, SIGSEGV);
  REQUIRE(::waitpid(crashing, nullptr, __WALL) == crashing);  // its end begins
  write_file_atomic(go, "");
  REQUIRE(wait_until([&] { return ::kill(other, 0) != 0; }));  // ddprun has reaped it
  ::ptrace(PTRACE_DETACH, crashing, nullptr, 0);
  CHECK(ddprun.wait() == ExitStatus::exited(139));
  CHECK_THAT(ddprun.err(), ContainsSubstring("rank      : 0 "));
  check_nothing_left(ddprun);
}

TEST_CASE("the report shows the error of a worker that reported it before and has not exited",
          "[root_cause]") {
  const bool is_old = GENERATE(true, false);  // or it gets two seconds to exit
  const TempDir folder;
  const std::string tell =
      R"(tell() { printf '{"message": {"message": "%s", "extraInfo": {"timestamp": "%s"}}}' "$1" )"
      R"($(($(date +%s) - $2)) > $TORCHELASTIC_ERROR_FILE; }; )";
  const Finished run(script(
      {"--nproc-per-node=3"},
      tell + "cd " + folder.path().string() + "; if [ $RANK = 1 ]; then tell 'E: the cause' " +
          (is_old ? "12" : "1") + "; touch told; exec sleep 600; fi; [ $RANK = 0 ] || exec sleep 600; " +
          "until [ -e told ]; do sleep 0.01; done; tell 'E: timeout in allreduce' 0; exit 7"));
  CHECK(run.status == ExitStatus::exited(7));
  CHECK_THAT(run.err, ContainsSubstring("rank      : 0 "));
  const auto earlier = run.err.find("Had reported an error before that, but had not exited:\n  rank 1 ");
  REQUIRE(earlier != std::string::npos);
  CHECK(run.err.find("\n    E: the cause\n", earlier) != std::string::npos);
  CHECK_THAT(run.err, ContainsSubstring("ended by ddprun: rank 2\n"));
}

TEST_CASE("a worker that ends while a debugger watches it has ended when the debugger lets go",
          "[launcher]") {
  const TempDir folder;
  const std::string go = folder.path() / "go";
  Child ddprun(job({}, {"ready", "wait-for-file", go, "exit", "3"}));
  REQUIRE(ddprun.wait_for_output("\n"));
  const pid_t worker = std::stoi(ddprun.out().substr(std::string("ready 0 ").size()));
  if (::ptrace(PTRACE_SEIZE, worker, nullptr, nullptr) != 0) skip("no debuggers here");
  write_file_atomic(go, "");
  const auto is = [](pid_t pid, const std::string& state) {
    return count_of("State:\t" + state, read_file("/proc/" + std::to_string(pid) + "/status")) == 1;
  };
  CHECK(wait_until([&] { return is(worker, "Z"); }));
  CHECK(wait_until([&] { return is(ddprun.pid(), "S"); }));  // it has seen the end
  CHECK(::waitpid(worker, nullptr, __WALL) == worker);
  CHECK(ddprun.wait(std::chrono::seconds(10)) == ExitStatus::exited(3));
  check_nothing_left(ddprun);
}

TEST_CASE("when all fail at once one of them is the root cause", "[launcher]") {
  const Finished run(job({"--nproc-per-node=8"}, {"exit", "3"}));
  CHECK(run.status == ExitStatus::exited(3));
  CHECK(count_of("Root Cause", run.err) == 1);
}

TEST_CASE("a TORCHELASTIC_ERROR_FILE that is left over from another job is called so", "[launcher]") {
  Command command = script({}, "exit 3");
  command.env["TORCHELASTIC_ERROR_FILE"] = "/no/such/error.json";
  const Finished run(command);
  CHECK(run.status == ExitStatus::exited(3));
  CHECK_THAT(run.err,
             ContainsSubstring("TORCHELASTIC_ERROR_FILE: there is no folder /no/such, so the error is not "
                               "passed on; is the variable left over from another job?\n"));
}

TEST_CASE("the children of a crashed worker are ended", "[launcher]") {
  Child ddprun(job({"--nproc-per-node=2", "--shutdown-timeout=600"},
                   {"--rank", "1", "child", "child", "kill", "11", "--all", "pause"}));
  CHECK(ddprun.wait() == ExitStatus::exited(139));
  check_nothing_left(ddprun);
}

TEST_CASE("children that ignore SIGTERM are killed after the grace period", "[launcher]") {
  const Finished run(job({"--nproc-per-node=2", "--shutdown-timeout=0.2"},
                         {"--rank", "0", "stubborn-child", "exit", "5", "--all", "pause"}));
  CHECK(run.status == ExitStatus::exited(5));
}

TEST_CASE("children that outlive workers which succeeded are ended", "[launcher]") {
  const Finished run(job({"--nproc-per-node=2", "--shutdown-timeout=600"}, {"child"}));
  CHECK(run.status == ExitStatus::exited(0));
}

TEST_CASE("a program behind a shell that died at once still has its grace period", "[launcher]") {
  // The shell dies of SIGTERM, the stub takes its time and says when it is done.
  Child ddprun({{DDPRUN_PROGRAM, "--shutdown-timeout=600", "sh", "-c",
                 "'" STUB_WORKER_PROGRAM "' ready await expect-no-signal 300; exit 1"}});
  REQUIRE(ddprun.wait_for_output("ready "));
  ddprun.send_signal(SIGTERM);
  CHECK(ddprun.wait() == ExitStatus::killed(SIGTERM));
  CHECK(count_of("got SIGTERM", ddprun.out()) == 1);
  CHECK(count_of("no second signal", ddprun.out()) == 1);
  check_nothing_left(ddprun);
}

TEST_CASE("an error file of any kind neither hides the exit code nor blocks", "[launcher]") {
  const auto [kind, text] =
      GENERATE(table<std::string, std::string>({{"legacy", "old words"},
                                                {"garbage", "error file is not JSON"},
                                                {"huge", "error file is larger"},
                                                {"fifo", "error file is not a regular file"},
                                                {"link", "error file is a symbolic link"}}));
  const Finished run(
      job({"--nproc-per-node=2"}, {"--rank", "0", "bad-error-file", kind, "exit", "6", "--all", "pause"}));
  CHECK(run.status == ExitStatus::exited(6));
  CHECK_THAT(run.err, ContainsSubstring(text));
}

TEST_CASE("workers that were started are ended when a later one cannot be", "[launcher]") {
  need_vfork();
  if (::getuid() != 0) skip("needs root to become a user without processes");
  // Where that user may go: the build folder may be below somebody's private one.
  const TempDir programs;
  std::filesystem::permissions(programs.path(), std::filesystem::perms(0755));
  std::filesystem::copy(DDPRUN_PROGRAM, programs.path() / "ddprun");
  std::filesystem::copy(STUB_WORKER_PROGRAM, programs.path() / "stub_worker");
  Command command;
  command.argv = {programs.path() / "ddprun", "--nproc-per-node=16", programs.path() / "stub_worker", "ready",
                  "pause"};
  command.env["TMPDIR"] = "/tmp";
  command.in_child = [] {
    const rlimit limit{6, 6};
    if (::setgid(54321) != 0 || ::setuid(54321) != 0 || ::setrlimit(RLIMIT_NPROC, &limit) != 0) ::_exit(122);
  };
  const Finished run(command);
  CHECK(run.status == ExitStatus::exited(125));
  CHECK_THAT(run.err, ContainsSubstring("cannot start rank "));
}

TEST_CASE("too few descriptors for all workers is an error of ddprun, and nothing is left", "[launcher]") {
  need_vfork();
  need_no_sanitizer();
  Command command = job({"--nproc-per-node=32"}, {"pause"});
  command.in_child = [] {
    const rlimit limit{24, 24};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  };
  const Finished run(command);
  CHECK(run.status == ExitStatus::exited(125));
  CHECK_THAT(run.err, ContainsSubstring("cannot start rank "));
  CHECK_THAT(run.err, ContainsSubstring("Too many open files (ulimit -n)"));
}

TEST_CASE("five descriptors for each worker are enough, and with fewer nothing is started", "[launcher]") {
  need_vfork();
  need_no_sanitizer();
  const auto with_limit = [](rlim_t descriptors) {
    Command command = script({"--nproc-per-node=100", "--hang-timeout=600"}, "echo started");
    command.in_child = [descriptors] {
      const rlimit limit{descriptors, descriptors};
      ::setrlimit(RLIMIT_NOFILE, &limit);
    };
    return command;
  };
  const Finished enough(with_limit(540));
  CHECK(enough.status == ExitStatus::exited(0));
  CHECK(count_of("started", enough.out) == 100);
  const Finished few(with_limit(480));
  CHECK(few.status == ExitStatus::exited(125));
  CHECK(few.out.empty());
  CHECK_THAT(few.err, ContainsSubstring("cannot start 100 workers: that takes "));
  CHECK_THAT(few.err, ContainsSubstring("only 480 are allowed (ulimit -n)"));
}

/// A cgroup whose processes are frozen: version 1's do not even die of SIGKILL before they are thawed.
class Freezer {
 public:
  Freezer() : folder_("/sys/fs/cgroup/freezer/ddprun_test_" + std::to_string(::getpid())) {
    std::error_code error;
    if (!std::filesystem::create_directory(folder_, error)) skip("no freezer of cgroup version 1 here");
  }
  ~Freezer() {
    put("freezer.state", "THAWED");
    wait_until([&] { return read_file(folder_ / "cgroup.procs").empty(); });
    ::rmdir(folder_.c_str());
  }
  void freeze(pid_t pid) const {
    put("cgroup.procs", std::to_string(pid));
    put("freezer.state", "FROZEN");
    REQUIRE(wait_until([&] { return read_file(folder_ / "freezer.state") == "FROZEN\n"; }));
  }

 private:
  void put(const char* file, const std::string& text) const { std::ofstream(folder_ / file) << text; }
  std::filesystem::path folder_;
};

TEST_CASE("a process that SIGKILL does not end is named, and ddprun waits for it no longer", "[launcher]") {
  const Freezer freezer;
  Child ddprun(job({"--nproc-per-node=2", "--shutdown-timeout=0.1"}, {"ready", "pause"}));
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  const auto said = ddprun.out().find("ready 1 ");
  const std::string pid = ddprun.out().substr(said + 8, ddprun.out().find('\n', said) - said - 8);
  freezer.freeze(std::stoi(pid));
  ddprun.send_signal(SIGTERM);
  CHECK(ddprun.wait() == ExitStatus::exited(125));
  CHECK_THAT(ddprun.err(), ContainsSubstring("SIGKILL did not end processes: " + pid));
}

TEST_CASE("a rank that leaves early while others wait for it is a hang", "[launcher]") {
  const TempDir folder;
  const Finished run(job({"--nproc-per-node=2", "--hang-timeout=0.4", "--log-dir", folder.path()},
                         {"--rank", "0", "exit", "0", "--rank", "1", "pause"}));
  CHECK(run.status == ExitStatus::exited(124));
  CHECK_THAT(run.err, ContainsSubstring("no sign of life from rank 1 for"));
}

TEST_CASE("a temporary folder that cannot be made ends ddprun before any worker starts", "[launcher]") {
  Command command = job({"--nproc-per-node=2"}, {"ready"});
  command.env["TMPDIR"] = "/nowhere/at/all";
  const Finished run(command);
  CHECK(run.status == ExitStatus::exited(125));
  CHECK(run.out.empty());
}

TEST_CASE("a current folder that is removed costs no report, no exit code and no restart", "[launcher]") {
  const TempDir parent;
  const auto folder = parent.path() / "job";
  std::filesystem::create_directory(folder);
  Command command = script({"--log-dir=../logs", "--redirects=3", "--max-restarts=1"},
                           "rmdir " + folder.string() + " 2> /dev/null; exit 3");
  command.env["TORCHELASTIC_ERROR_FILE"] = "error.json";
  command.in_child = [&] {
    if (::chdir(folder.c_str()) != 0) ::_exit(122);
  };
  const Finished run(command);
  CHECK(run.status == ExitStatus::exited(3));
  CHECK_THAT(run.err, ContainsSubstring("restart 1 of 1") && ContainsSubstring("exit code 3"));
}

TEST_CASE("a job runs and ends where the kernel or a container forbids new system calls", "[launcher]") {
  need_vfork();
  const int error = GENERATE(ENOSYS, EPERM);
  const long call = GENERATE(SYS_pidfd_open, SYS_pidfd_send_signal, SYS_close_range);
  INFO("system call " << call << ", error " << error);
  const auto forbidden = [&](Command command) {
    command.in_child = [=] {
      ::dup2(STDERR_FILENO, 77);  // nobody but ddprun may keep it
      forbid({call}, error);
    };
    return command;
  };
  const Finished failed(
      forbidden(job({"--nproc-per-node=3"}, {"--rank", "1", "child", "exit", "7", "--all", "pause"})));
  CHECK(failed.status == ExitStatus::exited(7));
  CHECK_THAT(failed.err, ContainsSubstring("rank      : 1 "));
  const Finished succeeded(forbidden(job({"--nproc-per-node=2"}, {"daemon", "exit", "0"})));
  CHECK(succeeded.status == ExitStatus::exited(0));
  const Finished looked(forbidden(script({}, "[ -e /proc/self/fd/77 ] && echo kept; exit 0")));
  CHECK(looked.status == ExitStatus::exited(0));
  CHECK(looked.out == "");
  Child killed(forbidden(job({"--nproc-per-node=2"}, {"daemon", "ready", "pause"})));
  REQUIRE(killed.wait_for_output("ready ", 2));
  killed.send_signal(SIGKILL);
  killed.wait();
  CHECK(killed.nothing_left());
}

TEST_CASE("a job runs where processes cannot share descriptors", "[launcher]") {
  Command command =
      job({"--nproc-per-node=3", "--tee=3"}, {"ready", "--rank", "1", "exit", "7", "--all", "pause"});
  command.env["ASAN_OPTIONS"] = "detect_leaks=0";  // LeakSanitizer itself shares descriptors
  command.in_child = [] { forbid_shared_descriptors(); };
  const Finished run(command);
  CHECK(run.status == ExitStatus::exited(7));
  CHECK_THAT(run.err, ContainsSubstring("rank      : 1 "));
}

TEST_CASE("ddprun uses all the descriptors that it may have, and workers get the limit of the shell",
          "[launcher]") {
  Command command = script({"--nproc-per-node=40", "--tee=3"}, "ulimit -Sn");
  command.in_child = [] {
    const rlimit limit{50, 4096};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  };
  const Finished run(command);
  CHECK(run.status == ExitStatus::exited(0));
  CHECK(count_of("]:50\n", run.out) == 40);
}

TEST_CASE("to end many workers takes ddprun less time than to run them", "[launcher]") {
  need_no_sanitizer();
  Child ddprun(script({"--nproc-per-node=400"}, "[ $RANK = 0 ] || exec sleep 60; sleep 1; exit 3"));
  std::istringstream stat;
  std::string state;
  REQUIRE(wait_until([&] {
    const std::string line = read_file("/proc/" + std::to_string(ddprun.pid()) + "/stat");
    stat = std::istringstream(line.substr(line.rfind(") ") + 2));
    return stat >> state && state == "Z";
  }));
  // Fields 14 to 17 of stat: its user and system time, then those of its children.
  std::string skipped;
  for (int field = 4; field < 14; ++field) stat >> skipped;
  double user = 0, system = 0, user_of_workers = 0, system_of_workers = 0;
  stat >> user >> system >> user_of_workers >> system_of_workers;
  CHECK(user + system < user_of_workers + system_of_workers);
  CHECK(ddprun.wait() == ExitStatus::exited(3));
  check_nothing_left(ddprun);
}

}  // namespace
}  // namespace ddprun::test
