#include "launcher/workers/process.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <system_error>
#include <utility>

#include <ddprun/common/invariant.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/recovery.h>
#include "launcher/events/threads.h"
#include "launcher/host/cpus.h"
#include "launcher/workers/job_processes.h"

namespace ddprun::launcher {
namespace {

constexpr unsigned kPidfdSignalProcessGroup = 1U << 2;  // PIDFD_SIGNAL_PROCESS_GROUP, Linux 6.9
constexpr unsigned kCloseRangeUnshare = 1U << 1;        // CLOSE_RANGE_UNSHARE
constexpr unsigned kCloseRangeCloexec = 1U << 2;        // CLOSE_RANGE_CLOEXEC

std::optional<rlimit> inherited_descriptor_limit;  // before raise_descriptor_limit()
UniqueFd low_descriptors[4];                       // see reserve_low_descriptors(); the last stays /dev/null

/// Prepared before vfork: the child runs in our memory and must not allocate.
struct ChildSetup {
  const char* program;
  const WorkerSpec& worker;
  char* const* argv;
  char* const* env;
  int standard_fds[3];
  const std::vector<int>& inherited_fds;  // ascending
  const CpuSet& cpus;
  int announce_fd;
  unsigned highest_fd;      // highest one that the child needs
  bool shares_descriptors;  // with us, until it makes its own table
  pid_t launcher;
  volatile StartFailure& failure;  // in the memory that it shares with us
};

[[noreturn]] void fail_child(volatile StartFailure& failure, const char* step) {
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

/// Sets the child's standard streams. Each source is above 2, or already in place.
bool set_standard_streams(const int (&fds)[3]) {
  for (int target = 0; target < 3; ++target)
    if (fds[target] != target && ::dup2(fds[target], target) < 0) return false;
  return true;
}

/// Closes all descriptors above 2 except the inherited ones.
bool keep_descriptors(const std::vector<int>& inherited) {
  unsigned first = 3;
  for (const int fd : inherited) {
    const auto kept = static_cast<unsigned>(fd);
    if (::fcntl(fd, F_SETFD, 0) != 0) return false;
    if (first < kept) ::syscall(SYS_close_range, first, kept - 1, 0);
    first = kept + 1;
  }
  ::syscall(SYS_close_range, first, UINT_MAX, 0);
  return true;
}

/// Linux 5.9, unless a container's filter forbids it.
bool has_close_range() {
  static const bool has = ::syscall(SYS_close_range, UINT_MAX, UINT_MAX, 0) == 0;
  return has;
}

/// The child between vfork and execve: system calls only, since it shares the parent's memory.
int run_child(void* argument) {
  const auto& setup = *static_cast<const ChildSetup*>(argument);
  // Our own table of descriptors. Copying only the low ones keeps the start of many workers linear.
  if (setup.shares_descriptors &&
      ::syscall(SYS_close_range, setup.highest_fd + 1, UINT_MAX, kCloseRangeUnshare) != 0)
    fail_child(setup.failure, "close_range");
  // A new session, not only a new group: the kernel would stop a background group of ddprun's terminal
  // (SIGTTIN, SIGTTOU) when it reads the terminal or sets its modes. A session without a terminal avoids
  // that, and Ctrl-C reaches the worker only once, through ddprun.
  if (::setsid() < 0) fail_child(setup.failure, "setsid");
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) fail_child(setup.failure, "prctl(PR_SET_PDEATHSIG)");
  if (::getppid() != setup.launcher) ::_exit(1);                        // ddprun died before the prctl
  if (setup.worker.traceable) ::prctl(PR_SET_PTRACER, setup.launcher);  // fails without Yama, which is fine
  const pid_t pid = ::getpid();
  // Start even if the pipe is full or its reader is dead.
  if (setup.announce_fd >= 0) [[maybe_unused]]
    const auto ignored = ::write(setup.announce_fd, &pid, sizeof pid);
  ::signal(SIGPIPE, SIG_IGN);  // drops the one that waits if the reader is dead: all signals are blocked here
  if (!set_standard_streams(setup.standard_fds)) fail_child(setup.failure, "dup2");
  if (!keep_descriptors(setup.inherited_fds)) fail_child(setup.failure, "fcntl");
  if (!setup.worker.cpus.empty() && ::sched_setaffinity(0, setup.cpus.bytes(), setup.cpus.data()) != 0)
    fail_child(setup.failure, "sched_setaffinity");
  if (inherited_descriptor_limit) ::setrlimit(RLIMIT_NOFILE, &*inherited_descriptor_limit);
  reset_signal_dispositions();
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(setup.program, setup.argv, setup.env);
  fail_child(setup.failure, "execve");
}

// The sanitizers support vfork, but not a child that runs on its own stack in our memory.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

/// A copy of the descriptor at a low number if one is reserved. The caller's remains open.
int low_copy(int fd, const UniqueFd& low) {
  return fd > STDERR_FILENO && low && ::dup3(fd, low.get(), O_CLOEXEC) >= 0 ? low.get() : fd;
}

std::vector<char*> pointers_to(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

constexpr std::chrono::seconds kMostApart{60};

/// What a process that was started as `known` needs to become this worker.
StandbyOrder order_of(const WorkerSpec& worker, const StandardFds& fds, const WorkerSpec& known) {
  StandbyOrder order;
  if (worker.argv != known.argv) order.argv = worker.argv;
  order.fds = {{"0", fds.in}, {"1", fds.out}, {"2", fds.err}};
  for (const std::string& text : worker.env) {
    if (std::find(known.env.begin(), known.env.end(), text) != known.env.end()) continue;
    const auto end = text.find('=');
    const std::string name = text.substr(0, end), value = text.substr(end + 1);
    const auto fd = std::find_if(worker.inherited_fds.begin(), worker.inherited_fds.end(),
                                 [&](int number) { return std::to_string(number) == value; });
    if (name.ends_with("_FD") && fd != worker.inherited_fds.end())
      order.fds.emplace_back(name, *fd);
    else
      order.env.emplace_back(name, value);
  }
  return order;
}

/// Applies to every thread of the process.
void set_cpus(pid_t pid, const CpuList& cpus) {
  if (cpus.empty()) return;
  const CpuSet set(cpus);
  for (const pid_t task : numbers_in("/proc/" + std::to_string(pid) + "/task"))
    ::sched_setaffinity(task, set.bytes(), set.data());
}

}  // namespace

std::variant<Process, StartFailure> start_process(const std::string& program, const WorkerSpec& worker,
                                                  const StandardFds& fds, int announce_fd) {
  const auto argv = pointers_to(worker.argv);
  const auto env = pointers_to(worker.env);
  std::vector<int> inherited = worker.inherited_fds;
  std::sort(inherited.begin(), inherited.end());
  check_invariant(!worker.argv.empty() && fds.in >= 0 && fds.out >= 0 && fds.err >= 0,
                  "a process has a name and standard streams");
  check_invariant(inherited.empty() || inherited.front() > STDERR_FILENO,
                  "inherited descriptors lie above the standard ones");
  const CpuSet cpus(worker.cpus);
  if (!has_close_range()) close_above_stderr_on_exec();
  const int in = low_copy(fds.in, low_descriptors[0]), out = low_copy(fds.out, low_descriptors[1]),
            err = low_copy(fds.err, low_descriptors[2]);
  const int highest =
      std::max({STDERR_FILENO, in, out, err, announce_fd, inherited.empty() ? 0 : inherited.back()});
  volatile StartFailure failure;
  ChildSetup setup{.program = program.c_str(),
                   .worker = worker,
                   .argv = argv.data(),
                   .env = env.data(),
                   .standard_fds = {in, out, err},
                   .inherited_fds = inherited,
                   .cpus = cpus,
                   .announce_fd = announce_fd,
                   .highest_fd = static_cast<unsigned>(highest),
                   .shares_descriptors = has_close_range() && !kSanitized,
                   .launcher = ::getpid(),
                   .failure = failure};
  sigset_t all, before;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &before);
  // Like vfork: the cost does not grow with our memory, and the child reports failure without a pipe. No
  // signal handler may run meanwhile. Unlike vfork's, the child shares our descriptors until it makes its own
  // table.
  alignas(16) static char stack[1 << 16];
  constexpr int kFlags = CLONE_VM | CLONE_VFORK | SIGCHLD;
  pid_t pid = -1;
  if (kSanitized) {
    pid = ::vfork();
    if (pid == 0) run_child(&setup);
  } else {
    const int shared = setup.shares_descriptors ? CLONE_FILES : 0;
    pid = ::clone(run_child, stack + sizeof stack, kFlags | shared, &setup);
    // QEMU's user mode, as in a container for another architecture, supports only forks.
    if (pid < 0 && errno == EINVAL && shared != 0)
      pid = ::clone(run_child, stack + sizeof stack, kFlags, &setup);
  }
  const int clone_error = errno;
  for (const UniqueFd& low : low_descriptors)  // otherwise we would keep the worker's output open
    if (low && &low != &low_descriptors[3]) ::dup3(low_descriptors[3].get(), low.get(), O_CLOEXEC);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);

