#include "launcher/outcome/stack_dump.h"

#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <ctime>
#include <fstream>
#include <memory>

#include <ddprun/common/worker_env.h>
#include "launcher/events/launch_error.h"
#include "launcher/plan/launch_plan.h"
#include "tests/launcher/stopped_clock.h"
#include "tests/support/catch.h"
#include "tests/support/child.h"
#include "tests/support/forbid.h"

namespace ddprun::launcher {
namespace {

using test::Child;
using test::ContainsSubstring;
using test::wait_until;

/// stub_worker with these actions, the leader of a process group.
std::unique_ptr<Child> worker(std::vector<std::string> actions) {
  actions.insert(actions.begin(), STUB_WORKER_PROGRAM);
  test::Command command{std::move(actions)};
  command.env["RANK"] = "0";
  command.in_child = [] {
    ::setsid();
    ::prctl(PR_SET_PTRACER, ::getppid());  // where Yama wants it: our children may trace it
  };
  return std::make_unique<Child>(command);
}

char state_of(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("State:\t", 0) == 0) return line[7];
  return '-';
}

std::string find_on_path(const std::string& program) try {
  return find_program(program, process_env("PATH").value_or(""));
} catch (const LaunchError&) {
  return "";
}

StackTools real_gdb() {
  const StackTools tools = find_stack_tools(process_env("PATH").value_or(""));
  if (tools.gdb.empty()) test::skip("gdb is not installed");
  return {"", tools.gdb, ""};
}

/// A stand-in for gdb that does what the lines of shell say.
StackTools fake_gdb(const TempDir& folder, const std::string& script) {
  const auto path = folder.path() / "gdb";
  write_file_atomic(path, "#!/bin/sh\n" + script + "\n");
  ::chmod(path.c_str(), 0700);
  return {"", path.string(), ""};
}

/// To the end, or for so long.
std::vector<StackResult> run(StackDump& dump, const std::filesystem::path& folder,
                             std::chrono::milliseconds timeout = test::kDeadline) {
  wait_until([&] { return dump.advance(); }, timeout);
  auto results = dump.finish();
  for (StackResult& result : results) write_stacks(result, folder);
  return results;
}

std::vector<StackResult> run(const std::vector<StackTarget>& targets, const TempDir& folder,
                             const StackTools& tools) {
  StackDump dump(targets, tools, test::kDeadline);
  return run(dump, folder.path());
}

/// For tests that need real stacks: skips where this machine lets nobody trace.
void need_stacks(const StackResult& result) {
  const auto says = [&](const char* words) { return result.problem.find(words) != std::string::npos; };
  if (result.tools.empty() && (says("not permitted") || says("kernel.yama")))
    test::skip("tracing is not allowed here: " + result.problem);
}

TEST_CASE("the stacks of a rank in an endless loop name its function", "[stack_dump]") {
  const TempDir folder;
  const auto child = worker({"ready", "spin"});
  REQUIRE(child->wait_for_output("ready"));
  const auto results = run({{3, child->pid()}}, folder, real_gdb());
  need_stacks(results.at(0));
  CHECK(results[0].tools == std::vector<std::string>{"gdb"});
  CHECK(results[0].file == folder.path() / "stacks_3.txt");
  CHECK_THAT(read_file(results[0].file), ContainsSubstring("stub_worker_spin"));
  CHECK(describe(results[0]) == "rank 3 (pid " + std::to_string(child->pid()) + "): stacks in " +
                                    results[0].file.string() + " (gdb)");
  CHECK(signal_after(results) == SIGTERM);
  CHECK(wait_until([&] { return state_of(child->pid()) == 'R'; }));  // it goes on
}

TEST_CASE("eu-stack shows the stacks of every thread, stopped or not", "[stack_dump]") {
  const StackTools tools{find_on_path("eu-stack"), "", ""};
  if (tools.eu_stack.empty()) test::skip("eu-stack (package elfutils) is not installed");
  const TempDir folder;
  const auto child = worker({"thread", "ready", "stop-self"});
  REQUIRE(child->wait_for_output("ready"));
  REQUIRE(wait_until([&] { return state_of(child->pid()) == 'T'; }));
  const auto results = run({{0, child->pid()}}, folder, tools);
  need_stacks(results.at(0));
  CHECK(results[0].tools == std::vector<std::string>{"eu-stack"});
  CHECK_THAT(read_file(results[0].file), ContainsSubstring("stub_worker_thread"));
  CHECK_THAT(read_file(results[0].file), ContainsSubstring("raise"));
  CHECK(wait_until([&] { return state_of(child->pid()) == 'T'; }));
}

TEST_CASE("many ranks are looked at a few at a time", "[stack_dump]") {
  const TempDir folder;
  const auto child = worker({"ready", "pause"});
  REQUIRE(child->wait_for_output("ready"));
  std::vector<StackTarget> targets;
  for (int rank = 0; rank < 2000; ++rank) targets.push_back({rank, child->pid()});
  StackDump dump(targets, {});
  CHECK(dump.looking());  // the event loop goes on meanwhile
  CHECK_FALSE(dump.advance());
  const auto results = run(dump, folder.path());
  CHECK(std::ranges::all_of(results, [](const StackResult& result) {
    return read_file(result.file).find("stub_worker") != std::string::npos;
  }));
}

TEST_CASE("the cost of looking at ranks grows as their number", "[stack_dump]") {
  const TempDir folder;
  const auto child = worker({"ready", "pause"});
  REQUIRE(child->wait_for_output("ready"));
  const auto seconds_for = [&](int ranks) {
    std::vector<StackTarget> targets;
    for (int rank = 0; rank < ranks; ++rank) targets.push_back({rank, child->pid()});
    const std::clock_t begin = std::clock();
    StackDump dump(targets, {});
    run(dump, folder.path());
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  };
  seconds_for(400);
  CHECK(seconds_for(3200) < 24 * seconds_for(400));  // of 8, and of 64 if each rank looked at all others
}

TEST_CASE("the stacks of every thread are there", "[stack_dump]") {
  const TempDir folder;
  const auto child = worker({"thread", "thread", "ready", "pause"});
  REQUIRE(child->wait_for_output("ready"));
  const auto results = run({{0, child->pid()}}, folder, real_gdb());
  need_stacks(results.at(0));
  const std::string text = read_file(results[0].file);
  CHECK(test::count_of("stub_worker_thread", text) >= 2);
  CHECK_THAT(text, ContainsSubstring("main ("));
#ifdef __SANITIZE_THREAD__
  CHECK(test::count_of("\n  thread ", text) == 4);  // its own
#else
  CHECK(test::count_of("\n  thread ", text) == 3);
#endif
}

TEST_CASE("a stopped rank has stacks too, and is stopped afterwards", "[stack_dump]") {
  const TempDir folder;
  const auto child = worker({"stop-self"});
  REQUIRE(wait_until([&] { return state_of(child->pid()) == 'T'; }));
  const auto results = run({{0, child->pid()}}, folder, real_gdb());
  need_stacks(results.at(0));
  CHECK(results[0].view.stopped);
  CHECK_THAT(read_file(results[0].file), ContainsSubstring("raise"));
  CHECK_THAT(describe(results[0]), ContainsSubstring("which is stopped: stacks in"));
  CHECK(wait_until([&] { return state_of(child->pid()) == 'T'; }));
  child->send_signal(SIGKILL);
  CHECK(child->wait() == ExitStatus::killed(SIGKILL, false));
}

TEST_CASE("the stacks of many ranks and of their children are collected", "[stack_dump]") {
  const TempDir folder;
  std::vector<std::unique_ptr<Child>> children;
  std::vector<StackTarget> targets;
  for (int rank = 0; rank < 10; ++rank) {  // more than may be looked at at once
    children.push_back(worker({"child", "ready", "pause"}));
    REQUIRE(children.back()->wait_for_output("child "));
    REQUIRE(children.back()->wait_for_output("ready"));
    targets.push_back({rank, children.back()->pid()});
  }
  const StackTools tools = fake_gdb(folder, "echo '[New LWP 1]'; echo '#0  0x00 in f ()'");
  const auto results = run(targets, folder, tools);
  REQUIRE(results.size() == 10);
  for (const StackResult& result : results) {
    CHECK(result.tools.size() == 1);  // the child's are not counted
    CHECK(result.problem.empty());
    const std::string text = read_file(result.file);
    CHECK(test::count_of("\n#0 ", text) == 2);
    CHECK(test::count_of("gdb on process ", text) == 2);
    CHECK(test::count_of("process " + std::to_string(result.pid) + " (stub_worker)", text) == 1);
  }
}

TEST_CASE("a debugger gets no descriptors, even where close_range is forbidden", "[stack_dump]") {
  const TempDir folder;
  const auto child = worker({"ready", "pause"});
  REQUIRE(child->wait_for_output("ready"));
  const auto tools = fake_gdb(folder, "echo '#0  0x00 in f ()'; [ ! -e /proc/self/fd/77 ] || echo kept");
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(STDERR_FILENO, 77);
    test::forbid({SYS_close_range}, ENOSYS);
    const auto results = run({{0, child->pid()}}, folder, tools);
    ::_exit(results.at(0).tools.empty() ? 1 : 0);
  }
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  CHECK(ExitStatus::from_wait_status(status) == ExitStatus::exited(0));
  const std::string text = read_file(folder.path() / "stacks_0.txt");
  CHECK_THAT(text, ContainsSubstring("#0  0x00") && !ContainsSubstring("kept"));
}

