#pragma once

#include <csignal>
#include <vector>

#include <ddprun/common/files.h>

namespace ddprun::launcher {

struct SignalReceived {
  int signal = 0;
  bool operator==(const SignalReceived&) const = default;
};

/// Delivers signals to ddprun's loop through a signalfd, so they never interrupt anything; those that arrive
/// during setup wait until the loop runs.
///
/// Blocks, while ddprun runs: signals that end the job (SIGHUP unless it is ignored, as under nohup), signals
/// that are forwarded, SIGTSTP, SIGWINCH and SIGCHLD. Ignores SIGPIPE: a reader that closes our output must
/// not end the job.
class SignalFd {
 public:
  SignalFd(std::vector<int> ending, const std::vector<int>& forwarded);

  int get() const { return fd_.get(); }

  /// True if this signal ends the job.
  bool ends_job(int signal) const;

  /// True if a signal that ends the job is pending.
  bool end_requested() const;

 private:
  std::vector<int> ending_;
  UniqueFd fd_;
};

/// Stops this process, as Ctrl-Z does (SIGTTIN: as the kernel does a background job that reads the terminal),
/// until it is continued. Returns at once where nobody could do that: the kernel ignores SIGTSTP in an
/// orphaned process group (`ssh -t HOST ddprun ...`, a container).
void stop_by_terminal(int signal = SIGTSTP);

/// Ends this process by that signal, as the shell or scheduler expects.
[[noreturn]] void end_by_signal(int signal);

}  // namespace ddprun::launcher