  if (pid < 0) return StartFailure{"clone", clone_error};
  if (failure.step != nullptr) {
    TEMP_FAILURE_RETRY(::waitpid(pid, nullptr, 0));
    return StartFailure{failure.step, failure.error};
  }
  // The pid is ours until we reap it, so there is no race between clone and this. Linux before 5.3 has no
  // pidfds, and a container's filter may forbid them: then only SIGCHLD reports the end.
  return Process{pid, UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)))};
}

void look_at_program(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char byte;
  if (file) [[maybe_unused]]
    const auto ignored = ::read(file.get(), &byte, 1);
}

std::optional<ExitStatus> try_reap(const Process& process) {
  int status = 0;
  if (TEMP_FAILURE_RETRY(::waitpid(process.pid, &status, WNOHANG)) != process.pid) return {};
  return ExitStatus::from_wait_status(status);
}

bool signal_group(const Process& process, int signal) {
  // The pidfd names the group even after its leader is reaped. Where the kernel or a container's filter does
  // not allow this, use the number, which stays in use as long as the group has members, the last of which
  // we, the subreaper, reap.
  if (process.pidfd) {
    if (::syscall(SYS_pidfd_send_signal, process.pidfd.get(), signal, nullptr, kPidfdSignalProcessGroup) == 0)
      return true;
    if (errno == ESRCH) return false;
  }
  return ::kill(-process.pid, signal) == 0 || errno != ESRCH;
}

