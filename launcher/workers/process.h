#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ddprun/common/error_file.h>
#include <ddprun/common/files.h>
#include "launcher/events/clock.h"
#include "launcher/plan/launch_plan.h"
#include "launcher/workers/guard.h"

namespace ddprun::launcher {

/// What becomes a process's standard streams.
struct StandardFds {
  int in = 0, out = 1, err = 2;
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
/// ignored) and only these descriptors and the worker's, which keep their numbers; the kernel kills it if
/// ddprun dies. Returns once the child
/// runs the new program, or has failed to. Call it from the main thread: the kernel sends the parent-death
/// signal when the *thread* that started the child ends.
///
/// announce_fd  where the new process writes its pid before it runs the program; -1: nowhere
std::variant<Process, StartFailure> start_process(const std::string& program, const WorkerSpec& worker,
                                                  const StandardFds& fds, int announce_fd);

/// Reaps the process if it has ended. Do not call it again once it has returned a status.
std::optional<ExitStatus> try_reap(const Process& process);

/// Signals every member of the process's group (0: only checks). False if none is left.
bool signal_group(const Process& process, int signal);

/// Two connected sockets for packets (SOCK_SEQPACKET): one end is for another process.
/// throws  std::system_error
std::pair<UniqueFd, UniqueFd> socket_pair();

/// Returns once the program's disk has answered. A child that becomes a program on a disk that does not would
/// hold up the event loop: call it aside, before start_process().
void look_at_program(const std::string& path);

/// Whether the child is still running. If so, it is not reaped before the next event is handled.
bool lives(pid_t child);

/// Turns a process that waits for a StandbyOrder into this worker. Does not wait. False: it is gone.
///
/// channel  to the process
/// known    the worker that it was started as
bool make_worker(pid_t pid, int channel, const WorkerSpec& worker, const StandardFds& fds,
                 const WorkerSpec& known);

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
  /// worker     a worker's without its descriptors
  /// may_start  whether the program is known to stand by; asked before each start
  void keep(int count, std::string program, WorkerSpec worker, std::function<bool()> may_start);

  /// How many live.
  std::size_t ready() const;

  /// Turns one of them into this worker; nullopt: none is available.
  std::optional<Process> become(const WorkerSpec& worker, const StandardFds& fds);

  /// Ends them all.
  void end();

 private:
  struct Standby {
    Process process;
    UniqueFd channel;
  };

  void fill();
  void look_and_start();
  void start_one();
  void lose(const Standby& standby);
  void drop(const Standby& standby);

  Guard& guard_;
  Timer timer_;
  std::size_t count_ = 0;
  std::string program_;
  WorkerSpec worker_;  ///< what each of them is started as
  std::function<bool()> may_start_;
  std::vector<Standby> waiting_;
  std::chrono::seconds apart_{1};
  const std::shared_ptr<int> token_ = std::make_shared<int>();  ///< for the timer's handler: we still exist
};

}  // namespace ddprun::launcher
