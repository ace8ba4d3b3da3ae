#include "launcher/signals.h"

#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace ddprun {
namespace {

constexpr int kEnding[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

sigset_t handled_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kEnding)
    // A shell without job control ignores SIGINT and SIGQUIT for what it starts with '&'; only nohup's SIGHUP
    // is a wish of the user.
    if (signal != SIGHUP || !is_ignored(SIGHUP)) sigaddset(&set, signal);
  for (const int signal : {SIGUSR1, SIGUSR2, SIGCHLD}) sigaddset(&set, signal);
  return set;
}

}  // namespace

SignalFd::SignalFd() {
  // An inherited SIG_IGN of SIGCHLD would let the kernel throw the workers' exit statuses away.
  ::signal(SIGCHLD, SIG_DFL);
  ::signal(SIGPIPE, SIG_IGN);
  const sigset_t set = handled_signals();
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  fd_.reset(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!fd_) throw std::system_error(errno, std::generic_category(), "signalfd");
}

bool SignalFd::end_requested() const {
  sigset_t pending;
  if (::sigpending(&pending) != 0) return false;
  for (const int signal : kEnding)
    if (sigismember(&pending, signal) == 1 && !(signal == SIGHUP && is_ignored(SIGHUP))) return true;
  return false;
}

bool ends_job(int signal) {
  for (const int ending : kEnding)
    if (signal == ending) return true;
  return false;
}

void end_by_signal(int signal) {
  ::prctl(PR_SET_DUMPABLE, 0);  // SIGQUIT: the workers' cores are of interest, ours is not
  ::signal(signal, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  ::raise(signal);
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  ::_exit(128 + signal);  // not reached, unless we are the init process of a container
}

}  // namespace ddprun
