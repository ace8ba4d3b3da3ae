// Readers of ddprun's output that do not read: neither signals nor time limits nor other nodes wait for them.

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <thread>

#include <ddprun/common/worker_env.h>
#include "tests/integration/node_job.h"
#include "tests/support/terminal.h"

namespace ddprun::test {
namespace {

/// Only ddprun and its guard are left.
bool workers_gone(const Child& ddprun) {
  return wait_until([&] { return ddprun.processes().size() <= 2; });
}

/// Under strace, which delays system calls: these options of it.
Command traced(Command command, const std::vector<std::string>& options) {
  std::vector<std::string> strace = {"strace", "-f", "-qq", "-o", "/dev/null"};
  strace.insert(strace.end(), options.begin(), options.end());
  command.argv.insert(command.argv.begin(), strace.begin(), strace.end());
  // LeakSanitizer does not work under ptrace, and ends every process with an error of its own.
  command.env["ASAN_OPTIONS"] = process_env("ASAN_OPTIONS").value_or("") + ":detect_leaks=0";
  return command;
}

/// ddprun below strace; -1: there is none.
pid_t traced_ddprun(const Child& strace) {
  for (const pid_t pid : strace.processes())
    if (read_or_empty("/proc/" + std::to_string(pid) + "/comm") == "ddprun\n") return pid;
  return -1;
}

/// Whether ddprun ends by then, while strace still holds one of its threads. Ends strace, too.
bool ends_within(std::chrono::seconds time, pid_t ddprun, Child& strace) {
  const auto is_zombie = [&] {
    return read_or_empty("/proc/" + std::to_string(ddprun) + "/stat").find(") Z") != std::string::npos;
  };
  const bool ended = wait_until(is_zombie, time);
  strace.send_signal(SIGKILL);
  strace.wait();
  return ended;
}

/// An ext4 file system of our own, which can be frozen.
class Disk {
 public:
  Disk() {
    const std::string image = folder_.path() / "image";
    std::filesystem::create_directory(path());
    mounted_ = run("truncate --size=16M " + image + " && mkfs.ext4 -q -F " + image + " && mount -o loop " +
                   image + " " + path().string());
    if (!mounted_) skip("no file system can be mounted here: that takes root and a loop device");
  }
  ~Disk() {
    if (frozen_) thaw();
    if (mounted_) run("umount " + path().string());
  }
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;
  std::filesystem::path path() const { return folder_.path() / "disk"; }
  void freeze() { REQUIRE((frozen_ = run("fsfreeze --freeze " + path().string()))); }
  void thaw() { frozen_ = !run("fsfreeze --unfreeze " + path().string()); }

