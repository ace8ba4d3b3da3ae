#include <ddprun/group/spawn.h>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include <ddprun/common/error_file.h>
#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/held_port.h>

namespace ddprun {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kPipeHolds = 4096;  // more would block: the parent reads only after the rank's end

[[noreturn]] void throw_errno(const char* what) {
  throw std::system_error(errno, std::generic_category(), std::string("spawn: ") + what);
}

void flush_output() {
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
}

/// Replaces this process's environment with the rank's, regardless of the launcher that started the program.
void set_environment(const WorkerEnv& env) {
  for (const auto& name : worker_variable_names()) ::unsetenv(name.c_str());
  WorkerEnv own = env;
  own.store_fd.reset();  // not for programs started here
  for (const auto& [name, value] : to_env(own)) ::setenv(name.c_str(), value.c_str(), 1);
}

/// Takes a rank's share of the CPUs, as under ddprun: with one thread per CPU in every rank, threads would
/// mostly wait for each other.
void share_cpus(const WorkerEnv& env) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr || env.local_world_size == 1) return;
  cpu_set_t cpus;
  if (::sched_getaffinity(0, sizeof cpus, &cpus) != 0) return;
  const int share = std::max(1, CPU_COUNT(&cpus) / env.local_world_size);
  ::setenv("OMP_NUM_THREADS", std::to_string(share).c_str(), 1);  // for programs started here
  at::set_num_threads(share);                                     // OpenMP has already read its variable
}

/// In the child: ends with 0, or with 1 and the message of what body throws.
[[noreturn]] void run_rank(pid_t parent, int message_fd, const std::function<void()>& body) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  ::signal(SIGPIPE, SIG_IGN);  // Gloo may write to a rank that has ended, and only its collective should fail
  std::optional<std::string> error;
  try {
    body();
  } catch (const c10::Error& thrown) {
    error = thrown.what_without_backtrace();
  } catch (const std::exception& thrown) {
    error = thrown.what();
  } catch (...) {
    error = "an exception that is not a std::exception";
  }
  flush_output();
  if (!error) ::_exit(0);
  [[maybe_unused]] const auto written =
      ::write(message_fd, error->data(), std::min(error->size(), kPipeHolds));
  ::_exit(1);
}

struct Rank {
  pid_t pid = -1;    ///< -1 once it has been waited for
  UniqueFd pidfd;    ///< readable once it has ended
  UniqueFd message;  ///< what its body threw
};

class Ranks {
 public:
  ~Ranks() {
    for (auto& rank : ranks_) {
      if (rank.pid < 0) continue;
      ::kill(rank.pid, SIGKILL);
      ::waitpid(rank.pid, nullptr, 0);
    }
  }

  void start(const std::function<void()>& body) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) throw_errno("a pipe");
    UniqueFd read_end(ends[0]), write_end(ends[1]);
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) throw_errno("fork");
    if (pid == 0) run_rank(parent, write_end.get(), body);
    ranks_.push_back({pid, UniqueFd(), std::move(read_end)});
    ranks_.back().pidfd.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!ranks_.back().pidfd) throw_errno("pidfd_open");
  }

  /// Waits until some have ended, or the deadline. False if none is left, or none has ended by then.
  bool wait_for_some(std::optional<Clock::time_point> deadline, std::string& errors) {
    if (std::ranges::all_of(ranks_, [](const Rank& rank) { return rank.pid < 0; })) return false;
    std::vector<pollfd> waiting;
    for (const auto& rank : ranks_) waiting.push_back({rank.pid < 0 ? -1 : rank.pidfd.get(), POLLIN, 0});
    int ready = 0;
    do {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline.value_or(Clock::time_point()) - Clock::now());
      ready = ::poll(waiting.data(), waiting.size(),
                     deadline ? static_cast<int>(std::max<long>(left.count(), 0)) : -1);
    } while (ready < 0 && errno == EINTR);
    if (ready < 0) throw_errno("poll");
    for (std::size_t i = 0; i < waiting.size(); ++i)
      if (waiting[i].revents != 0) reap(i, errors);
    return ready > 0;
  }

  void send_to_all(int signal) const {
    for (const auto& rank : ranks_)
      if (rank.pid >= 0) ::kill(rank.pid, signal);
  }

 private:
  void reap(std::size_t index, std::string& errors) {
    Rank& rank = ranks_[index];
    int status = 0;
    if (::waitpid(rank.pid, &status, 0) != rank.pid) throw_errno("waitpid");
    rank.pid = -1;
    const auto ended = ExitStatus::from_wait_status(status);
    if (ended.success()) return;
    std::string message(kPipeHolds, '\0');
    const auto size = ::read(rank.message.get(), message.data(), message.size());
    message.resize(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
    errors += (errors.empty() ? "rank " : "\nrank ") + std::to_string(index) + ": " +
              (ended == ExitStatus::exited(1) && !message.empty() ? message : describe(ended));
  }

  std::vector<Rank> ranks_;
};

}  // namespace

void spawn(int n, const std::function<void(const WorkerEnv&)>& body, const SpawnOptions& options) {
  if (n < 1) throw std::invalid_argument("spawn: expected at least one rank, got " + std::to_string(n));
  const auto tasks = std::filesystem::directory_iterator("/proc/self/task");
  if (const auto threads = std::distance(begin(tasks), end(tasks)); threads != 1)
    throw std::logic_error(c10::str("spawn: this process has ", threads,
                                    " threads, expected one: call spawn() before anything that starts "
                                    "threads, such as a backward or a process group"));
  flush_output();
  HeldPort port;
  Ranks ranks;
  for (int rank = 0; rank < n; ++rank)
    ranks.start([&] {
      auto env = env_of_rank(port, rank, n);
      if (rank == 0)
        env.store_fd = port.socket.release();
      else
        port.socket.reset();
      set_environment(env);
      share_cpus(env);
      body(env);
    });
  port.socket.reset();  // only rank 0 has it, so the port closes when that ends

  std::string errors;
  while ((errors.empty() || !options.end_others) && ranks.wait_for_some(std::nullopt, errors)) {
  }
  if (errors.empty()) return;
  std::string ignored;  // the others fail because we end them
  ranks.send_to_all(SIGTERM);
  const auto deadline = Clock::now() + options.grace;
  while (ranks.wait_for_some(deadline, ignored)) {
  }
  ranks.send_to_all(SIGKILL);
  while (ranks.wait_for_some(std::nullopt, ignored)) {
  }
  throw std::runtime_error(errors);
}

}  // namespace ddprun
