#include "launcher/events/signals.h"

#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>

#include <ddprun/common/error_file.h>

namespace ddprun::launcher {
namespace {

constexpr std::chrono::seconds kTogether{1};

bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

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

SignalFd::SignalFd(std::vector<int> ending, const std::vector<int>& forwarded) : ending_(std::move(ending)) {
  // Only an ignored SIGHUP is the user's intent (nohup): shells without job control ignore SIGINT and SIGQUIT
  // in every background program.
  if (is_ignored(SIGHUP)) std::erase(ending_, SIGHUP);
  ::signal(SIGPIPE, SIG_IGN);
  for (const int signal : {SIGUSR1, SIGUSR2}) ::signal(signal, SIG_IGN);  // unless handled below
  ::signal(SIGXFSZ, SIG_IGN);  // a log file at its size limit causes a failed write
  sigset_t set;
  sigemptyset(&set);
  std::vector<int> handled = {SIGTSTP, SIGWINCH, SIGCHLD};
  handled.insert(handled.end(), ending_.begin(), ending_.end());
  handled.insert(handled.end(), forwarded.begin(), forwarded.end());
  for (const int signal : handled) {
    // Ignored signals are discarded even while blocked; with SIGCHLD, so would be the exit statuses.
    if (signal != SIGHUP) ::signal(signal, SIG_DFL);
    sigaddset(&set, signal);
  }
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  fd_.reset(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!fd_) throw std::system_error(errno, std::generic_category(), "signalfd");
}

bool SignalFd::ends_job(int signal) const { return std::ranges::find(ending_, signal) != ending_.end(); }

void SignalFd::end_at_once() const {
  ::prctl(PR_SET_DUMPABLE, 0);  // SIGQUIT: no core of ddprun
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : ending_) sigaddset(&set, signal);
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

bool SignalFd::end_requested() const {
  sigset_t pending;
  if (::sigpending(&pending) != 0) return false;
  return std::ranges::any_of(ending_, [&](int signal) { return sigismember(&pending, signal) == 1; });
}

void stop_by_terminal(int signal) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  ::raise(signal);
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);  // here it stops
  if (signal == SIGTSTP) ::sigprocmask(SIG_BLOCK, &set, nullptr);
}

void end_by_signal(int signal) {
  ::prctl(PR_SET_DUMPABLE, 0);  // SIGQUIT: no core of ddprun, only of the workers
  ::signal(signal, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  ::raise(signal);
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  ::_exit(exit_code_of_signal(signal));  // not reached: the signal has ended this process
}

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

bool SignalsOnce::came_just_now(int signal, LoopClock::time_point now) const {
  const auto last = last_.find(signal);
  return last != last_.end() && now - last->second.at < kTogether;
}

SignalsOnce::Counts SignalsOnce::counts(int signal, Sender sender, bool ending, LoopClock::time_point now) {
  const bool ends = ends_(signal);
  if (!ends && sender != kInit) sender = kKernel;  // each of those is meant
  // No second signal to end the job: the terminal's hang-up (whoever has typed Ctrl-C may close the window),
  // or SIGTERM beside it: systemd ends a login session with both at once.
  if (ending && ends && (signal == SIGHUP || (ends_(SIGHUP) && came_just_now(SIGHUP, now))))
    return Counts::kNo;
  const bool again = came_just_now(signal, now);
  Last& last = last_[signal];
  if (again && last.senders.insert(sender).second) return Counts::kNo;  // a copy
  if (again && sender == parent_) return Counts::kIfParentLives;
  last = {now, {sender}};
  return Counts::kYes;
}

}  // namespace ddprun::launcher