 private:
  static bool run(const std::string& command) {
    return std::system(("PATH=$PATH:/usr/sbin:/sbin; { " + command + "; } > /dev/null 2>&1").c_str()) == 0;
  }
  TempDir folder_;
  bool mounted_ = false, frozen_ = false;
};

/// Workers that write without end, and save in a file of the folder when they are asked to end.
std::string save_at_sigterm(const TempDir& folder) {
  return "trap 'echo saved > " + folder.path().string() +
         "/$RANK; exit 0' TERM; while :; do echo a line; done";
}

bool have_saved(const TempDir& folder) {
  return wait_until([&] {
    return read_or_empty(folder.path() / "0") == "saved\n" && read_or_empty(folder.path() / "1") == "saved\n";
  });
}

TEST_CASE("a disk that stalls under ddprun's output holds up no signal", "[stalled]") {
  const TempDir folder;
  Disk disk;
  const auto out = disk.path() / "out";
  Command command = script({"--nproc-per-node=2"}, save_at_sigterm(folder));
  command.argv.insert(command.argv.begin(), {"sh", "-c", R"(exec "$@" > "$0" 2>&1)", out});
  Child ddprun(command);
  REQUIRE(wait_until([&] { return count_of("a line", read_or_empty(out)) > 0; }));
  disk.freeze();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // until a write of ddprun's waits
  ddprun.send_signal(SIGTERM);
  CHECK(have_saved(folder));
  disk.thaw();
  CHECK(ddprun.wait() == ExitStatus::killed(SIGTERM));
  check_nothing_left(ddprun);
}

TEST_CASE("a terminal of another user that nobody reads holds up no signal", "[stalled]") {
  if (::geteuid() != 0) skip("only root can give a terminal away");
  const TempDir folder;
  const Terminal terminal;
  Command command = script({"--nproc-per-node=2"}, save_at_sigterm(folder));
  command.in_child = [&] {
    terminal.become_stderr();
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
    constexpr uid_t kNobody = 65534;
    // As after `su`: ddprun cannot open the terminal once more.
    if (::fchown(STDERR_FILENO, kNobody, kNobody) != 0 || ::fchmod(STDERR_FILENO, 0600) != 0 ||
        ::prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE) != 0 || ::prctl(PR_CAPBSET_DROP, CAP_DAC_READ_SEARCH) != 0)
      ::_exit(99);
  };
  Child ddprun(command);
  REQUIRE(wait_until([&] { return ddprun.processes().size() >= 4; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // until the terminal is full
  ddprun.send_signal(SIGTERM);
  CHECK(have_saved(folder));
  ddprun.send_signal(SIGINT);
  CHECK(ddprun.wait() == ExitStatus::killed(SIGTERM));
  check_nothing_left(ddprun);
}

TEST_CASE("a signal reaches the workers although nobody reads ddprun's messages", "[stalled]") {
  Command command = job({"--nproc-per-node=2", "--shutdown-timeout=600"}, {"ready", "await", "await"});
  with_full_stderr(command);
  Child ddprun(command);
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  ddprun.send_signal(SIGUSR1);
  ddprun.send_signal(SIGTERM);
  CHECK(ddprun.wait() == ExitStatus::killed(SIGTERM));
  CHECK(count_of("got SIG", ddprun.out()) == 4);
  check_nothing_left(ddprun);
}

TEST_CASE("workers that wait for a reader of their output can save after a signal", "[stalled]") {
  const TempDir folder;
  Command command = script({"--nproc-per-node=2", "--shutdown-timeout=600"},
                           "trap 'echo saved > " + folder.path().string() +
                               "/$RANK; exit 0' TERM; echo ready; while :; do echo a line >&2; done");
  with_full_stderr(command);
  Child ddprun(command);
  REQUIRE(ddprun.wait_for_output("ready", 2));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // until ddprun's queue is full, too
  ddprun.send_signal(SIGTERM);
  for (const char* rank : {"0", "1"})
    CHECK(wait_until([&] { return read_or_empty(folder.path() / rank) == "saved\n"; }));
  ddprun.send_signal(SIGINT);
  CHECK(ddprun.wait() == ExitStatus::killed(SIGTERM));
  check_nothing_left(ddprun);
}

TEST_CASE("the time limit ends workers whose stderr nobody reads, and two signals the wait for it",
          "[stalled]") {
  Command command =
      script({"--nproc-per-node=2", "--timeout=1"}, "echo ready; while :; do echo a line >&2; done");
  with_full_stderr(command);
  Child ddprun(command);
  REQUIRE(ddprun.wait_for_output("ready", 2));
  REQUIRE(workers_gone(ddprun));
  ddprun.send_signal(SIGTERM);
  ddprun.send_signal(SIGINT);  // another one: two of a kind could become one
  CHECK(ddprun.wait() == ExitStatus::exited(124));
  check_nothing_left(ddprun);
}

TEST_CASE("a report that nobody reads delays no restart, and two signals end the wait for its reader",
          "[stalled]") {
  const TempDir folder;
  const auto record = folder.path() / "result.json";
  Command command = script({"--nproc-per-node=2", "--max-restarts=1", "--result-json", record},
                           "echo attempt $TORCHELASTIC_RESTART_COUNT; exit 7");
  with_full_stderr(command);
  Child ddprun(command);
  REQUIRE(ddprun.wait_for_output("attempt 1"));
  REQUIRE(workers_gone(ddprun));
  ddprun.send_signal(SIGTERM);
  ddprun.send_signal(SIGINT);
  const ExitStatus end = ddprun.wait();
  CHECK((end == ExitStatus::exited(7) || end == ExitStatus::killed(SIGTERM)));  // as the attempt ends
  CHECK(std::filesystem::exists(record));
  check_nothing_left(ddprun);
}

TEST_CASE("a signal ends --dry-run although nobody reads the plan", "[stalled]") {
  Command command{{"sh", "-c", "exec " + std::string(DDPRUN_PROGRAM) + " --dry-run true >&2"}};
  with_full_stderr(command);
  Child ddprun(command);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ddprun.send_signal(SIGTERM);
  CHECK(ddprun.wait() == ExitStatus::killed(SIGTERM));
  check_nothing_left(ddprun);
}

TEST_CASE("a reader that comes late reads the report", "[stalled]") {
  const TempDir folder;
  const std::string go = folder.path() / "go";
  // ddprun's output fills the pipe before the report.
  const std::string job =
      std::string(DDPRUN_PROGRAM) +
      " --nproc-per-node=2 sh -c '[ $RANK = 0 ] || { sleep 0.1; head -c 65500 /dev/zero | tr "
      "\\\\0 x; exit 7; }; exec sleep 100'";
  Child shell({{"sh", "-c", job + " 2>&1 | { until [ -e " + go + " ]; do sleep 0.05; done; cat; }"},
               {{"OMP_NUM_THREADS", "1"}}});
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::seconds(2));  // longer than ddprun's own lines are waited for
    write_file_atomic(go, "");
  });
  shell.wait();
  later.join();
  CHECK_THAT(shell.out(), ContainsSubstring("sh FAILED"));
  CHECK_THAT(shell.out(), ContainsSubstring("exit code 7"));
}

TEST_CASE("a reader that comes late reads the report, also of a node that has lost its coordinator",
          "[nodes][stalled]") {
  const TempDir folder;
  const std::string go = folder.path() / "go", told = folder.path() / "told";
  const std::vector<std::string> flags = {"--nnodes=2", "--max-restarts=1", "--shutdown-timeout=600"};
  const std::string ready = folder.path() / "ready", loop = "do sleep 0.01; done; ";
  NodeJob nodes;
  Child& coordinator =
      nodes.start_script(flags, "trap 'touch " + told + "' TERM; touch " + ready + "; while :; " + loop);
  Command late = script(nodes.flags(flags), "until [ -e " + ready + " ]; " + loop +
                                                "head -c 65500 /dev/zero | tr '\\0' x >&2; exit 7");
  late.argv.insert(late.argv.begin(),
                   {"sh", "-c",
                    "\"$@\" 2>&1 > \"$0.out\" | { until [ -e \"$0\" ]; do sleep 0.05; done; "
                    "cat; }",
                    go});
  Child& shell = nodes.add(late);
  REQUIRE(wait_until([&] { return std::filesystem::exists(told); }));
  coordinator.send_signal(SIGKILL);  // while it waits for its own worker
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::seconds(2));  // longer than ddprun's own lines are waited for
    write_file_atomic(go, "");
  });
  shell.wait();
  later.join();
  const std::string report = shell.out().substr(65500);
  CHECK_THAT(report, ContainsSubstring("exit code 7"));
  CHECK_THAT(report, ContainsSubstring("lost the coordinator"));
}

