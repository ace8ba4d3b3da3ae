#include "launcher/failure/stack_tools.h"

#include <algorithm>

#include "launcher/events/launch_error.h"
#include "launcher/plan/program.h"

namespace ddprun::launcher {
namespace {

std::string find_or_empty(const std::string& name, const std::string& search_path) try {
  return find_program(name, search_path);
} catch (const LaunchError&) {
  return "";
}

}  // namespace

StackTools find_stack_tools(const std::string& search_path) {
  return {find_or_empty("eu-stack", search_path), find_or_empty("gdb", search_path),
          find_or_empty("py-spy", search_path)};
}

std::vector<StackCommand> stack_commands(const StackTools& tools, pid_t pid, const KernelView& process) {
  const std::string number = std::to_string(pid);
  std::vector<StackCommand> commands;
  if (process.python && !tools.py_spy.empty()) {
    commands.push_back({"py-spy", {tools.py_spy, "dump", "--pid", number}});
    // It stumbles over a process that is stopped already.
    if (process.stopped) commands.back().argv.push_back("--nonblocking");
  }
  // A process with LibTorch costs eu-stack 0.2 s of a CPU, and gdb 4.6 s for the same frames.
  if (!tools.eu_stack.empty()) {
    commands.push_back({"eu-stack", {tools.eu_stack, "-p", number}});
  } else if (!tools.gdb.empty()) {
    // Nobody's start-up files and scripts, and nothing from the network.
    commands.push_back({"gdb",
                        {tools.gdb, "-nx", "-batch", "-iex", "set debuginfod enabled off", "-iex",
                         "set auto-load off", "-p", number, "-ex", "thread apply all bt"}});
  }
  return commands;
}

bool shows_stacks(std::string_view output) {
  for (const std::string_view frame : {"\n#0 ", "\nThread "})  // gdb and eu-stack; py-spy
    if (output.find(frame) != std::string_view::npos || output.rfind(frame.substr(1), 0) == 0) return true;
  return false;
}

std::string refusal_in(std::string_view output) {
  for (const std::string_view word : {"not permitted", "Permission denied", "ptrace", "rror:"}) {
    const auto found = output.find(word);
    if (found == std::string_view::npos) continue;
    const auto begin = output.rfind('\n', found) + 1;  // npos + 1 is 0
    const auto end = std::min(output.find('\n', found), output.size());
    std::string line(output.substr(begin, std::min<std::size_t>(end - begin, 200)));
    for (char& c : line)
      if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = ' ';
    return line;
  }
  return "";
}

std::optional<std::string> tracing_forbidden(std::string_view ptrace_scope, bool privileged) {
  // 0: any process of the same user. 1: ancestors, and whom a process has named with PR_SET_PTRACER.
  const char scope = ptrace_scope.empty() ? '0' : ptrace_scope.front();
  if (scope == '3') return "kernel.yama.ptrace_scope is 3: nobody may trace";
  if (scope == '2' && !privileged) return "kernel.yama.ptrace_scope is 2: tracing needs CAP_SYS_PTRACE";
  return {};
}

}  // namespace ddprun::launcher
