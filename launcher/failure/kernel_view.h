#pragma once

#include <sys/types.h>

#include <string>

namespace ddprun::launcher {

/// What the kernel tells of a process without stopping it, from /proc. Instant; needs no debugger.
struct KernelView {
  std::string text;            ///< a line for the process and one for each thread; empty if it is gone
  bool stopped = false;        ///< by SIGSTOP or the like: it acts on no signal but SIGKILL and SIGCONT
  bool catches_abort = false;  ///< it has a handler for SIGABRT: Python's faulthandler, for one
  bool python = false;         ///< it runs a Python interpreter
};

/// By thread: its name, its state, the kernel's function it waits in and its system call, as far as we may
/// know. No arguments and no environment of the process: they may hold secrets.
KernelView kernel_view(pid_t pid);

}  // namespace ddprun::launcher