TEST_CASE("a signal while a disk makes folders slowly ends the job before it starts", "[stalled]") {
  const TempDir folder;
  if (std::system("strace -V > /dev/null 2>&1") != 0) skip("strace is missing");
  Child strace(traced(script({"--nproc-per-node=2", "--log-dir", folder.path() / "logs", "-r3",
                              "--events-json", folder.path() / "events"},
                             "echo here"),
                      {"-e", "inject=mkdirat:delay_enter=1500000", "-e", "trace=mkdirat"}));
  REQUIRE(wait_until([&] { return std::filesystem::exists(folder.path() / "events"); }));
  ::kill(traced_ddprun(strace), SIGTERM);
  CHECK(strace.wait() == ExitStatus::killed(SIGTERM));
  CHECK(count_of("started", read_file(folder.path() / "events")) == 0);
  CHECK(count_of("does not answer", strace.err()) == 0);
}

TEST_CASE("the others hear of a new round before a slow disk has its folders", "[recover][stalled]") {
  const TempDir folder;
  if (std::system("strace -V > /dev/null 2>&1") != 0) skip("strace is missing");
  const auto events = folder.path() / "events";
  Child strace(traced(
      job({"--nproc-per-node=2", "--max-restarts=1", "--recover=rank", "--log-dir", folder.path() / "logs",
           "--tee=3", "--events-json", events},
          {"recovers", "true", "--old-rank", "1", "kill", "9", "--old", "wait-for-round", "--all", "meet"}),
      {"-e", "inject=mkdirat:delay_enter=1500000", "-e", "trace=mkdirat"}));
  REQUIRE(strace.wait_for_output("lost [1] in round 1"));
  CHECK(count_of("\"started\"", read_file(events)) == 2);  // the lost one's replacement is not there yet
  CHECK(strace.wait() == ExitStatus::exited(0));
}

TEST_CASE("a second signal ends the wait for a disk that --result-json is written to", "[stalled]") {
  const TempDir folder;
  if (std::system("strace -V > /dev/null 2>&1") != 0) skip("strace is missing");
  const std::string record = folder.path() / "result.json";
  Child strace(
      traced(script({"--nproc-per-node=2", "--result-json", record}, "echo here"),
             {"-P", folder.path(), "-e", "trace=openat", "-e", "inject=openat:delay_enter=60000000"}));
  REQUIRE(strace.wait_for_output("here", 2));
  REQUIRE(wait_until([&] { return strace.processes().size() == 2; }));  // and ddprun, without its guard
  const pid_t ddprun = traced_ddprun(strace);
  ::kill(ddprun, SIGTERM);
  ::kill(ddprun, SIGINT);
  CHECK(ends_within(std::chrono::seconds(5), ddprun, strace));  // of ten
  CHECK_THAT(strace.err(), ContainsSubstring("--result-json: " + record +
                                             ": gave up waiting for the disk after a second signal"));
}