TEST_CASE("the kernel's view is there even without a debugger", "[stack_dump]") {
  const TempDir folder;
  const auto child = worker({"ready", "pause"});
  REQUIRE(child->wait_for_output("ready"));
  StackDump dump({{0, child->pid()}}, {});
  CHECK(dump.advance());  // at once
  const auto results = run(dump, folder.path());
  const std::string pid = std::to_string(child->pid());
  CHECK_THAT(read_file(results[0].file),
             ContainsSubstring("process " + pid + " (stub_worker): S (sleeping)"));
  CHECK_THAT(read_file(results[0].file), ContainsSubstring("  thread " + pid + " (stub_worker): S"));
  CHECK(describe(results[0]) ==
        "rank 0 (pid " + pid +
            "): no stacks: eu-stack, gdb and py-spy not found in PATH; the kernel's view is in " +
            results[0].file.string());
  CHECK(signal_after(results) == SIGABRT);
}

TEST_CASE("the file is for its owner alone, and never somebody else's", "[stack_dump]") {
  const TempDir folder;
  const auto victim = folder.path() / "victim", file = folder.path() / "stacks_0.txt";
  write_file_atomic(victim, "untouched");
  REQUIRE(::symlink(victim.c_str(), file.c_str()) == 0);
  const auto child = worker({"ready", "pause"});
  REQUIRE(child->wait_for_output("ready"));
  run({{0, child->pid()}}, folder, {});
  CHECK(read_file(victim) == "untouched");
  struct stat info {};
  REQUIRE(::lstat(file.c_str(), &info) == 0);
  CHECK(S_ISREG(info.st_mode));
  CHECK((info.st_mode & 07777) == 0600);
}

