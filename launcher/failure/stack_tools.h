#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/failure/kernel_view.h"

namespace ddprun::launcher {

/// The programs that can print another process's stacks, as paths; empty: not there.
struct StackTools {
  std::string eu_stack;
  std::string gdb;     ///< used where eu-stack is missing
  std::string py_spy;  ///< for Python's own frames
};

/// The tools in these folders ($PATH).
StackTools find_stack_tools(const std::string& search_path);

/// One tool's run on one process.
struct StackCommand {
  std::string tool;  ///< for messages: "gdb"
  std::vector<std::string> argv;
};

/// What to run, one after the other (two cannot trace a process at once), to get all stacks of a process.
std::vector<StackCommand> stack_commands(const StackTools& tools, pid_t pid, const KernelView& process);

/// True if a tool's output has at least one stack in it.
bool shows_stacks(std::string_view output);

/// The line of a tool's output that says why it has no stacks, without control characters; empty if none
/// does.
std::string refusal_in(std::string_view output);

/// Why no debugger can attach to any worker, so that none need be tried; nullopt if one may.
///
/// ptrace_scope  the content of /proc/sys/kernel/yama/ptrace_scope; empty where there is no Yama
/// privileged    we have CAP_SYS_PTRACE
std::optional<std::string> tracing_forbidden(std::string_view ptrace_scope, bool privileged);

}  // namespace ddprun::launcher