std::pair<UniqueFd, UniqueFd> socket_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    throw std::system_error(errno, std::generic_category(), "socketpair");
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

bool lives(pid_t child) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == 0;
}

bool make_worker(pid_t pid, int channel, const WorkerSpec& worker, const StandardFds& fds,
                 const WorkerSpec& known) {
  set_cpus(pid, worker.cpus);
  return send_order(channel, order_of(worker, fds, known));
}

void close_all_above_stderr() {
  if (::syscall(SYS_close_range, STDERR_FILENO + 1, UINT_MAX, 0) == 0) return;
  for (const int fd : numbers_in("/proc/self/fd"))
    if (fd > STDERR_FILENO) ::close(fd);
}

void close_above_stderr_on_exec() {
  if (::syscall(SYS_close_range, STDERR_FILENO + 1, UINT_MAX, kCloseRangeCloexec) == 0) return;  // Linux 5.11
  for (const int fd : numbers_in("/proc/self/fd"))
    if (fd > STDERR_FILENO) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
}

void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  inherited_descriptor_limit = limit;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void reserve_low_descriptors() {
  for (UniqueFd& low : low_descriptors) low.reset(::open("/dev/null", O_RDWR | O_CLOEXEC));
}

void Standbys::keep(int count, std::string program, WorkerSpec worker, std::function<bool()> may_start) {
  count_ = static_cast<std::size_t>(count);
  program_ = std::move(program);
  worker_ = std::move(worker);
  may_start_ = std::move(may_start);
  fill();
}