TEST_CASE("a debugger that may not attach is quoted", "[stack_dump]") {
  const TempDir folder;
  const auto child = worker({"ready", "pause"});
  REQUIRE(child->wait_for_output("ready"));
  const auto tools = fake_gdb(folder, "echo 'ptrace: Operation not permitted.' >&2; exit 1");
  const auto results = run({{0, child->pid()}}, folder, tools);
  CHECK(results[0].tools.empty());
  CHECK_THAT(describe(results[0]),
             ContainsSubstring("no stacks: gdb: ptrace: Operation not permitted.; the"));
  CHECK(signal_after(results) == SIGABRT);
}

TEST_CASE("gdb without root's capabilities may not attach to a process that has them, and says so",
          "[stack_dump]") {
  const std::string gdb = real_gdb().gdb, setpriv = find_on_path("setpriv");
  if (::geteuid() != 0 || setpriv.empty()) test::skip("wants root and setpriv");
  const TempDir folder;
  const auto child = worker({"ready", "pause"});
  REQUIRE(child->wait_for_output("ready"));
  const auto tools = fake_gdb(folder, "exec " + setpriv + " --bounding-set=-all " + gdb + " \"$@\"");
  const auto results = run({{0, child->pid()}}, folder, tools);
  CHECK(results[0].tools.empty());
  CHECK_THAT(results[0].problem, ContainsSubstring("not permitted"));
}

