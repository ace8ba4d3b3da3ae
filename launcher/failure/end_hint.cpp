#include "launcher/failure/end_hint.h"

#include <csignal>

namespace ddprun::launcher {
namespace {

std::string signal_hint(int signal) {
  switch (signal) {
    case SIGKILL:
      return "not sent by ddprun: by somebody, or by the kernel's OOM killer (dmesg and memory.events know)";
    case SIGTERM:
    case SIGINT:
    case SIGHUP:
    case SIGQUIT:
      return "not sent by ddprun: by a batch system, a user, or the program itself";
    case SIGSEGV:
      return "a memory access that is not allowed, or a stack that is too deep";
    case SIGBUS:
      return "often a full /dev/shm (df /dev/shm), or a mapped file that became shorter";
    case SIGABRT:
      return "the program gave up: an exception nobody caught, a failed assertion, or a damaged heap";
    case SIGFPE:
      return "most often an integer division by zero";
    case SIGILL:
      return "an instruction that this processor does not have: built for another one?";
    case SIGPIPE:
      return "it wrote to a pipe or connection that nobody reads any more";
    case SIGSYS:
      return "a system call that is not allowed here (seccomp)";
    case SIGXCPU:
      return "the limit on CPU time was reached (ulimit -t)";
    case SIGXFSZ:
      return "the limit on the size of files was reached (ulimit -f)";
    default:
      return "";
  }
}

}  // namespace

std::string end_hint(const ExitStatus& status) {
  if (status.kind == ExitStatus::Kind::kKilled) return signal_hint(status.signal);
  switch (status.code) {
    case 126:
      return "if the program is a shell script: a command in it cannot be executed";
    case 127:
      return "if the program is a shell script: a command in it was not found";
    default:
      break;
  }
  const int signal = status.code - 128;
  if (signal < 1 || signal > SIGSYS) return "";
  const std::string hint = signal_hint(signal);
  return "the code by which shells say " + signal_name(signal) + (hint.empty() ? "" : ": " + hint);
}

}  // namespace ddprun::launcher
