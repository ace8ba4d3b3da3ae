#pragma once

#include <boost/asio/awaitable.hpp>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/common/held_port.h>
#include "launcher/job/job.h"
#include "launcher/rendezvous/round.h"
#include "launcher/workers/worker_group.h"

namespace ddprun::launcher {

/// One start of all workers, and how they ended.
struct Attempt {
  Round round;
  JobEvents::Clock::time_point start, end;
  AttemptEnd outcome;
  std::vector<WorkerSpec> specs;                         ///< of all workers
  std::vector<Worker> workers;                           ///< those that were started
  std::vector<std::vector<std::string>> last_lines;      ///< of each worker's stderr
  std::vector<std::vector<std::filesystem::path>> logs;  ///< each worker's files
  std::map<int, std::filesystem::path> stacks;           ///< by rank, if they were dumped
  std::vector<int> ending_signals;                       ///< sent by ddprun
  std::vector<int> user_signals;                         ///< that end the job
  std::vector<pid_t> left;                               ///< processes that SIGKILL did not end
};

/// Plans the workers of an attempt.
///
/// store_fd, heartbeat_fds   for the workers; -1 and empty: none
std::vector<WorkerSpec> plan_attempt(const Job& job, const Round& round, int store_fd,
                                     const std::vector<int>& heartbeat_fds);

/// The other nodes; empty on one node.
struct Peers {
  PeerEndReason end_reason;
  /// Called as soon as the attempt's outcome is known, before the workers are stopped.
  std::function<void(const Attempt& attempt)> report_end;
};

/// Starts the workers, waits for the attempt's outcome, and stops them all.
///
/// port     the round's master port, if this node has rank 0
/// throws   LaunchError, IoError, std::system_error for ddprun's own failures
boost::asio::awaitable<Attempt> run_attempt(Job& job, Round round, std::optional<HeldPort> port,
                                            Peers peers = {});

}  // namespace ddprun::launcher
