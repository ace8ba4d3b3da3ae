#pragma once

#include <csignal>
#include <vector>

#include <ddprun/common/unique_fd.h>

namespace ddprun::launcher {

struct SignalReceived {
  int signal = 0;
  bool operator==(const SignalReceived&) const = default;
};

/// ddprun's signals come as events of its loop, through a signalfd, and never interrupt anything: whatever
/// arrives while the job is being set up waits there until the loop runs.
///
/// Blocked for the life of ddprun: those that end the job (SIGHUP only if it is not ignored, which is what
/// nohup asks for), those that are passed on, SIGTSTP, SIGWINCH and SIGCHLD. SIGPIPE is ignored: a reader of
/// our output that has gone must not take the job with it.
class SignalFd {
 public:
  SignalFd(std::vector<int> ending, const std::vector<int>& forwarded);

  int get() const { return fd_.get(); }

  /// The job is to end by this signal.
  bool ends_job(int signal) const;

  /// True if a signal that ends the job has arrived and was not read yet.
  bool end_requested() const;

 private:
  std::vector<int> ending_;
  UniqueFd fd_;
};

/// Ends this process by that signal, so that the shell or the scheduler sees what it expects to see.
[[noreturn]] void end_by_signal(int signal);

}  // namespace ddprun::launcher