TEST_CASE("a signal while a disk makes log files slowly ends the job before it starts", "[stalled]") {
  const TempDir folder;
  if (std::system("strace -V > /dev/null 2>&1") != 0) skip("strace is missing");
  const auto events = folder.path() / "events";
  Child strace(traced(
      script({"--nproc-per-node=2", "--log-dir", folder.path() / "logs", "-r3", "--events-json", events},
             "echo here"),
      {"-P", "stdout.log", "-e", "trace=openat", "-e", "inject=openat:delay_enter=60000000"}));
  const auto attempt_is_there = [&] {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path()))
      if (entry.path().filename() == "1") return true;  // the last worker's folder
    return false;
  };
  REQUIRE(wait_until(attempt_is_there));
  const pid_t ddprun = traced_ddprun(strace);
  ::kill(ddprun, SIGTERM);
  CHECK(ends_within(std::chrono::seconds(8), ddprun, strace));  // the disk is waited for for ten
  CHECK(count_of("started", read_file(events)) == 0);
  CHECK(count_of("does not answer", strace.err()) == 0);
}

TEST_CASE("an error file on a disk that stalls holds up neither the report nor the restart", "[stalled]") {
  const TempDir folder;
  if (std::system("strace -V > /dev/null 2>&1") != 0) skip("strace is missing");
  Child ddprun(
      script({"--nproc-per-node=2", "--max-restarts=1", "--log-dir", folder.path() / "logs"},
             "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && echo again && exit; [ $RANK = 1 ] && exec sleep 600;"
             "echo file $TORCHELASTIC_ERROR_FILE; until [ -e " +
                 (folder.path() / "go").string() + " ]; do sleep 0.05; done; exit 3"));
  REQUIRE(ddprun.wait_for_output("error.json\n"));
  const std::string out = ddprun.out();
  const auto at = out.find("file ") + 5;
  const std::string file = out.substr(at, out.find('\n', at) - at);
  Child strace({{"strace", "-f", "-o", "/dev/null", "-p", std::to_string(ddprun.pid()), "-P", file, "-e",
                 "trace=openat", "-e", "inject=openat:delay_enter=60000000"}});
  if (!wait_until([&] { return count_of("attached", strace.err()) > 0 || strace.processes().empty(); }) ||
      strace.processes().empty())
    skip("strace may not attach to a process");
  write_file_atomic(folder.path() / "go", "");
  CHECK(ddprun.wait_for_output("again", 2));
  CHECK_THAT(ddprun.err(), ContainsSubstring("error file cannot be read: the disk does not answer"));
  strace.send_signal(SIGKILL);  // it holds the thread that reads
  strace.wait();
  CHECK(ddprun.wait() == ExitStatus::exited(0));
  check_nothing_left(ddprun);
}

TEST_CASE(
    "the error file of the launcher above, on a disk that stalls, holds up neither a signal nor the end",
    "[stalled]") {
  const TempDir folder;
  if (std::system("strace -V > /dev/null 2>&1") != 0) skip("strace is missing");
  const bool by_signal = GENERATE(true, false);
  Command command = script(
      {"--nproc-per-node=2", "--max-restarts=1"},
      "[ $RANK = 1 ] && exec sleep 600; echo ready; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || until [ -e " +
          (folder.path() / "go").string() + " ]; do sleep 0.05; done; exit 3");
  const auto file = folder.path() / "error.json";
  command.env["TORCHELASTIC_ERROR_FILE"] = file;
  Child ddprun(command);
  REQUIRE(ddprun.wait_for_output("ready"));
  Child strace({{"strace", "-f", "-o", "/dev/null", "-p", std::to_string(ddprun.pid()), "-P", folder.path(),
                 "-P", file, "-e", "trace=%file", "-e", "inject=%file:delay_enter=60000000"}});
  if (!wait_until([&] { return count_of("attached", strace.err()) > 0 || strace.processes().empty(); }) ||
      strace.processes().empty())
    skip("strace may not attach to a process");
  write_file_atomic(folder.path() / "go", "");
  REQUIRE(wait_until([&] { return count_of("Root Cause", ddprun.err()) == 1; }));
  if (by_signal)
    ddprun.send_signal(SIGTERM);
  else
    CHECK(ddprun.wait_for_output("ready", 2));
  CHECK(wait_until([&] { return count_of("the disk does not answer, so the error", ddprun.err()) > 0; },
                   std::chrono::seconds(1)));
  strace.send_signal(SIGKILL);  // it holds the thread that writes
  strace.wait();
  CHECK(ddprun.wait() == (by_signal ? ExitStatus::killed(SIGTERM) : ExitStatus::exited(3)));
  CHECK(count_of("ready", ddprun.out()) == (by_signal ? 1 : 2));
  check_nothing_left(ddprun);
}