TEST_CASE("a debugger that does not end is killed, with its children", "[stack_dump]") {
  const TempDir folder;
  const auto child = worker({"ready", "pause"});
  REQUIRE(child->wait_for_output("ready"));
  const auto pids = folder.path() / "pids";
  const auto tools = fake_gdb(folder, "echo '#0  0x00 in f ()'; sleep 1000 & echo $$ $! > " + pids.string() +
                                          ".tmp; mv " + pids.string() + ".tmp " + pids.string() + "; wait");
  StackDump dump({{0, child->pid()}}, tools);
  REQUIRE(wait_until([&] { return std::filesystem::exists(pids); }));
  CHECK_FALSE(dump.advance());
  const auto results = dump.finish();
  CHECK_THAT(describe(results[0]), ContainsSubstring("(gdb; gdb: not done in time)"));
  std::ifstream list(pids);
  for (pid_t pid; list >> pid;)
    CHECK(wait_until([&] { return state_of(pid) == '-' || state_of(pid) == 'Z'; }));
  CHECK(state_of(child->pid()) == 'S');
}

TEST_CASE("a debugger that cannot be started is a reason", "[stack_dump]") {
#ifdef __SANITIZE_THREAD__
  test::skip("ThreadSanitizer turns vfork into fork");
#endif
  const TempDir folder;
  const auto child = worker({"ready", "pause"});
  REQUIRE(child->wait_for_output("ready"));
  const auto results = run({{0, child->pid()}}, folder, {"", "/nowhere/gdb", ""});
  CHECK_THAT(describe(results[0]), ContainsSubstring("no stacks: gdb: No such file or directory"));
}

TEST_CASE("ranks that are gone and folders that cannot be written to are said", "[stack_dump]") {
  const TempDir folder;
  auto child = worker({"exit", "0"});
  child->wait();
  CHECK_THAT(describe(run({{0, child->pid()}}, folder, real_gdb())[0]),
             ContainsSubstring("no stacks: it has ended"));
  child = worker({"ready", "pause"});
  REQUIRE(child->wait_for_output("ready"));
  StackDump dump({{0, child->pid()}}, real_gdb());
  const auto results = run(dump, folder.path() / "missing");
  CHECK_THAT(describe(results[0]), ContainsSubstring("stacks_0.txt: cannot create: No such file"));
  CHECK(signal_after(results) == SIGABRT);
}

TEST_CASE("a program that handles SIGABRT gets it", "[stack_dump]") {
  const TempDir folder;
  const auto child = worker({"catch-abort", "ready", "pause"});
  REQUIRE(child->wait_for_output("ready"));
  const auto tools = fake_gdb(folder, "echo '#0  0x00 in f ()'");
  auto results = run({{0, child->pid()}}, folder, tools);
  CHECK(results[0].view.catches_abort);
  CHECK(signal_after(results) == SIGABRT);
  results[0].tools.push_back("py-spy");  // nothing left to tell
  CHECK(signal_after(results) == SIGTERM);
}

TEST_CASE("a Python program is known as one", "[stack_dump]") {
  const TempDir folder;
  Child child({{"python3", "-c", "print('ready', flush=True); input()"}, {}, "", [] {
                 int ends[2];
                 if (::pipe(ends) != 0 || ::dup2(ends[0], 0) < 0) ::_exit(1);
                 ::setsid();
               }});
  REQUIRE(child.wait_for_output("ready"));
  StackTools tools = fake_gdb(folder, "echo 'Thread 1 (idle): \"MainThread\"'");
  auto results = run({{0, child.pid()}}, folder, tools);
  CHECK(results[0].view.python);
  CHECK_THAT(describe(results[0]), ContainsSubstring("(gdb; pip install py-spy shows Python's frames)"));
  CHECK_THAT(describe(run({{0, child.pid()}}, folder, {})[0]),
             ContainsSubstring("not found in PATH; pip install py-spy shows Python's frames; the kernel's"));
  tools.py_spy = tools.gdb;
  results = run({{0, child.pid()}}, folder, tools);
  CHECK(results[0].tools == std::vector<std::string>{"py-spy"});  // gdb would stop it for seconds
  CHECK(describe(results[0]).ends_with("(py-spy)"));
  tools = fake_gdb(folder, "echo 'Thread 1 (idle): \"MainThread\"'; echo '    <module> (<string>:1)'");
  std::swap(tools.py_spy, tools.gdb);
  results = run({{0, child.pid()}}, folder, tools);
  CHECK_THAT(describe(results[0]), ContainsSubstring(") in <module> (<string>:1): stacks in "));
  tools.py_spy = "/bin/false";
  tools.gdb = fake_gdb(folder, "echo 'Thread 1 (idle)'").gdb;
  results = run({{0, child.pid()}}, folder, tools);
  CHECK(results[0].tools == std::vector<std::string>{"gdb"});
}

