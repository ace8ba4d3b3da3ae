#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <ddprun/common/error_file.h>
#include <ddprun/common/files.h>
#include "launcher/events/clock.h"
#include "launcher/host/cpus.h"
#include "launcher/workers/guard.h"

namespace ddprun::launcher {

/// What to start. Strings are passed byte for byte.
struct ProcessSpec {
  std::string path;
  std::vector<std::string> argv;
  std::vector<std::string> env;  ///< "NAME=value"
  int stdin_fd = 0;              ///< becomes its standard input
  int stdout_fd = 1;
  int stderr_fd = 2;
  std::vector<int> inherited_fds = {};  ///< the only ones above 2 that it keeps, with the same numbers
  bool traceable =
      false;             ///< by our descendants, such as debuggers, even if Yama forbids it (ptrace_scope 1)
  int announce_fd = -1;  ///< the new process writes its pid here before it runs the program; -1: nowhere
  CpuList cpus = {};     ///< CPUs to run on; empty: ddprun's
};

/// A worker's stdout and stderr, closed here once it has started; ddprun's own if unset.
struct WorkerOutputs {
  UniqueFd out, err;
};

/// A child of ddprun that leads a session and its process group. The owner waits for pidfd to become
/// readable, reaps once, and signals the group until it is gone.
struct Process {
  pid_t pid = -1;
  UniqueFd pidfd;  ///< unset where the kernel has no pidfds or a filter forbids them: watch SIGCHLD
};

/// Why a process could not be started.
struct StartFailure {
  const char* step = nullptr;  ///< the call that failed: "execve", "clone"
  int error = 0;               ///< its errno
};

/// Starts a process as the leader of a new session, with default unblocked signals (an ignored SIGHUP stays
/// ignored) and only the descriptors of the spec; the kernel kills it if ddprun dies. Returns once the child
/// runs the new program, or has failed to. Call it from the main thread: the kernel sends the parent-death
/// signal when the *thread* that started the child ends.
std::variant<Process, StartFailure> start_process(const ProcessSpec& spec);

/// Reaps the process if it has ended. Do not call it again once it has returned a status.
std::optional<ExitStatus> try_reap(const Process& process);

/// Signals every member of the process's group (0: only checks). False if none is left.
bool signal_group(const Process& process, int signal);

void close_all_above_stderr();
void close_above_stderr_on_exec();

/// Raises this process's soft limit on descriptors to the hard one; start_process() restores it in children.
void raise_descriptor_limit();

/// Keeps three low descriptors for start_process(), so that the cost of a start does not grow with the number
/// of open descriptors. Call it early.
void reserve_low_descriptors();

/// Processes that have loaded the program and wait to become a worker (--standby).
class Standbys {
 public:
  Standbys(boost::asio::io_context& io, Guard& guard) : guard_(guard), timer_(io) {}
  ~Standbys() { end(); }

  /// Keeps this many of them from now on. They start one by one, a second apart: next to a starting worker
  /// they would slow it down. If one ends early, that pause doubles.
  ///
  /// process    as for a worker, without descriptors
  /// may_start  whether the program is known to stand by; asked before each start
  void keep(int count, ProcessSpec process, std::function<bool()> may_start);

  /// Turns one of them into this worker, or starts a new process if none is available.
  std::variant<Process, StartFailure> start(const ProcessSpec& worker);

  /// Ends them all.
  void end();

 private:
  struct Standby {
    Process process;
    UniqueFd channel;
  };

  void fill();
  void start_one();
  bool become(const Standby& standby, const ProcessSpec& worker) const;
  void lose(const Standby& standby);
  void drop(const Standby& standby);

  Guard& guard_;
  Timer timer_;
  std::size_t count_ = 0;
  ProcessSpec process_;
  std::function<bool()> may_start_;
  std::vector<Standby> waiting_;
  std::chrono::seconds apart_{1};
  const std::shared_ptr<int> token_ = std::make_shared<int>();  ///< for the timer's handler: we still exist
};

}  // namespace ddprun::launcher
