#include "launcher/events/init_process.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <system_error>

#include <ddprun/common/error_file.h>

namespace ddprun::launcher {
namespace {

void reap_until(pid_t ddprun) {
  int status = 0;
  for (pid_t ended = 0; (ended = ::waitpid(-1, &status, WNOHANG)) > 0;)
    if (ended == ddprun)
      ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : exit_code_of_signal(WTERMSIG(status)));
}

/// signals  all, blocked
[[noreturn]] void serve_as_init(pid_t ddprun, const sigset_t& signals) {
  for (;;) {
    reap_until(ddprun);
    siginfo_t info{};
    const int signal = ::sigwaitinfo(&signals, &info);
    // What the kernel sends for a terminal has reached ddprun, too; but its hang-up only the session's
    // leader.
    if (signal > 0 && signal != SIGCHLD && (info.si_code <= 0 || signal == SIGHUP))
      ::sigqueue(ddprun, signal, {kPassedOn});
  }
}

}  // namespace

void leave_init_process() {
  if (::getpid() != 1) return;
  sigset_t all, before;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &before);
  const auto before_child = ::signal(SIGCHLD, SIG_DFL);  // if ignored, its status would be lost
  const pid_t ddprun = ::fork();
  if (ddprun < 0) throw std::system_error(errno, std::generic_category(), "cannot start a child");
  if (ddprun > 0) serve_as_init(ddprun, all);
  ::signal(SIGCHLD, before_child);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
}

bool SignalsOnce::counts(int signal, bool passed_on, LoopClock::time_point now) {
  constexpr std::chrono::seconds kTogether{1};
  const auto other = last_.find({signal, !passed_on});
  const bool is_second = other != last_.end() && now - other->second < kTogether;
  if (is_second)
    last_.erase(other);
  else
    last_[{signal, passed_on}] = now;
  return !is_second;
}

}  // namespace ddprun::launcher