TEST_CASE("a tool that takes too long can detach, and the process goes on", "[stack_dump]") {
  const TempDir folder;
  const bool obeys = GENERATE(true, false), stopped = GENERATE(false, true);
  CAPTURE(obeys, stopped);
  std::vector<std::string> actions{"ready"};
  actions.emplace_back(stopped ? "stop-self" : "pause");
  const auto child = worker(actions);
  REQUIRE(child->wait_for_output("ready"));
  REQUIRE(wait_until([&] { return state_of(child->pid()) == (stopped ? 'T' : 'S'); }));
  const auto tools =
      fake_gdb(folder, std::string(obeys ? "trap 'echo detached; exit' TERM" : "trap '' TERM") +
                           "\nwhile [ \"$1\" != -p ]; do shift; done; kill -STOP \"$2\"\n"
                           "for i in 1 2 3 4 5 6 7 8 9; do sleep 0.2; done; sleep 600");
  StackDump dump({{0, child->pid()}}, tools, std::chrono::milliseconds(300));
  CHECK(dump.next() <= StackDump::Clock::now() + std::chrono::milliseconds(300));
  const auto results = run(dump, folder.path());
  CHECK_THAT(describe(results[0]), ContainsSubstring("no stacks: gdb: not done in time"));
  CHECK(test::count_of("detached", read_file(results[0].file)) == (obeys ? 1 : 0));
  CHECK(wait_until([&] { return state_of(child->pid()) == (stopped ? 'T' : 'S'); }));
}

TEST_CASE("a tool has three seconds", "[stack_dump]") {
  const TempDir folder;
  const auto child = worker({"ready", "pause"});
  REQUIRE(child->wait_for_output("ready"));
  const test::StoppedClock clock;
  StackDump dump({{0, child->pid()}}, fake_gdb(folder, "exec sleep 600"));
  CHECK_FALSE(dump.advance());
  CHECK_FALSE(dump.looking());
  CHECK(dump.next() == StackDump::Clock::now() + std::chrono::seconds(3));
}

constexpr pid_t kPid = 4711;
const KernelView kProgram, kPython{"", false, false, true}, kStoppedPython{"", true, false, true};
const StackTools kAll{"/bin/eu-stack", "/bin/gdb", "/bin/py-spy"};

std::vector<std::string> names(const std::vector<StackCommand>& commands) {
  std::vector<std::string> list;
  for (const StackCommand& command : commands) list.push_back(command.tool);
  return list;
}

using Names = std::vector<std::string>;

TEST_CASE("a process is given to eu-stack, or to gdb without it", "[stack_tools]") {
  CHECK(names(stack_commands(kAll, kPid, kProgram)) == Names{"eu-stack"});
  CHECK(names(stack_commands({"", "/bin/gdb", "/bin/py-spy"}, kPid, kProgram)) == Names{"gdb"});
  CHECK(stack_commands({}, kPid, kPython).empty());
}

TEST_CASE("a Python process is given to py-spy first", "[stack_tools]") {
  CHECK(names(stack_commands(kAll, kPid, kPython)) == Names{"py-spy", "eu-stack"});
  CHECK(names(stack_commands({"", "/bin/gdb", "/bin/py-spy"}, kPid, kPython)) == Names{"py-spy", "gdb"});
  CHECK(names(stack_commands({"", "", "/bin/py-spy"}, kPid, kPython)) == Names{"py-spy"});
}

TEST_CASE("py-spy is told not to stop a process that is stopped", "[stack_tools]") {
  const auto has_flag = [](const KernelView& process) {
    const auto argv = stack_commands(kAll, kPid, process)[0].argv;
    return std::count(argv.begin(), argv.end(), "--nonblocking") == 1;
  };
  CHECK(has_flag(kStoppedPython));
  CHECK_FALSE(has_flag(kPython));
}

