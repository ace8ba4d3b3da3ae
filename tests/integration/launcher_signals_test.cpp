// Signals to ddprun, and its own death.

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <set>
#include <thread>

#include "tests/integration/node_job.h"
#include "tests/support/terminal.h"

namespace ddprun::test {
namespace {

/// Long enough that a test which waits it out fails at its deadline.
const std::string kLongGrace = "--shutdown-timeout=600";

TEST_CASE("a signal that ends the job reaches every worker once, and ddprun ends by it", "[launcher]") {
  const auto signal = GENERATE(SIGINT, SIGTERM, SIGHUP, SIGQUIT);
  Command command = job({"--nproc-per-node=3", kLongGrace}, {"ready", "await", "expect-no-signal", "50"});
  command.in_child = [] { ::signal(SIGHUP, SIG_DFL); };  // the test may run under nohup
  Child ddprun(command);
  REQUIRE(ddprun.wait_for_output("ready ", 3));
  ddprun.send_signal(signal);
  CHECK(ddprun.wait() == ExitStatus::killed(signal));
  CHECK(count_of("got " + signal_name(signal), ddprun.out()) == 3);
  CHECK(count_of("no second signal", ddprun.out()) == 3);
  check_nothing_left(ddprun);
}

TEST_CASE("what a second signal would do is announced at the first", "[launcher]") {
  Child ddprun(job({"--nproc-per-node=2", kLongGrace}, {"ready", "await"}));
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  ddprun.send_signal(SIGINT);
  CHECK(ddprun.wait() == ExitStatus::killed(SIGINT));
  CHECK_THAT(ddprun.err(),
             ContainsSubstring("received SIGINT: ending the job (a second signal kills it at once)"));
}

TEST_CASE("a signal whose workers have children ends those too", "[launcher]") {
  Child ddprun(job({"--nproc-per-node=2", kLongGrace}, {"child", "pause"}));
  REQUIRE(ddprun.wait_for_output("child ", 2));
  ddprun.send_signal(SIGTERM);
  CHECK(ddprun.wait() == ExitStatus::killed(SIGTERM));
  check_nothing_left(ddprun);
}

TEST_CASE("a signal that is passed on ends no worker that does not handle it", "[launcher]") {
  const auto signal = GENERATE(SIGUSR1, SIGUSR2);
  Child ddprun(script({"--nproc-per-node=2"}, "echo ready; sleep 1; echo done"));
  REQUIRE(ddprun.wait_for_output("ready", 2));
  ddprun.send_signal(signal);
  CHECK(ddprun.wait() == ExitStatus::exited(0));
  CHECK(count_of("done", ddprun.out()) == 2);
  CHECK_THAT(ddprun.err(),
             ContainsSubstring(signal_name(signal) + " would end rank 0, rank 1: the signal is not"));
}

TEST_CASE("a signal that is passed on reaches a worker that waits for it, and no other", "[launcher]") {
  const auto usr1 = std::to_string(SIGUSR1);
  const auto [words, line, reaches] = GENERATE_COPY(table<std::vector<std::string>, std::string, bool>({
      {{"wait-for-signal", usr1}, "waits", true},
      {{"wait-for-signal", std::to_string(SIGTERM)}, "waits", false},
      {{"block", usr1}, "blocks", true},             // it does not die of it
      {{"block", "0"}, "blocks", false},             // for a moment
      {{"thread", "block", usr1}, "blocks", false},  // the other thread would get it
  }));
  CAPTURE(words);
  Child ddprun(job({"--nproc-per-node=2"}, words));
  REQUIRE(ddprun.wait_for_output(line, 2));
  ddprun.send_signal(SIGUSR1);
  CHECK(ddprun.wait() == ExitStatus::exited(0));
  CHECK(count_of("got it", ddprun.out()) == (line == "waits" && reaches ? 2 : 0));
  CHECK(count_of("SIGUSR1 would end rank 0, rank 1: the signal is not passed on there", ddprun.err()) ==
        !reaches);
}

TEST_CASE("a signal that is passed on ends no program that a worker with a handler just starts",
          "[launcher]") {
  Child ddprun(script({}, R"(trap : USR1; echo ready; i=0
while [ $i -lt 1000 ]; do i=$((i + 1)); /bin/true; [ $? -gt 128 ] && echo died; done; echo done)"));
  REQUIRE(ddprun.wait_for_output("ready"));
  while (count_of("done", ddprun.out()) == 0) {
    ddprun.send_signal(SIGUSR1);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  CHECK(ddprun.wait() == ExitStatus::exited(0));
  CHECK(count_of("died", ddprun.out()) == 0);
}

TEST_CASE("a signal that is passed on reaches the program that a worker's shell has started", "[launcher]") {
  Child ddprun(
      script({"--nproc-per-node=2"},
             R"(sh -c 'trap "echo got; exit" USR1; echo ready; while :; do sleep 0.1; done'; echo done)"));
  REQUIRE(ddprun.wait_for_output("ready", 2));
  ddprun.send_signal(SIGUSR1);
  CHECK(ddprun.wait() == ExitStatus::exited(0));
  for (const char* line : {"got", "done"}) CHECK(count_of(line, ddprun.out()) == 2);
}

TEST_CASE("a signal that is passed on reaches a program that handles it a little later", "[launcher]") {
  const std::string program =
      R"(echo ready; sleep 0.1; trap "echo got; exit" USR1; while :; do sleep 0.1; done)";
  SECTION("below a shell") {
    Child ddprun(script({"--nproc-per-node=2"}, "sh -c '" + program + "'; echo done"));
    REQUIRE(ddprun.wait_for_output("ready", 2));
    ddprun.send_signal(SIGUSR1);
    CHECK(ddprun.wait() == ExitStatus::exited(0));
    CHECK(count_of("got", ddprun.out()) == 2);
    CHECK_THAT(ddprun.err(), !ContainsSubstring("would end"));
  }
  SECTION("as the job ends") {
    Child ddprun(script({}, "trap '" + program + "' TERM; echo runs; while :; do sleep 0.1; done"));
    REQUIRE(ddprun.wait_for_output("runs"));
    ddprun.send_signal(SIGTERM);
    REQUIRE(ddprun.wait_for_output("ready"));
    ddprun.send_signal(SIGUSR1);
    CHECK(ddprun.wait() == ExitStatus::killed(SIGTERM));
    CHECK(count_of("got", ddprun.out()) == 1);
  }
}

TEST_CASE("a signal that is passed on ends no helper of a worker that handles it", "[launcher]") {
  Child ddprun(script(
      {}, R"(trap "echo got" USR1; sh -c 'sleep 1; echo helped' & echo ready; until wait $!; do :; done)"));
  REQUIRE(ddprun.wait_for_output("ready"));
  ddprun.send_signal(SIGUSR1);
  CHECK(ddprun.wait() == ExitStatus::exited(0));
  for (const char* line : {"got", "helped"}) CHECK(count_of(line, ddprun.out()) == 1);
}

TEST_CASE("a stopped worker goes on with a SIGCONT that is passed on", "[launcher]") {
  Child ddprun(script({"--forward-signals=SIGCONT"}, "echo ready; kill -STOP $$; echo continued"));
  REQUIRE(ddprun.wait_for_output("ready"));
  CHECK(wait_until([&] {
    ddprun.send_signal(SIGCONT);  // again until the worker has stopped itself
    return count_of("continued", ddprun.out()) == 1;
  }));
  CHECK(ddprun.wait() == ExitStatus::exited(0));
}

TEST_CASE("SIGUSR1 and SIGUSR2 are passed on and the job goes on", "[launcher]") {
  const auto signal = GENERATE(SIGUSR1, SIGUSR2);
  Child ddprun(job({"--nproc-per-node=2"}, {"ready", "await", "exit", "0"}));
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  ddprun.send_signal(signal);
  CHECK(ddprun.wait() == ExitStatus::exited(0));
  CHECK(count_of("got " + signal_name(signal), ddprun.out()) == 2);
  check_nothing_left(ddprun);
}

TEST_CASE("a signal that is not to be passed on is ignored", "[launcher]") {
  Child ddprun(job({"--nproc-per-node=2", "--forward-signals=SIGUSR2"}, {"ready", "await", "exit", "0"}));
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  ddprun.send_signal(SIGUSR1);
  ddprun.send_signal(SIGUSR2);
  CHECK(ddprun.wait() == ExitStatus::exited(0));
  CHECK(count_of("got SIGUSR2", ddprun.out()) == 2);
  check_nothing_left(ddprun);
}

TEST_CASE("the signals that end the job may be named", "[launcher]") {
  Child ddprun(job({"--nproc-per-node=2", "--signals-to-handle=SIGUSR1"}, {"ready", "await", "exit", "0"}));
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  ddprun.send_signal(SIGUSR1);
  CHECK(ddprun.wait() == ExitStatus::killed(SIGUSR1));
  check_nothing_left(ddprun);
}

TEST_CASE("under nohup SIGHUP ends nothing", "[launcher]") {
  Command command = job({"--nproc-per-node=2"}, {"ready", "await", "exit", "0"});
  command.in_child = [] { ::signal(SIGHUP, SIG_IGN); };
  Child ddprun(command);
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  ddprun.send_signal(SIGHUP);
  ddprun.send_signal(SIGUSR1);
  CHECK(ddprun.wait() == ExitStatus::exited(0));
  CHECK(count_of("got SIGUSR1", ddprun.out()) == 2);
  check_nothing_left(ddprun);
}

TEST_CASE("SIGINT ends a job that a shell started in the background", "[launcher]") {
  Command command = job({"--nproc-per-node=2"}, {"ready", "pause"});
  command.in_child = [] { ::signal(SIGINT, SIG_IGN); };  // as sh does for a command with '&'
  Child ddprun(command);
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  ddprun.send_signal(SIGINT);
  CHECK(ddprun.wait() == ExitStatus::killed(SIGINT));
  check_nothing_left(ddprun);
}

TEST_CASE("a worker that ignores SIGTERM is killed after the grace period, by name", "[launcher]") {
  Child ddprun(job({"--nproc-per-node=2", "--shutdown-timeout=0.2"}, {"ignore-term", "ready", "pause"}));
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  ddprun.send_signal(SIGTERM);
  CHECK(ddprun.wait() == ExitStatus::killed(SIGTERM));
  CHECK_THAT(ddprun.err(), ContainsSubstring("rank 1 (pid "));
  CHECK_THAT(ddprun.err(), ContainsSubstring("SIGKILL"));
  check_nothing_left(ddprun);
}

TEST_CASE("the death of a parent with many threads is one signal", "[launcher]") {
  const TempDir folder;
  const std::string script = folder.path() / "kernel.py";
  write_file_atomic(
      script,
      "import ctypes, subprocess, sys, threading, time\n"
      "for _ in range(16): threading.Thread(target=time.sleep, args=(600,)).start()\n"
      "job = subprocess.Popen(sys.argv[1:], preexec_fn=lambda: ctypes.CDLL(None).prctl(1, 15))\n"
      "job.wait()\n");
  for (int i = 0; i < 5; ++i) {
    const std::string ready = folder.path() / ("ready" + std::to_string(i)),
                      saved = folder.path() / ("saved" + std::to_string(i));
    Command kernel = ddprun_command({"--no-python", "sh", "-c",
                                     "trap 'sleep 0.3; touch " + saved + "; exit 0' TERM; touch " + ready +
                                         "; while :; do sleep 0.05; done"});
    kernel.argv.insert(kernel.argv.begin(), {"python3", script});
    Child child(kernel);
    REQUIRE(wait_until([&] { return std::filesystem::exists(ready); }));
    child.send_signal(SIGKILL);
    CHECK(wait_until([&] { return std::filesystem::exists(saved); }));
  }
}

TEST_CASE("a signal that does not end the job is passed on, whoever else has just sent it", "[launcher]") {
  Child ddprun(job({}, {"ready", "await", "await"}));
  REQUIRE(ddprun.wait_for_output("ready "));
  for (int times = 1; times <= 2; ++times) {
    CHECK(Child(Command{{"/bin/kill", "-USR1", std::to_string(ddprun.pid())}, {}}).wait() ==
          ExitStatus::exited(0));
    REQUIRE(ddprun.wait_for_output("got SIGUSR1", times));
  }
  CHECK(ddprun.wait() == ExitStatus::exited(0));
}

TEST_CASE("the death of a parent is one signal, also while it is not seen to be dead yet", "[launcher]") {
  const TempDir folder;
  const std::string script = folder.path() / "parent.py", ready = folder.path() / "ready",
                    saved = folder.path() / "saved";
  write_file_atomic(script,
                    "import os, subprocess, sys, time\n"
                    "job = subprocess.Popen(sys.argv[2:])\n"
                    "while not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
                    "for _ in range(2): job.terminate(); time.sleep(0.02)\n"
                    "os._exit(0)\n");
  Command parent = ddprun_command({"--no-python", "sh", "-c",
                                   "trap 'sleep 0.5; touch " + saved + "; exit 0' TERM; touch " + ready +
                                       "; while :; do sleep 0.05; done"});
  parent.argv.insert(parent.argv.begin(), {"python3", script, ready});
  Child child(parent);
  CHECK(wait_until([&] { return std::filesystem::exists(saved); }));
}

TEST_CASE("a hang-up beside another signal is no second one", "[launcher]") {
  // systemd ends a login session with both at once; and a window may be closed after Ctrl-C.
  const auto [first, second] = GENERATE(std::pair(SIGTERM, SIGHUP), std::pair(SIGHUP, SIGTERM),
                                        std::pair(SIGINT, SIGHUP), std::pair(SIGHUP, SIGHUP));
  CAPTURE(first, second);
  const TempDir folder;
  const std::string saved = folder.path() / "saved";
  Command command =
      script({kLongGrace}, "trap 'sleep 1; touch " + saved +
                               "; exit 0' TERM HUP INT; echo begun; while :; do sleep 0.05; done");
  command.in_child = [] { ::signal(SIGHUP, SIG_DFL); };  // the test may run under nohup
  Child ddprun(command);
  REQUIRE(ddprun.wait_for_output("begun"));
  ddprun.send_signal(first);
  REQUIRE(wait_until([&] { return count_of("received SIG", ddprun.err()) == 1; }));
  ddprun.send_signal(second);
  CHECK(ddprun.wait() == ExitStatus::killed(first));
  CHECK(std::filesystem::exists(saved));
  check_nothing_left(ddprun);
}

TEST_CASE("what a program writes to as it saves lives until it has ended", "[launcher]") {
  const TempDir folder;
  const std::string program = folder.path() / "train.py", saved = folder.path() / "saved";
  write_file_atomic(program,
                    "import signal, sys, time\n"
                    "def save(*_):\n"
                    "  time.sleep(0.3); print('saving', flush=True); open(sys.argv[1], 'w'); sys.exit(0)\n"
                    "signal.signal(signal.SIGTERM, save); print('ready', flush=True)\n"
                    "while True: time.sleep(0.1)\n");
  Child ddprun(ddprun_command(
      {"--no-python", "bash", "-c", "python3 " + program + " " + saved + " 2>&1 | tee /dev/stderr; exit"}));
  REQUIRE(ddprun.wait_for_output("ready"));
  ddprun.send_signal(SIGTERM);
  CHECK(ddprun.wait() == ExitStatus::killed(SIGTERM));
  CHECK(std::filesystem::exists(saved));
  check_nothing_left(ddprun);
}

TEST_CASE("time in which the job is stopped does not shorten the grace period", "[launcher]") {
  const TempDir folder;
  const std::string saved = folder.path() / "saved", pid = folder.path() / "pid";
  Child ddprun(
      script({"--shutdown-timeout=3"}, "echo $$ > " + pid + "; trap 'sleep 1; sleep 1; touch " + saved +
                                           "; exit 0' TERM; echo begun; while :; do sleep 0.05; done"));
  REQUIRE(ddprun.wait_for_output("begun"));
  ddprun.send_signal(SIGTERM);
  REQUIRE(wait_until([&] { return count_of("received SIGTERM", ddprun.err()) == 1; }));
  const pid_t worker = std::stoi(read_or_empty(pid));
  const auto both = [&](int signal) {
    ::kill(worker, signal);
    ddprun.send_signal(signal);
  };
  both(SIGSTOP);
  std::this_thread::sleep_for(std::chrono::seconds(4));
  both(SIGCONT);
  CHECK(ddprun.wait() == ExitStatus::killed(SIGTERM));
  CHECK(std::filesystem::exists(saved));
  check_nothing_left(ddprun);
}

TEST_CASE("a second signal skips the grace period", "[launcher]") {
  Child ddprun(job({"--nproc-per-node=2", kLongGrace}, {"ready", "await", "say", "first", "await", "pause"}));
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  ddprun.send_signal(SIGINT);
  REQUIRE(ddprun.wait_for_output("first", 2));
  ddprun.send_signal(SIGINT);
  ddprun.send_signal(SIGINT);
  CHECK(ddprun.wait() == ExitStatus::killed(SIGINT));
  check_nothing_left(ddprun);
}

TEST_CASE("a second signal does not lose --result-json", "[launcher]") {
  const TempDir folder;
  const std::string record = folder.path() / "result.json";
  Child ddprun(script({"--result-json", record, "--shutdown-timeout=1000"},
                      "trap : TERM INT; echo begun; while :; do sleep 1; done"));
  REQUIRE(ddprun.wait_for_output("begun"));
  ddprun.send_signal(SIGTERM);
  REQUIRE(wait_until([&] { return count_of("a second signal", ddprun.err()) == 1; }));
  ddprun.send_signal(SIGINT);
  CHECK(ddprun.wait() == ExitStatus::killed(SIGTERM));
  CHECK_THAT(read_file(record), ContainsSubstring("\"signal\""));
  CHECK_THAT(ddprun.err(), !ContainsSubstring("--result-json"));
}

TEST_CASE("a signal at any moment of the start leaves nothing behind", "[launcher]") {
  need_vfork();
  for (int i = 0; i < 25; ++i) {
    Child ddprun(job({"--nproc-per-node=32"}, {"ready", "pause"}));
    // From before main() to long after the first worker: whatever is the case when so many are ready.
    REQUIRE(ddprun.wait_for_output("ready ", i));
    ddprun.send_signal(SIGTERM);
    CHECK(ddprun.wait() == ExitStatus::killed(SIGTERM));
    check_nothing_left(ddprun);
  }
}

TEST_CASE("SIGKILL at any moment of the start leaves nothing behind", "[launcher]") {
  need_vfork();
  for (int i = 0; i < 60; ++i) {
    Child ddprun({{DDPRUN_PROGRAM, "--nproc-per-node=4", "sh", "-c",
                   "sleep 600 & setsid sleep 600 & echo started; wait"}});
    if (i % 2 == 0) ::usleep(static_cast<useconds_t>(i * 100));
    if (i % 2 == 1) REQUIRE(ddprun.wait_for_output("started", 1 + i % 4));
    ddprun.send_signal(SIGKILL);
    ddprun.wait();
    CHECK(ddprun.nothing_left());
    CHECK(wait_until([&] { return std::filesystem::is_empty(ddprun.temp_folder()); }));
  }
}

TEST_CASE("the next job removes what one left that was killed together with its guard", "[launcher]") {
  const TempDir temp, control;
  namespace fs = std::filesystem;
  const auto with_folders = [&](Command command) {
    command.env["TMPDIR"] = temp.path();
    command.env["DDPRUN_CONTROL_DIR"] = control.path();
    return command;
  };
  const auto count = [](const fs::path& folder) { return std::distance(fs::directory_iterator(folder), {}); };
  const fs::path strange = temp.path() / "ddprun-00000000-0000-4000-8000-000000000000";
  fs::create_directory(strange);
  fs::permissions(strange, fs::perms::owner_all);
  const std::set<fs::path> others = {control.path() / "notes.sock", control.path() / "01234567.sock",
                                     control.path() / "notes.new", control.path() / "01234567.new"};
  for (const auto& file : others) write_file_atomic(file, "nobody's socket");
  for (const auto& file : others)
    fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::hours(1));
  const UniqueFd unready(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));  // of another program
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, (control.path() / "service.sock").c_str());
  REQUIRE(::bind(unready.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  Child alive(with_folders(job({}, {"ready", "await", "exit", "0"})));
  REQUIRE(alive.wait_for_output("ready "));
  std::set<fs::path> others_folders;
  for (const auto& folder : fs::directory_iterator(temp.path())) others_folders.insert(folder.path());
  Child dead(with_folders(job({}, {"ready", "pause"})));
  REQUIRE(dead.wait_for_output("ready "));
  dead.send_signal(SIGSTOP);
  for (const pid_t pid : dead.processes())
    if (read_file("/proc/" + std::to_string(pid) + "/comm") == "ddprun-guard\n") ::kill(pid, SIGKILL);
  dead.send_signal(SIGKILL);
  dead.wait();
  CHECK(dead.nothing_left());
  CHECK(count(temp.path()) == 3);
  CHECK(count(control.path()) == 2 + 5);
  const auto make_old = [](const fs::path& folder) {
    fs::last_write_time(folder, fs::file_time_type::clock::now() - std::chrono::minutes(1));
  };
  fs::path left;
  for (const auto& folder : fs::directory_iterator(temp.path()))
    if (others_folders.count(folder.path()) == 0) left = folder.path();
  const fs::path old = strange.string() + left.extension().string();
  fs::create_directory(old);
  fs::permissions(old, fs::perms::owner_all);
  make_old(old);
  const auto run_until = [&](const std::function<bool()>& is_tidy) {
    Child next(with_folders(job({}, {"ready", "await", "exit", "0"})));
    CHECK(wait_until(is_tidy));
    REQUIRE(next.wait_for_output("ready "));
    next.send_signal(SIGUSR1);
    CHECK(next.wait() == ExitStatus::exited(0));
  };
  run_until([&] { return !fs::exists(old) && count(control.path()) == 2 + 5; });
  CHECK(count(temp.path()) == 3);  // the third is so young that its ddprun may be about to hold it
  for (const auto& folder : fs::directory_iterator(temp.path())) make_old(folder);
  run_until([&] { return !fs::exists(left); });
  CHECK(count(temp.path()) == 2);  // the one that is alive, and one of another start of the machine
  CHECK(count(control.path()) == 1 + 5);
  alive.send_signal(SIGUSR1);
  CHECK(alive.wait() == ExitStatus::exited(0));
  CHECK(count(temp.path()) == 1);
}

TEST_CASE("workers and their children die with a ddprun that is killed", "[launcher]") {
  Child ddprun(job({"--nproc-per-node=3"}, {"stubborn-child", "ignore-term", "ready", "pause"}));
  REQUIRE(ddprun.wait_for_output("ready ", 3));
  REQUIRE(ddprun.wait_for_output("child ", 3));
  ddprun.send_signal(SIGKILL);
  CHECK(ddprun.wait() == ExitStatus::killed(SIGKILL));
  CHECK(ddprun.nothing_left());
  CHECK(wait_until([&] { return std::filesystem::is_empty(ddprun.temp_folder()); }));  // the guard's last act
}

TEST_CASE("the children of a worker that has ended die with a ddprun that is killed", "[launcher]") {
  Child ddprun(job({"--nproc-per-node=2"},
                   {"--rank", "0", "stubborn-child", "exit", "0", "--rank", "1", "ready", "pause"}));
  REQUIRE(ddprun.wait_for_output("ready "));
  REQUIRE(ddprun.wait_for_output("child "));
  ddprun.send_signal(SIGKILL);
  ddprun.wait();
  CHECK(ddprun.nothing_left());
}

TEST_CASE("a job goes on and ends in order when its guard is killed", "[launcher]") {
  Child ddprun(job({"--nproc-per-node=2", "--max-restarts=1"}, {"ready", "await", "exit", "4"}));
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  const auto kill_guard = [&] {
    for (const pid_t pid : ddprun.processes())
      if (read_file("/proc/" + std::to_string(pid) + "/comm") == "ddprun-guard\n")
        return ::kill(pid, SIGKILL) == 0;
    return false;
  };
  REQUIRE(wait_until(kill_guard));
  ddprun.send_signal(SIGUSR1);
  REQUIRE(ddprun.wait_for_output("ready ", 4));  // workers that start later need no guard
  ddprun.send_signal(SIGUSR1);
  CHECK(ddprun.wait() == ExitStatus::exited(4));
  check_nothing_left(ddprun);
}

TEST_CASE("Ctrl-C in a terminal reaches every worker once", "[launcher]") {
  const Terminal terminal;
  Command command = job({"--nproc-per-node=2", kLongGrace}, {"ready", "await", "expect-no-signal", "50"});
  command.in_child = [&] { terminal.become_controlling(); };
  Child ddprun(command);
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  terminal.type("\x03");
  CHECK(ddprun.wait() == ExitStatus::killed(SIGINT));
  CHECK(count_of("got SIGINT", ddprun.out()) == 2);
  CHECK(count_of("no second signal", ddprun.out()) == 2);
  check_nothing_left(ddprun);
}

TEST_CASE("after Ctrl-Z and bg a job that reads the terminal is stopped until fg", "[launcher]") {
  const bool has_name = GENERATE(true, false);  // false: as the terminal of `docker exec -it`
  CAPTURE(has_name);
  const std::vector<std::string> nameless = {
      "unshare", "--mount", "sh", "-c", "mount -t tmpfs none /dev/pts && exec \"$@\"", "sh"};
  if (!has_name) {
    Command allowed{nameless};
    allowed.argv.push_back("true");
    const Finished run(allowed);
    if (run.status != ExitStatus::exited(0)) skip("no mount namespaces here: " + run.err);
  }
  const Terminal terminal;
  Command command{{"bash", "-c",
                   "set -m; \"$0\" -- \"$1\" ready read-line; echo stopped; bg; echo in "
                   "background; read line; echo shell $line; fg",
                   DDPRUN_PROGRAM, STUB_WORKER_PROGRAM}};
  if (!has_name) command.argv.insert(command.argv.begin(), nameless.begin(), nameless.end());
  command.in_child = [&] {
    terminal.become_controlling();
    terminal.become_stderr();  // where bash looks for it
  };
  Child shell(command);
  REQUIRE(shell.wait_for_output("ready"));
  terminal.type("\x1a");
  REQUIRE(shell.wait_for_output("in background"));
  const auto is_stopped = [&](const std::string& name) {
    return std::ranges::any_of(shell.processes(), [&](pid_t pid) {
      const std::string process = "/proc/" + std::to_string(pid);
      return read_file(process + "/comm") == name + "\n" &&
             count_of("State:\tT", read_file(process + "/status")) == 1;
    });
  };
  CHECK(
      wait_until([&] { return is_stopped("ddprun") && is_stopped("stub_worker"); }, std::chrono::seconds(5)));
  terminal.type("typed\n");
  REQUIRE(shell.wait_for_output("shell typed"));
  terminal.type("more\n");
  CHECK(shell.wait() == ExitStatus::exited(0));
  CHECK_THAT(shell.out(), ContainsSubstring("line 'more'"));
  check_nothing_left(shell);
}

TEST_CASE("Ctrl-Z does nothing where no shell could continue the job", "[launcher]") {
  const Terminal terminal;
  const TempDir folder;
  const std::string events = folder.path() / "events.jsonl";
  Command command = job({"--nproc-per-node=2", "--events-json", events}, {"ready", "await", "exit", "0"});
  command.in_child = [&] { terminal.become_controlling(); };  // leads a session: its group is orphaned
  Child ddprun(command);
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  terminal.type("\x1a");
  REQUIRE(wait_until([&] { return count_of("SIGTSTP", read_file(events)) == 1; }));
  ddprun.send_signal(SIGUSR1);
  CHECK(ddprun.wait() == ExitStatus::exited(0));
  check_nothing_left(ddprun);
}

TEST_CASE("nor does it while no worker runs", "[launcher]") {
  const bool waits_for_nodes = GENERATE(false, true);
  const Terminal terminal;
  Command command = waits_for_nodes
                        ? script({"--nnodes=2", "--rdzv-endpoint=127.0.0.1:" + free_port()}, "true")
                        : script({"--max-restarts=1", "--restart-backoff=600"}, "exit 3");
  command.in_child = [&] { terminal.become_controlling(); };
  Child ddprun(command);
  const std::string line = waits_for_nodes ? "waiting for nodes" : "restarting";
  REQUIRE(wait_until([&] { return count_of(line, ddprun.err()) == 1; }));
  ddprun.send_signal(SIGTSTP);
  const std::string status = "/proc/" + std::to_string(ddprun.pid()) + "/status";
  REQUIRE(wait_until([&] { return count_of("ShdPnd:\t0000000000000000", read_file(status)) == 1; }));
  ddprun.send_signal(SIGINT);
  CHECK(ddprun.wait() == ExitStatus::killed(SIGINT));
  check_nothing_left(ddprun);
}

TEST_CASE("workers' terminals are narrower by the prefix, and a bar that clears itself leaves no line",
          "[launcher]") {
  const Terminal terminal;
  Screen screen(terminal);
  Command command = script({"--nproc-per-node=2"}, "stty size <&2; printf 'bar 50%%\\r\\033[K' >&2");
  command.in_child = [&] { terminal.become_stderr(); };
  const Finished run(command);
  CHECK(run.status == ExitStatus::exited(0));
  CHECK(run.out == "25 109\n25 109\n");  // 120 columns without those of "[default0]:"
  CHECK(count_of("]:\r\n", screen.text()) == 0);
}

TEST_CASE("rank 0 reads the terminal and sets its modes without being stopped", "[launcher]") {
  const Terminal terminal;
  Command command = job({"--nproc-per-node=2"}, {"ready", "--rank", "0", "read-line"});
  command.in_child = [&] { terminal.become_controlling(); };
  Child ddprun(command);
  REQUIRE(ddprun.wait_for_output("ready 0"));
  terminal.type("hello\n");
  CHECK(ddprun.wait() == ExitStatus::exited(0));
  CHECK_THAT(ddprun.out(), ContainsSubstring("line 'hello'"));
  check_nothing_left(ddprun);
}

TEST_CASE("a job in the background leaves the terminal's input to the shell", "[launcher]") {
  const Terminal terminal;
  Command command{{"sh", "-c",
                   "set -m; \"$0\" -- sh -c 'echo ready; cat; echo end' & wait; read line; echo shell $line",
                   DDPRUN_PROGRAM}};
  command.in_child = [&] { terminal.become_controlling(); };
  Child shell(command);
  REQUIRE(shell.wait_for_output("ready"));
  terminal.type("typed\n");
  CHECK(shell.wait() == ExitStatus::exited(0));
  CHECK_THAT(shell.out(), ContainsSubstring("end\nshell typed"));
}

}  // namespace
}  // namespace ddprun::test