TEST_CASE("a disk that stalls while stacks are written holds up neither a signal nor the end", "[stalled]") {
  const TempDir folder;
  if (std::system("strace -V > /dev/null 2>&1") != 0) skip("strace is missing");
  Command command =
      job({"--nproc-per-node=2", "--timeout=2", "--log-dir", folder.path() / "logs"}, {"ready", "pause"});
  command.env["PATH"] = "/nowhere";  // no debugger
  Child ddprun(command);
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  Child strace({{"strace", "-f", "-o", "/dev/null", "-p", std::to_string(ddprun.pid()), "-e", "trace=unlink",
                 "-e", "inject=unlink:delay_enter=60000000"}});
  if (!wait_until([&] { return count_of("attached", strace.err()) > 0 || strace.processes().empty(); }) ||
      strace.processes().empty())
    skip("strace may not attach to a process");
  REQUIRE(wait_until([&] { return count_of("did not end within", ddprun.err()) == 1; }));
  ddprun.send_signal(SIGTERM);
  CHECK(wait_until([&] { return count_of("stacks: ", ddprun.err()) == 2; }, std::chrono::seconds(5)));
  CHECK(count_of("a signal ends the job first", ddprun.err()) == 2);
  CHECK(wait_until([&] { return ddprun.processes().size() <= 2; }, std::chrono::seconds(5)));  // its guard
  strace.send_signal(SIGKILL);  // it holds the thread that writes
  strace.wait();
  CHECK(ddprun.wait() == ExitStatus::exited(124));
  check_nothing_left(ddprun);
}

TEST_CASE("a warning that nobody reads does not hold up the start", "[stalled]") {
  Command command = script({}, "echo here");
  command.env["DDPRUN_NO_SUCH_VARIABLE"] = "1";
  with_full_stderr(command);
  Child ddprun(command);
  // It waits one second for the reader of its own lines.
  CHECK(ddprun.wait(std::chrono::seconds(10)) == ExitStatus::exited(0));
  CHECK(ddprun.out() == "here\n");
}

