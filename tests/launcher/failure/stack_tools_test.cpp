#include "launcher/failure/stack_tools.h"

#include <sys/stat.h>

#include <algorithm>

#include <ddprun/common/files.h>
#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

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
