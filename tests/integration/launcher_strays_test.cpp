// Processes that leave their worker's group, and jobs that are stopped and continued.

#include <unistd.h>

#include <csignal>
#include <sstream>
#include <vector>

#include "tests/integration/job.h"

namespace ddprun::test {
namespace {

/// R of running, S of sleeping, T of stopped, ...
char state_of(pid_t pid) {
  const std::string line = read_file("/proc/" + std::to_string(pid) + "/stat");
  return line[line.rfind(") ") + 2];
}

TEST_CASE("a daemon that a worker leaves behind ends with the job", "[launcher]") {
  const auto code = GENERATE("0", "3");
  const Finished run(job({"--nproc-per-node=2"}, {"daemon", "exit", code}));
  CHECK(run.status == ExitStatus::exited(std::stoi(code)));
  CHECK(count_of("daemon ", run.out) >= 1);
}

TEST_CASE("a daemon that ignores SIGTERM is killed after the grace period", "[launcher]") {
  const Finished run(job({"--shutdown-timeout=0.1"}, {"ignore-term", "daemon", "exit", "0"}));
  CHECK(run.status == ExitStatus::exited(0));
  CHECK_THAT(run.err, ContainsSubstring("sending SIGKILL"));
}

TEST_CASE("a daemon dies with a ddprun that is killed", "[launcher]") {
  Child ddprun(job({"--nproc-per-node=2"}, {"daemon", "ready", "pause"}));
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  ddprun.send_signal(SIGKILL);
  CHECK(ddprun.wait() == ExitStatus::killed(SIGKILL));
  CHECK(ddprun.nothing_left());
}

TEST_CASE("processes without an environment die with a ddprun that is killed", "[launcher]") {
  Child ddprun(script({"--nproc-per-node=3"}, "env -i sleep 300 & echo started $!.; wait"));
  REQUIRE(ddprun.wait_for_output(".\n", 3));
  std::vector<pid_t> sleeping;
  std::istringstream words(ddprun.out());
  for (std::string word; words >> word;)
    if (word != "started") sleeping.push_back(std::stoi(word));
  ddprun.send_signal(SIGKILL);
  ddprun.wait();
  for (const pid_t pid : sleeping) {
    const auto has_ended = [pid] { return ::kill(pid, 0) != 0 || state_of(pid) == 'Z'; };
    CHECK(wait_until(has_ended, std::chrono::seconds(5)));
    ::kill(pid, SIGKILL);
  }
}

TEST_CASE("a daemon of a job inside a job dies with the outer ddprun", "[launcher]") {
  Command inner = job({"--nproc-per-node=2"}, {"daemon", "ready", "pause"});
  Command outer{{DDPRUN_PROGRAM, "--"}};
  outer.argv.insert(outer.argv.end(), inner.argv.begin(), inner.argv.end());
  Child ddprun(outer);
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  ddprun.send_signal(SIGKILL);
  ddprun.wait();
  CHECK(ddprun.nothing_left());
}

TEST_CASE("processes of another job are left alone", "[launcher]") {
  Child other(job({}, {"daemon", "ready", "await", "exit", "0"}));
  REQUIRE(other.wait_for_output("ready "));
  Child ddprun(job({}, {"daemon", "ready", "pause"}));
  REQUIRE(ddprun.wait_for_output("ready "));
  const auto before = other.processes();
  ddprun.send_signal(SIGKILL);
  ddprun.wait();
  CHECK(ddprun.nothing_left());
  CHECK(other.processes() == before);
  other.send_signal(SIGUSR1);
  CHECK(other.wait() == ExitStatus::exited(0));
}

TEST_CASE("workers stop and go on with ddprun", "[launcher]") {
  Child ddprun(job({"--nproc-per-node=2"}, {"ready", "await", "exit", "0"}));
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  const auto all_are = [&](char state) {
    for (const pid_t pid : ddprun.processes())
      if (state_of(pid) != state && read_file("/proc/" + std::to_string(pid) + "/comm") != "ddprun-guard\n")
        return false;
    return true;
  };
  ddprun.send_signal(SIGTSTP);
  CHECK(wait_until([&] { return all_are('T'); }));
  ddprun.send_signal(SIGCONT);
  CHECK(wait_until([&] { return all_are('S'); }));
  ddprun.send_signal(SIGUSR1);
  CHECK(ddprun.wait() == ExitStatus::exited(0));
  check_nothing_left(ddprun);
}

TEST_CASE("a stopped job can be ended", "[launcher]") {
  Child ddprun(job({"--nproc-per-node=2"}, {"ready", "pause"}));
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  ddprun.send_signal(SIGTSTP);
  CHECK(wait_until([&] { return state_of(ddprun.pid()) == 'T'; }));
  ddprun.send_signal(SIGTERM);
  ddprun.send_signal(SIGCONT);
  CHECK(ddprun.wait() == ExitStatus::killed(SIGTERM));
  check_nothing_left(ddprun);
}

TEST_CASE("processes that the shell started before it became ddprun are left alone", "[launcher]") {
  for (const char* how : {"sleep 300 &", "setsid sleep 300 &"}) {
    INFO(how);
    Child ddprun(
        {{"sh", "-c", how + std::string(" echo earlier $! end; exec \"$0\" --max-restarts=1 -- false"),
          DDPRUN_PROGRAM}});
    CHECK(ddprun.wait() == ExitStatus::exited(1));
    const pid_t earlier = std::stoi(ddprun.out().substr(std::string("earlier ").size()));
    CHECK(wait_until([&] { return state_of(earlier) == 'S'; }));  // not dead
    ::kill(earlier, SIGKILL);
    CHECK(ddprun.nothing_left());
  }
}

TEST_CASE("a process substitution that takes the output outlives every attempt", "[launcher]") {
  const TempDir folder;
  const std::string file = folder.path() / "out";
  Child ddprun({{"bash", "-c", "exec \"$0\" \"$@\" > >(cat > \"$FILE\")", DDPRUN_PROGRAM, "--max-restarts=1",
                 "--", "sh", "-c", "echo attempt $TORCHELASTIC_RESTART_COUNT; exit 5"},
                {{"FILE", file}}});
  CHECK(ddprun.wait() == ExitStatus::exited(5));
  CHECK(
      wait_until([&] { return std::filesystem::exists(file) && read_file(file) == "attempt 0\nattempt 1\n"; },
                 std::chrono::seconds(5)));
}

}  // namespace
}  // namespace ddprun::test
