// Processes that leave their worker's group, and jobs that are stopped and continued.

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <vector>

#include "tests/integration/node_job.h"
#include "tests/support/terminal.h"

namespace ddprun::test {
namespace {

/// R of running, S of sleeping, T of stopped, ...
char state_of(pid_t pid) {
  const std::string line = read_file("/proc/" + std::to_string(pid) + "/stat");
  return line[line.rfind(") ") + 2];
}

/// As a shell does: the kernel stops nobody in an orphaned group, as the test's own may be.
void own_group() { ::setpgid(0, 0); }

/// ddprun as the init process of a container; skips where that is not allowed.
Command as_init(const Command& command) {
  const Finished allowed({{"unshare", "--pid", "--fork", "--mount-proc", "true"}});
  if (allowed.status != ExitStatus::exited(0)) skip("no process namespaces here: " + allowed.err);
  Command init = command;
  init.argv.insert(init.argv.begin(), {"unshare", "--pid", "--fork", "--mount-proc"});
  return init;
}

std::vector<pid_t> children_of(pid_t pid) {
  std::istringstream list(
      read_file("/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) + "/children"));
  return {std::istream_iterator<pid_t>(list), {}};
}

/// How many programs "sleep" among them live.
std::ptrdiff_t sleeping_children_of(pid_t pid) {
  return std::ranges::count_if(children_of(pid), [](pid_t child) {
    return read_file("/proc/" + std::to_string(child) + "/comm") == "sleep\n" && state_of(child) == 'S';
  });
}

/// Leaves an orphan in the process namespace of ddprun's, as `docker exec` may.
std::unique_ptr<Child> leave_orphan(pid_t init, const std::string& seconds) {
  auto entered =
      std::make_unique<Child>(Command{{"nsenter", "--target", std::to_string(init), "--pid", "--mount",
                                       "setsid", "sh", "-c", "sleep " + seconds + " & echo left"}});
  REQUIRE(entered->wait_for_output("left"));
  return entered;
}

TEST_CASE("as the init process ddprun leaves alone what others have started", "[launcher]") {
  Child outer(as_init(job({"--max-restarts=1"}, {"daemon", "ready", "await", "exit", "3"})));
  REQUIRE(outer.wait_for_output("ready "));
  const pid_t init = children_of(outer.pid()).at(0);
  const auto entered = leave_orphan(init, "600");
  CHECK(wait_until([&] { return sleeping_children_of(init) == 1; }));
  ::kill(init, SIGUSR1);  // ends the first attempt
  REQUIRE(outer.wait_for_output("ready ", 2));
  CHECK(sleeping_children_of(init) == 1);
  CHECK(count_of("daemon ", outer.out()) == 2);
  ::kill(init, SIGUSR1);
  CHECK(outer.wait() == ExitStatus::exited(3));
  check_nothing_left(outer);
}

TEST_CASE("as the init process ddprun ends a daemon without the job's variables with its attempt",
          "[launcher]") {
  const TempDir folder;
  Command command =
      script({"--max-restarts=1"},
             "cd \"$FOLDER\"; if [ -e pid ]; then kill -0 $(cat pid) && echo lives on; exit 4; fi; "
             "setsid env -i sh -c 'echo $$ > new; mv new pid; exec sleep 777' > /dev/null 2>&1 & "
             "until [ -e pid ]; do sleep 0.01; done; exit 3");
  command.env["FOLDER"] = folder.path();
  const Finished run(as_init(command));
  CHECK(run.status == ExitStatus::exited(4));
  CHECK(run.out.empty());
}

TEST_CASE("as the init process ddprun gets each signal once and dies of it", "[launcher]") {
  const bool to_all = GENERATE(false, true);  // as Slurm and systemd do
  Child outer(as_init(job({"--shutdown-timeout=600"}, {"ready", "await", "expect-no-signal", "100"})));
  REQUIRE(outer.wait_for_output("ready "));
  const pid_t init = children_of(outer.pid()).at(0);
  const pid_t ddprun = children_of(init).at(0);
  if (to_all) REQUIRE(::kill(ddprun, SIGTERM) == 0);
  ::kill(init, SIGTERM);
  CHECK(outer.wait() == ExitStatus::exited(143));
  CHECK(count_of("no second signal", outer.out()) == 1);
  check_nothing_left(outer);
}

TEST_CASE("as the init process ddprun ends the job when its terminal hangs up", "[launcher]") {
  std::optional<Terminal> terminal(std::in_place);
  Command command = as_init(job({"--shutdown-timeout=600"}, {"ready", "await", "expect-no-signal", "50"}));
  const auto init = std::find(command.argv.begin(), command.argv.end(), DDPRUN_PROGRAM);
  command.argv.insert(init, {"setsid", "--ctty"});
  command.in_child = [&] {
    ::signal(SIGHUP, SIG_DFL);  // the test may run under nohup
    terminal->become_stderr();
    ::dup2(STDERR_FILENO, STDIN_FILENO);
  };
  Child outer(command);
  REQUIRE(outer.wait_for_output("ready "));
  terminal.reset();
  CHECK(outer.wait() == ExitStatus::exited(129));
  CHECK(count_of("got SIGHUP", outer.out()) == 1);
  CHECK(count_of("no second signal", outer.out()) == 1);
  check_nothing_left(outer);
}

/// An orphan that ends is no zombie of this init process's.
void check_reaping(pid_t init) {
  const auto entered = leave_orphan(init, "0.1");
  CHECK(entered->wait() == ExitStatus::exited(0));
  CHECK(wait_until([&] { return children_of(init).size() == 1; }, std::chrono::seconds(5)));  // ddprun proper
}

TEST_CASE("as the init process ddprun reaps while it waits for other nodes", "[launcher]") {
  Child outer(as_init(job({"--nnodes=2", "--rdzv-endpoint=127.0.0.1:" + free_port()}, {"ready"})));
  REQUIRE(wait_until([&] { return count_of("waiting for nodes", outer.err()) > 0; }));
  const pid_t init = children_of(outer.pid()).at(0);
  check_reaping(init);
  ::kill(init, SIGTERM);
  outer.wait();
  check_nothing_left(outer);
}

TEST_CASE("as the init process ddprun reaps while it stands by", "[launcher]") {
  const TempDir folder;
  const auto end = (folder.path() / "end").string();
  NodeJob nodes;
  const auto start = [&](bool init) {
    const Command command =
        job(nodes.flags({"--nnodes=2", "--spares=1"}), {"ready", "wait-for-file", end, "exit", "0"});
    nodes.add(init ? as_init(command) : command);
  };
  for (int i = 0; i < 2; ++i) start(/*init=*/false);
  for (const std::size_t node : {0U, 1U}) REQUIRE(nodes.node(node).wait_for_output("ready "));
  start(/*init=*/true);
  Child& spare = nodes.node(2);
  REQUIRE(wait_until([&] { return count_of("standing by", spare.err()) > 0; }));
  check_reaping(children_of(spare.pid()).at(0));
  write_file_atomic(end, "");
  CHECK(nodes.wait() == std::vector(3, ExitStatus::exited(0)));
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

TEST_CASE("a daemon that is stopped is continued to end", "[launcher]") {
  const TempDir folder;
  Command command =
      script({"--shutdown-timeout=600"},
             "cd \"$FOLDER\"; setsid sh -c 'echo $$ > new; mv new pid; kill -STOP $$' & "
             "until [ -e pid ] && grep -q 'State:.T' /proc/$(cat pid)/status; do sleep 0.01; done");
  command.env["FOLDER"] = folder.path();
  const Finished run(command);
  CHECK(run.status == ExitStatus::exited(0));
  CHECK_THAT(run.err, !ContainsSubstring("sending SIGKILL"));
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
  Command command = job({"--nproc-per-node=2"}, {"ready", "await", "exit", "0"});
  command.in_child = own_group;
  Child ddprun(command);
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
  Command command = job({"--nproc-per-node=2"}, {"ready", "pause"});
  command.in_child = own_group;
  Child ddprun(command);
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  ddprun.send_signal(SIGTSTP);
  CHECK(wait_until([&] { return state_of(ddprun.pid()) == 'T'; }));
  ddprun.send_signal(SIGTERM);
  ddprun.send_signal(SIGCONT);
  CHECK(ddprun.wait() == ExitStatus::killed(SIGTERM));
  check_nothing_left(ddprun);
}

/// What a shell may do before it becomes ddprun. The last one leaves an orphan to ddprun, as a login at an
/// sshd that was started before leaves a tmux.
constexpr const char* kBefore[] = {"sleep 300 & echo earlier $! end;",
                                   "setsid sleep 300 & echo earlier $! end;",
                                   "{ sleep 0.2; setsid sleep 300 & echo earlier $! end; } &"};

TEST_CASE("processes that the shell started before it became ddprun are left alone", "[launcher]") {
  for (const char* how : kBefore) {
    INFO(how);
    Child ddprun({{"sh", "-c", how + std::string(" exec \"$0\" --max-restarts=1 -- sh -c 'sleep 0.5; false'"),
                   DDPRUN_PROGRAM}});
    CHECK(ddprun.wait() == ExitStatus::exited(1));
    const pid_t earlier = std::stoi(ddprun.out().substr(std::string("earlier ").size()));
    CHECK(wait_until([&] { return state_of(earlier) == 'S'; }));  // not dead
    ::kill(earlier, SIGKILL);
    CHECK(ddprun.nothing_left());
  }
}

TEST_CASE("as the init process, too, ddprun leaves alone what the shell started before", "[launcher]") {
  for (const char* how : kBefore) {
    INFO(how);
    const TempDir folder;
    Command command{{"sh", "-c",
                     how + std::string(" exec \"$0\" --max-restarts=1 -- sh -c 'echo begun; "
                                       "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exec sleep 600; "
                                       "until [ -e \"$GO\" ]; do sleep 0.05; done; exit 3'"),
                     DDPRUN_PROGRAM},
                    {{"GO", folder.path() / "go"}}};
    Child outer(as_init(command));
    REQUIRE(outer.wait_for_output("earlier "));
    REQUIRE(outer.wait_for_output("begun"));
    const pid_t init = children_of(outer.pid()).at(0);
    CHECK(wait_until([&] { return sleeping_children_of(init) == 1; }));
    write_file_atomic(folder.path() / "go", "");
    REQUIRE(outer.wait_for_output("begun", 2));
    CHECK(sleeping_children_of(init) == 1);
    ::kill(init, SIGTERM);
    CHECK(outer.wait() == ExitStatus::exited(143));
    check_nothing_left(outer);
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