void Standbys::fill() {
  timer_.expires_after(apart_);
  timer_.async_wait([this, token = std::weak_ptr(token_)](const boost::system::error_code& error) {
    if (error || token.expired() || count_ == 0) return;  // 0: end() was called first
    std::erase_if(waiting_, [this](const Standby& standby) {
      if (lives(standby.process.pid)) return false;
      lose(standby);
      return true;
    });
    if (waiting_.size() < count_ && may_start_()) return look_and_start();
    fill();
  });
}

std::size_t Standbys::ready() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(waiting_, [](const Standby& standby) { return lives(standby.process.pid); }));
}

/// The next one starts once the program's disk has answered.
void Standbys::look_and_start() {
  const std::function<void()> look = [program = program_] { look_at_program(program); };
  boost::asio::co_spawn(timer_.get_executor(), run_aside(look),
                        [this, token = std::weak_ptr(token_)](const std::exception_ptr&, AsideEnd) {
                          if (token.expired() || count_ == 0) return;
                          if (waiting_.size() < count_) start_one();  // become() may have begun another look
                          fill();
                        });
}

void Standbys::start_one() try {
  auto [ours, theirs] = socket_pair();
  Standby standby{{}, std::move(ours)};
  const UniqueFd dev_null = open_dev_null(O_RDWR);
  WorkerSpec process = worker_;
  process.env.push_back("DDPRUN_STANDBY_FD=" + std::to_string(theirs.get()));
  process.inherited_fds = {theirs.get()};
  const StandardFds fds{dev_null.get(), dev_null.get(), dev_null.get()};
  auto started = start_process(program_, process, fds, guard_.announce_fd());
  if (const auto* failure = std::get_if<StartFailure>(&started)) {
    log_warning("--standby: cannot start a process: " + std::string(failure->step) + ": " +
                std::strerror(failure->error));
    count_ = 0;
    return;
  }
  standby.process = std::move(std::get<Process>(started));
  waiting_.push_back(std::move(standby));
} catch (const std::exception& error) {  // no descriptors left: the job goes on without
  log_warning("--standby: cannot start a process: " + std::string(error.what()));
  count_ = 0;
}

std::optional<Process> Standbys::become(const WorkerSpec& worker, const StandardFds& fds) {
  while (!waiting_.empty()) {
    Standby standby = std::move(waiting_.front());
    waiting_.erase(waiting_.begin());
    fill();
    if (lives(standby.process.pid) && worker.argv == worker_.argv &&  // they differ with --expand
        make_worker(standby.process.pid, standby.channel.get(), worker, fds, worker_))
      return std::move(standby.process);
    lives(standby.process.pid) ? drop(standby) : lose(standby);
  }
  return {};
}

void Standbys::lose(const Standby& standby) {
  log_warning("the standby process " + std::to_string(standby.process.pid) +
              " has ended: another will start (until it is needed, its RANK is WORLD_SIZE, and its "
              "LOCAL_RANK is LOCAL_WORLD_SIZE)");
  apart_ = std::min(2 * apart_, kMostApart);
  drop(standby);
}

void Standbys::drop(const Standby& standby) {
  signal_group(standby.process, SIGKILL);
  guard_.forget(standby.process.pid);
}

void Standbys::end() {
  timer_.cancel();
  count_ = 0;
  for (const Standby& standby : waiting_) drop(standby);
  waiting_.clear();
}

}  // namespace ddprun::launcher