TEST_CASE("events that nobody reads do not hold up the job", "[stalled]") {
  const TempDir folder;
  const std::string events = folder.path() / "events";
  REQUIRE(::mkfifo(events.c_str(), 0600) == 0);
  const UniqueFd full(::open(events.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  while (::write(full.get(), "x", 1) == 1) {
  }
  const Finished run(script({"--nproc-per-node=2", "--events-json", events}, "echo here"));
  CHECK(run.status == ExitStatus::exited(0));
  CHECK(count_of("here", run.out) == 2);
  CHECK(run.err.empty());
}

TEST_CASE("a coordinator whose messages nobody reads keeps its nodes", "[nodes][stalled]") {
  NodeJob nodes;
  const std::vector<std::string> flags = {"--nnodes=2", "--node-timeout=1", "--nproc-per-node=2"};
  Command first = script(nodes.flags(flags), "echo begun; sleep 3; echo done");
  with_full_stderr(first);
  Child& coordinator = nodes.add(first);
  nodes.start_script(flags, "sleep 3; echo done");
  REQUIRE(coordinator.wait_for_output("begun", 2));
  const UniqueFd stranger = say_at(nodes.port, "nonsense");  // worth a warning
  CHECK(wait_until([&] { return is_closed(stranger); }, std::chrono::seconds(2)));
  CHECK(nodes.wait() == std::vector<ExitStatus>{ExitStatus::exited(0), ExitStatus::exited(0)});
  CHECK(count_of("done", nodes.node(0).out()) == 2);
}

/// A folder on a disk whose server goes away while a job runs.
struct DeadDisk {
  DeadDisk() {
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
    skip("a sanitizer's library has to be loaded first");
#endif
    std::filesystem::create_directory(path);
  }
  Command on(Command command) const {
    command.env["LD_PRELOAD"] = DEAD_DISK_LIBRARY;
    command.env["DEAD_DISK"] = path.string();
    return command;
  }
  void go() const { write_file_atomic(path.string() + ".gone", ""); }
  void come_back() const { std::filesystem::remove(path.string() + ".gone"); }

  TempDir folder;
  std::filesystem::path path = folder.path() / "disk";
};

TEST_CASE("a hang is ended where a folder of PATH does not answer", "[stalled]") {
  const DeadDisk disk;
  Command command = disk.on(job({"--hang-timeout=1", "--shutdown-timeout=2"}, {"ready", "pause"}));
  command.env["PATH"] = disk.path.string() + ":" + process_env("PATH").value_or("/bin");
  Child ddprun(command);
  REQUIRE(ddprun.wait_for_output("ready"));
  disk.go();
  CHECK(ddprun.wait() == ExitStatus::exited(124));
}

TEST_CASE("a signal ends a job whose restart waits for a disk that does not answer", "[stalled]") {
  const DeadDisk disk;
  const bool timers = GENERATE(false, true);
  CAPTURE(timers);
  const auto worker = disk.path / "worker";
  write_file_atomic(worker,
                    "#!/bin/sh\necho ready\nuntil [ -e $DEAD_DISK.gone ]; do sleep 0.05; done\nexit 1\n");
  std::filesystem::permissions(worker, std::filesystem::perms::owner_all);
  Command command = disk.on(ddprun_command({"--max-restarts=3", "--no-python"}));
  if (timers) {
    command.argv.insert(command.argv.end(), {"sh", "-c", read_file(worker)});
    command.env["TORCHELASTIC_ENABLE_FILE_TIMER"] = "1";
    command.env["TORCHELASTIC_TIMER_FILE"] = (disk.path / "timers").string();
  } else {
    command.argv.push_back(worker);
  }
  Child ddprun(command);
  REQUIRE(ddprun.wait_for_output("ready"));
  disk.go();
  REQUIRE(wait_until([&] { return count_of("restart 1 of 3", ddprun.err()) > 0; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  ddprun.send_signal(SIGTERM);
  CHECK(ddprun.wait(std::chrono::seconds(5)) == ExitStatus::killed(SIGTERM));
}

/// The worker fails once the disk is gone, and then succeeds alone, or as the job restarts with all.
std::string failing_once(const DeadDisk& disk, bool alone) {
  return "#!/bin/sh\necho ready\n" + (alone ? "[ $WORLD_SIZE = 1 ] && exit 0\n" : std::string()) +
         "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && " + (alone ? "sleep 100" : "exit 0") + "\nuntil [ -e " +
         disk.path.string() + ".gone ]; do sleep 0.05; done\nexit 1\n";
}

void write_program(const std::filesystem::path& path, const std::string& text) {
  write_file_atomic(path, text);
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
}

TEST_CASE("a node whose program's disk does not answer at a restart is lost for the others, which go on",
          "[stalled]") {
  const DeadDisk disk;
  const std::size_t lost = GENERATE(0U, 1U);  // 0: the coordinator's
  CAPTURE(lost);
  const auto here = disk.folder.path() / "worker", there = disk.path / "worker";
  for (const auto& program : {here, there}) write_program(program, failing_once(disk, /*alone=*/true));
  NodeJob nodes;
  for (const std::size_t i : {0U, 1U}) {
    Command command = ddprun_command(nodes.flags(
        {"--nnodes=1:2", "--last-call=600", "--node-timeout=3", "--max-restarts=5", "--no-python"}));
    command.argv.push_back(i == lost ? there : here);
    nodes.add(i == lost ? disk.on(command) : command);
  }
  for (const std::size_t i : {0U, 1U}) REQUIRE(nodes.node(i).wait_for_output("ready"));
  disk.go();
  CHECK(nodes.node(1 - lost).wait() == ExitStatus::exited(0));
  CHECK(nodes.node(lost).wait() == ExitStatus::exited(lost == 0 ? 0 : 125));  // the coordinator's stays
  const std::string reason = " leaves the job: " + there.string() + ": the disk does not answer";
  CHECK_THAT(nodes.node(lost).err(), ContainsSubstring(reason + ": it has left the job"));
  CHECK_THAT(nodes.node(1 - lost).err(), ContainsSubstring(reason));
}

TEST_CASE("a coordinator whose node has left ends with the job, though another ddprun is stopped",
          "[stalled]") {
  const DeadDisk disk;
  const auto here = disk.folder.path() / "worker", there = disk.path / "worker",
             end = disk.folder.path() / "end";
  const std::string gone = disk.path.string() + ".gone";
  for (const auto& program : {here, there})
    write_program(program,
                  "#!/bin/sh\necho ready $TORCHELASTIC_RESTART_COUNT\n"
                  "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then\n[ $ME = 0 ] || exec sleep 300\nuntil [ -e " +
                      gone +
                      " ]; do sleep 0.05; done; exit 1\nfi\n[ $ME = 1 ] || exec sleep 300\nuntil [ -e " +
                      end.string() + " ]; do sleep 0.05; done; exit 7\n");
  NodeJob nodes;
  for (int i = 0; i < 3; ++i) {
    Command command = ddprun_command(
        nodes.flags({"--nnodes=1:3", "--last-call=600", "--node-timeout=2", "--max-restarts=1", "--no-python",
                     std::string("--rdzv-conf=is_host=") + (i == 0 ? "1" : "0")}));
    command.argv.push_back(i == 0 ? there : here);
    command.env["ME"] = std::to_string(i);
    nodes.add(i == 0 ? disk.on(command) : command);
  }
  for (const std::size_t i : {0U, 1U, 2U}) REQUIRE(nodes.node(i).wait_for_output("ready 0"));
  disk.go();
  REQUIRE(wait_until([&] { return count_of("it has the job's coordinator", nodes.node(0).err()) == 1; }));
  REQUIRE(nodes.node(1).wait_for_output("ready", 3));
  nodes.node(2).send_signal(SIGSTOP);
  std::ofstream(end).close();
  CHECK(nodes.node(0).wait(std::chrono::seconds(20)) == ExitStatus::exited(7));
  CHECK(nodes.node(1).wait() == ExitStatus::exited(7));
  nodes.node(2).send_signal(SIGCONT);
  CHECK(nodes.node(2).wait() == ExitStatus::exited(7));
}

TEST_CASE("a job waits at a restart for the disk of its program where no other node can go on", "[stalled]") {
  const DeadDisk disk;
  const std::string count = GENERATE("2", "1:2");
  CAPTURE(count);
  const auto worker = disk.path / "worker";
  write_program(worker, failing_once(disk, /*alone=*/false));
  NodeJob nodes;
  for (int i = 0; i < 2; ++i) {
    Command command = disk.on(ddprun_command(nodes.flags(
        {"--nnodes=" + count, "--last-call=600", "--node-timeout=1", "--max-restarts=3", "--no-python"})));
    command.argv.push_back(worker);
    nodes.add(command);
  }
  for (const std::size_t i : {0U, 1U}) REQUIRE(nodes.node(i).wait_for_output("ready"));
  disk.go();
  for (const std::size_t i : {0U, 1U})
    REQUIRE(wait_until(
        [&] { return count_of("the disk does not answer: waiting for it", nodes.node(i).err()) == 1; }));
  std::this_thread::sleep_for(std::chrono::seconds(2));
  disk.come_back();
  CHECK(nodes.wait() == std::vector{ExitStatus::exited(0), ExitStatus::exited(0)});
}

TEST_CASE("a node whose program's disk is gone when the others have come answers signals", "[stalled]") {
  const DeadDisk disk;
  const auto here = disk.folder.path() / "worker", there = disk.path / "worker";
  for (const auto& program : {here, there}) write_program(program, "#!/bin/sh\necho ready\nsleep 100\n");
  NodeJob nodes;
  for (const auto& program : {there, here}) {
    Command command = ddprun_command(nodes.flags({"--nnodes=2", "--no-python"}));
    command.argv.push_back(program);
    nodes.add(program == there ? disk.on(command) : command);
    if (program == there) {
      REQUIRE(wait_until([&] { return count_of("waiting for nodes", nodes.node(0).err()) > 0; }));
      disk.go();
    }
  }
  REQUIRE(nodes.node(1).wait_for_output("ready"));
  nodes.node(0).send_signal(SIGTERM);
  CHECK(nodes.node(0).wait(std::chrono::seconds(5)) == ExitStatus::killed(SIGTERM));
  CHECK(nodes.node(1).wait() == ExitStatus::exited(128 + SIGTERM));
}

TEST_CASE("a process that stands by takes a lost rank's place although the program's disk is gone",
          "[stalled]") {
  const DeadDisk disk;
  const auto worker = disk.path / "worker";
  std::filesystem::copy_file(STUB_WORKER_PROGRAM, worker);
  const auto waits = (disk.folder.path() / "waits").string(), go = (disk.folder.path() / "go").string();
  Command command = disk.on(ddprun_command(
      {"--nproc-per-node=2", "--max-restarts=1", "--recover=rank", "--standby=1", "--no-python"}));
  for (const std::string& word :
       {worker.string(), std::string("stand-by"), waits, std::string("recovers"), std::string("true"),
        std::string("--old"), std::string("meet"), std::string("--old-rank"), std::string("1"),
        std::string("wait-for-file"), go, std::string("kill"), std::string("9"), std::string("--old"),
        std::string("wait-for-round"), std::string("--all"), std::string("meet"), std::string("ready"),
        std::string("pause")})
    command.argv.push_back(word);
  Child ddprun(command);
  REQUIRE(wait_until([&] { return std::filesystem::exists(waits); }));
  disk.go();
  write_file_atomic(go, "");
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  std::this_thread::sleep_for(std::chrono::seconds(2));  // the next one would start to stand by
  ddprun.send_signal(SIGTERM);
  CHECK(ddprun.wait(std::chrono::seconds(5)) == ExitStatus::killed(SIGTERM));
}

/// A node of a job whose workers can be replaced one by one.
Command recovering_node(const NodeJob& nodes, const std::vector<std::string>& flags,
                        const std::filesystem::path& worker, const std::vector<std::string>& actions) {
  std::vector<std::string> all = nodes.flags(flags);
  all.insert(all.end(), {"--recover=rank", "--no-python"});
  Command command = ddprun_command(all);
  command.argv.push_back(worker);
  command.argv.insert(command.argv.end(), {"recovers", "true"});
  command.argv.insert(command.argv.end(), actions.begin(), actions.end());
  return command;
}

pid_t pid_of_worker(const Child& node) {
  const std::string text = node.out();
  const auto line = text.rfind("ready ");
  return std::stoi(text.substr(text.find(' ', line + 6)));
}

TEST_CASE("a node whose program's disk is gone drops out also if another rank is lost meanwhile",
          "[stalled]") {
  const DeadDisk disk;
  const auto here = disk.folder.path() / "worker", there = disk.path / "worker";
  NodeJob nodes;
  for (const auto& program : {here, there}) {
    std::filesystem::copy_file(STUB_WORKER_PROGRAM, program);
    const Command command =
        recovering_node(nodes, {"--nnodes=1:2", "--last-call=600", "--node-timeout=2", "--max-restarts=9"},
                        program, {"ready", "pause"});
    nodes.add(program == there ? disk.on(command) : command);
  }
  for (const std::size_t i : {0U, 1U}) REQUIRE(nodes.node(i).wait_for_output("ready"));
  disk.go();
  ::kill(pid_of_worker(nodes.node(1)), SIGKILL);
  REQUIRE(wait_until([&] { return count_of("replacing only this rank", nodes.node(0).err()) == 1; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  ::kill(pid_of_worker(nodes.node(0)), SIGKILL);
  CHECK(nodes.node(1).wait(std::chrono::seconds(20)) == ExitStatus::exited(125));
  REQUIRE(wait_until([&] { return count_of("ready 0 ", nodes.node(0).out()) == 3; }));  // alone
  nodes.node(0).send_signal(SIGTERM);
  CHECK(nodes.node(0).wait() == ExitStatus::killed(SIGTERM));
}

TEST_CASE("a drained node keeps its ranks if the disk of the spare's program is gone", "[stalled]") {
  const DeadDisk disk;
  const auto here = disk.folder.path() / "worker", there = disk.path / "worker";
  for (const auto& program : {here, there}) std::filesystem::copy_file(STUB_WORKER_PROGRAM, program);
  NodeJob nodes;
  const char* before[] = {"", "1 of 2 joined", "ready"};
  for (std::size_t i = 0; i < 3; ++i) {
    if (i > 0)
      REQUIRE(wait_until(
          [&] { return count_of(before[i], nodes.node(i - 1).err() + nodes.node(i - 1).out()) > 0; }));
    const Command command = recovering_node(
        nodes, {"--nnodes=2", "--spares=1", "--node-timeout=2", "--max-restarts=3"}, i == 2 ? there : here,
        {"--old", "meet", "ready", "wait-for-round", "--all", "meet", "ready", "pause"});
    nodes.add(i == 2 ? disk.on(command) : command);
  }
  REQUIRE(wait_until([&] { return count_of("standing by", nodes.node(2).err()) > 0; }));
  disk.go();
  nodes.node(1).send_signal(SIGTERM);
  CHECK(nodes.node(2).wait(std::chrono::seconds(20)) == ExitStatus::exited(125));
  CHECK(wait_until([&] { return count_of("keeps its ranks", nodes.node(0).err()) == 1; }));
  REQUIRE(nodes.node(1).wait_for_output("lost [] in round 2"));
  nodes.node(0).send_signal(SIGINT);
  for (const std::size_t i : {0U, 1U}) nodes.node(i).wait();
}

TEST_CASE("a signal ends the search for stack tools", "[stalled]") {
  const DeadDisk disk;
  Command command = disk.on(job({"--hang-timeout=1", "--shutdown-timeout=2"}, {"ready", "pause"}));
  command.env["PATH"] = disk.path.string() + ":" + process_env("PATH").value_or("/bin");
  Child ddprun(command);
  REQUIRE(ddprun.wait_for_output("ready"));
  disk.go();
  REQUIRE(wait_until([&] { return count_of("no sign of life", ddprun.err()) > 0; }));
  ddprun.send_signal(SIGTERM);
  CHECK(ddprun.wait() == ExitStatus::exited(124));
  CHECK_THAT(ddprun.err(), !ContainsSubstring("the disk does not answer"));
}

TEST_CASE("file timers whose pipe cannot be made again get one in the job's own folder", "[stalled]") {
  const TempDir folder;
  const auto timers = folder.path() / "timers";
  std::filesystem::create_directory(timers);
  Command command =
      script({"--max-restarts=1"}, "[ -p $TORCHELASTIC_TIMER_FILE ] || exit 9; rm -rf " + timers.string() +
                                       "; exit $((1 - TORCHELASTIC_RESTART_COUNT))");
  command.env["TORCHELASTIC_ENABLE_FILE_TIMER"] = "1";
  command.env["TORCHELASTIC_TIMER_FILE"] = (timers / "pipe").string();
  const Finished run(command);
  CHECK(run.status == ExitStatus::exited(0));
  CHECK_THAT(run.err, ContainsSubstring("the file timers' pipe is now "));
}

}  // namespace
}  // namespace ddprun::test
