#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <ddprun/common/exit_status.h>
#include <ddprun/common/unique_fd.h>
#include "launcher/host/cpu_list.h"

namespace ddprun::launcher {

/// What to start. The strings are handed over byte for byte.
struct ProcessSpec {
  std::string path;
  std::vector<std::string> argv;
  std::vector<std::string> env;  ///< "NAME=value"
  int stdin_fd = 0;              ///< becomes its standard input
  int stdout_fd = 1;
  int stderr_fd = 2;
  std::vector<int> inherited_fds = {};  ///< the only ones above 2 that it keeps, under the same numbers
  bool traceable = false;  ///< by our descendants, such as debuggers, where Yama forbids it (ptrace_scope 1)
  int announce_fd = -1;    ///< the new process writes its pid here before it runs the program; -1: nowhere
  CpuList cpus = {};       ///< to run on; empty: ddprun's own
};

/// A child of ddprun and the process group, equal to its session, that it leads. Entirely passive: the owner
/// waits for pidfd to become readable, reaps once, and signals the group until it is gone.
struct Process {
  pid_t pid = -1;
  UniqueFd pidfd;
};

/// Why a process could not be started.
struct StartFailure {
  std::string step;  ///< the call that failed: "execve", "vfork"
  int error = 0;     ///< its errno
};

/// Starts a process as the leader of a new session: all signals at their defaults and unblocked (an ignored
/// SIGHUP stays ignored), killed by the kernel if ddprun dies, nothing inherited but what the spec says.
/// Returns when the new program has replaced us in the child, or has failed to. Call it from the main thread:
/// the kernel sends the parent-death signal when the *thread* that started the child ends.
std::variant<Process, StartFailure> start_process(const ProcessSpec& spec);

/// The exit status if the process has ended: it is reaped then, so ask no more afterwards.
std::optional<ExitStatus> try_reap(const Process& process);

/// Sends a signal to every member of the process's group (0: only asks). False if no member is left.
bool signal_group(const Process& process, int signal);

}  // namespace ddprun::launcher
