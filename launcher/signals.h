#pragma once

#include <csignal>

#include "common/unique_fd.h"

namespace ddprun {

/// ddprun's signals come as events of its loop, through a signalfd, and never interrupt anything: whatever
/// arrives while the job is being set up waits there until the loop runs.
///
/// Blocked for the life of ddprun: the four that end the job (SIGHUP only if it is not ignored, which is what
/// nohup asks for), SIGUSR1 and SIGUSR2, which are passed on, and SIGCHLD. SIGPIPE is ignored: a reader of
/// our stderr that has gone must not take the job with it.
class SignalFd {
 public:
  SignalFd();

  int get() const { return fd_.get(); }

  /// True if a signal that ends the job has arrived and was not read yet.
  bool end_requested() const;

 private:
  UniqueFd fd_;
};

/// SIGINT, SIGTERM, SIGHUP, SIGQUIT: the job is to end.
bool ends_job(int signal);

/// Ends this process by that signal, so that the shell or the scheduler sees what it expects to see.
[[noreturn]] void end_by_signal(int signal);

}  // namespace ddprun