TEST_CASE("every command names its program and the process", "[stack_tools]") {
  const StackTools only_gdb{"", "/bin/gdb", ""};
  for (const auto& commands : {stack_commands(kAll, kPid, kPython), stack_commands(only_gdb, kPid, kPython)})
    for (const StackCommand& command : commands) {
      CHECK(command.argv[0] == "/bin/" + command.tool);
      CHECK(std::count(command.argv.begin(), command.argv.end(), "4711") == 1);
    }
}

TEST_CASE("tools are found in the folders of PATH", "[stack_tools]") {
  const TempDir folder;
  const auto gdb = folder.path() / "gdb";
  write_file_atomic(gdb, "#!/bin/sh\n");
  ::chmod(gdb.c_str(), 0700);
  write_file_atomic(folder.path() / "py-spy", "not executable");
  const StackTools tools = find_stack_tools("/nowhere:" + folder.path().string());
  CHECK(tools.gdb == gdb);
  CHECK(tools.eu_stack.empty());
  CHECK(tools.py_spy.empty());
}

TEST_CASE("stacks are told from other output", "[stack_tools]") {
  CHECK(shows_stacks("[New LWP 5]\n\nThread 1 (LWP 4):\n#0  0x00 in read ()\n"));
  CHECK(shows_stacks("PID 4 - process\nTID 4:\n#0  0x00007f read\n"));
  CHECK(shows_stacks("Process 4: python3 x.py\nThread 4 (idle): \"MainThread\"\n    sleep (x.py:3)\n"));
  CHECK(shows_stacks("#0  0x00 in read ()\n"));
  CHECK_FALSE(shows_stacks(""));
  CHECK_FALSE(shows_stacks("ptrace: Operation not permitted.\nNo threads.\n"));
}

TEST_CASE("of Python's stacks the innermost frame and the program's own are named", "[stack_tools]") {
  const std::string begin = "Process 4: python3 x.py\nPython v3.11.7\n\nThread 4 (idle): \"MainThread\"\n";
  CHECK(python_frame(begin + "    wait (threading.py:327)\n    wait (threading.py:629)\n    main (x.py:9)\n"
                             "    <module> (x.py:10)\nThread 5 (idle): \"other\"\n    f (x.py:1)\n") ==
        "wait (threading.py:327), called by main (x.py:9)");
  CHECK(python_frame(begin + "    main (x.py:9)\n    <module> (x.py:10)\n") == "main (x.py:9)");
  CHECK(python_frame(begin + "    a\x1b[2J (x.py:1)\n") == "a [2J (x.py:1)");
  CHECK(python_frame(begin + "    odd\n") == "odd");
  CHECK(python_frame(begin).empty());
  CHECK(python_frame("Thread 4 (LWP 4):\n#0  0x00 in read ()\n").empty());
}

TEST_CASE("the line that says why there are no stacks is found", "[stack_tools]") {
  CHECK(refusal_in("warning: x\nptrace: Operation not permitted.\nNo threads.\n") ==
        "ptrace: Operation not permitted.");
  CHECK(refusal_in("Error: Permission denied (os error 13)") == "Error: Permission denied (os error 13)");
  CHECK(refusal_in("eu-stack: dwfl_linux_proc_attach pid 4: Operation not permitted") ==
        "eu-stack: dwfl_linux_proc_attach pid 4: Operation not permitted");
  CHECK(refusal_in("error: a \x1b[2Jb\n") == "error: a  [2Jb");
  CHECK(refusal_in("all is well\n").empty());
  CHECK(refusal_in("error: " + std::string(1000, 'x')).size() == 200);
}

TEST_CASE("Yama forbids tracing from scope 2 on", "[stack_tools]") {
  CHECK_FALSE(tracing_forbidden("", false));
  CHECK_FALSE(tracing_forbidden("0", false));
  CHECK_FALSE(tracing_forbidden("1", false));
  CHECK(tracing_forbidden("2", false));
  CHECK_FALSE(tracing_forbidden("2", true));
  CHECK(tracing_forbidden("3", true));
}

}  // namespace
}  // namespace ddprun::launcher
