#include "launcher/workers/process.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>

namespace ddprun::launcher {
namespace {

constexpr unsigned kPidfdSignalProcessGroup = 1U << 2;  // PIDFD_SIGNAL_PROCESS_GROUP, Linux 6.9

/// Prepared before vfork: the child runs in our memory and must not allocate.
struct ChildSetup {
  const char* path;
  char* const* argv;
  char* const* env;
  int standard_fds[3];
  bool traceable;
  int announce_fd;
  const int* inherited_fds;  // ascending
  std::size_t inherited_count;
  const cpu_set_t* cpus;  // null: as ddprun
  std::size_t cpus_size;
  pid_t launcher;
};

/// The child's failure, in the memory that it shares with us.
struct ChildFailure {
  const char* step = nullptr;
  int error = 0;
};

[[noreturn]] void fail_child(volatile ChildFailure& failure, const char* step) {
  failure.error = errno;
  failure.step = step;
  ::_exit(1);
}

/// SIG_DFL for every signal except an ignored SIGHUP (nohup). Dispositions are not shared with the parent.
void reset_signal_dispositions() {
  struct sigaction action {};
  const bool ignore_hangup = ::sigaction(SIGHUP, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
  action = {};
  action.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal)
    if (signal != SIGHUP || !ignore_hangup) ::sigaction(signal, &action, nullptr);
}

/// Sets the child's standard streams. Each source is above 2, or in place already.
bool set_standard_streams(const int (&fds)[3]) {
  for (int target = 0; target < 3; ++target)
    if (fds[target] != target && ::dup2(fds[target], target) < 0) return false;
  return true;
}

/// Closes all descriptors above 2 except the inherited ones.
bool keep_descriptors(const int* inherited, std::size_t count) {
  unsigned first = 3;
  for (std::size_t i = 0; i < count; ++i) {
    const auto kept = static_cast<unsigned>(inherited[i]);
    if (::fcntl(inherited[i], F_SETFD, 0) != 0) return false;
    if (first < kept) ::syscall(SYS_close_range, first, kept - 1, 0);
    first = kept + 1;
  }
  ::syscall(SYS_close_range, first, UINT_MAX, 0);
  return true;
}

/// The child between vfork and execve: system calls only, since it shares the parent's memory.
[[noreturn]] void run_child(const ChildSetup& setup, volatile ChildFailure& failure) {
  // A new session, not only a new group: the kernel would stop a background group of ddprun's terminal
  // (SIGTTIN, SIGTTOU) when it reads the terminal or sets its modes. A session without a terminal avoids
  // that, and Ctrl-C reaches the worker only once, through ddprun.
  if (::setsid() < 0) fail_child(failure, "setsid");
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) fail_child(failure, "prctl(PR_SET_PDEATHSIG)");
  if (::getppid() != setup.launcher) ::_exit(1);                 // ddprun died before the prctl
  if (setup.traceable) ::prctl(PR_SET_PTRACER, setup.launcher);  // fails without Yama, which is fine
  const pid_t pid = ::getpid();
  // Start even if the pipe is full or its reader dead.
  if (setup.announce_fd >= 0) [[maybe_unused]]
    const auto ignored = ::write(setup.announce_fd, &pid, sizeof pid);
  if (!set_standard_streams(setup.standard_fds)) fail_child(failure, "dup2");
  if (!keep_descriptors(setup.inherited_fds, setup.inherited_count)) fail_child(failure, "fcntl");
  if (setup.cpus != nullptr && ::sched_setaffinity(0, setup.cpus_size, setup.cpus) != 0)
    fail_child(failure, "sched_setaffinity");
  reset_signal_dispositions();
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(setup.path, setup.argv, setup.env);
  fail_child(failure, "execve");
}

// vfork, not fork: its cost does not grow with our memory, and the child reports failure without a pipe. The
// child must not return from the function that calls vfork, and no signal handler may run meanwhile: the
// caller blocks all signals.
[[gnu::noinline]] pid_t vfork_and_exec(const ChildSetup& setup, volatile ChildFailure& failure) {
  const pid_t pid = ::vfork();
  if (pid == 0) run_child(setup, failure);
  return pid;
}

std::vector<char*> pointers_to(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

pid_t wait_for(pid_t pid, int* status, int flags) {
  pid_t result;
  do result = ::waitpid(pid, status, flags);
  while (result < 0 && errno == EINTR);
  return result;
}

}  // namespace

std::variant<Process, StartFailure> start_process(const ProcessSpec& spec) {
  const auto argv = pointers_to(spec.argv);
  const auto env = pointers_to(spec.env);
  std::vector<int> inherited = spec.inherited_fds;
  std::sort(inherited.begin(), inherited.end());
  const CpuSet cpus(spec.cpus);
  const ChildSetup setup{spec.path.c_str(),
                         argv.data(),
                         env.data(),
                         {spec.stdin_fd, spec.stdout_fd, spec.stderr_fd},
                         spec.traceable,
                         spec.announce_fd,
                         inherited.data(),
                         inherited.size(),
                         spec.cpus.empty() ? nullptr : cpus.data(),
                         cpus.bytes(),
                         ::getpid()};
  volatile ChildFailure failure;
  sigset_t all, before;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &before);
  const pid_t pid = vfork_and_exec(setup, failure);
  const int vfork_error = errno;
  ::sigprocmask(SIG_SETMASK, &before, nullptr);

  if (pid < 0) return StartFailure{"vfork", vfork_error};
  if (failure.step != nullptr) {
    wait_for(pid, nullptr, 0);
    return StartFailure{failure.step, failure.error};
  }
  // The pid is ours until we reap it, so there is no race between vfork and this.
  Process process{pid, UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)))};
  if (process.pidfd) return process;
  const int error = errno;
  ::kill(-pid, SIGKILL);
  wait_for(pid, nullptr, 0);
  return StartFailure{"pidfd_open", error};
}

std::optional<ExitStatus> try_reap(const Process& process) {
  int status = 0;
  if (wait_for(process.pid, &status, WNOHANG) != process.pid) return {};
  return ExitStatus::from_wait_status(status);
}

bool signal_group(const Process& process, int signal) {
  // The pidfd names the group even after its leader is reaped. Older kernels take the number, which stays in
  // use as long as the group has members, the last of which we, the subreaper, reap.
  if (::syscall(SYS_pidfd_send_signal, process.pidfd.get(), signal, nullptr, kPidfdSignalProcessGroup) == 0)
    return true;
  if (errno == EINVAL || errno == ENOSYS)
    if (::kill(-process.pid, signal) == 0) return true;
  return errno != ESRCH;
}

}  // namespace ddprun::launcher
