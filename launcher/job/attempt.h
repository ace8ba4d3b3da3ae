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

/// One start of all workers, as it was when they had ended.
struct Attempt {
  Round round;
  JobEvents::Clock::time_point start, end;
  AttemptEnd outcome;
  std::vector<WorkerSpec> specs;                         ///< of all workers
  std::vector<Worker> workers;                           ///< of those that were started
  std::vector<std::vector<std::string>> last_lines;      ///< of each worker's stderr
  std::vector<std::vector<std::filesystem::path>> logs;  ///< each worker's files
  std::map<int, std::filesystem::path> stacks;  ///< by rank, where they were dumped; empty if nothing hung
  std::vector<int> ending_signals;              ///< that ddprun sent
  std::vector<int> user_signals;                ///< that wanted the job to end
  std::vector<pid_t> left;                      ///< processes that even SIGKILL did not end
};

/// What the workers of an attempt are to be, without starting them.
///
/// folder      of the attempt
/// store_fd, heartbeat_fds   for the workers; -1 and empty: none
std::vector<WorkerSpec> plan_attempt(const Job& job, const Round& round, const std::filesystem::path& folder,
                                     int store_fd, const std::vector<int>& heartbeat_fds);

/// The other nodes' part in an attempt; empty on one node.
struct Peers {
  PeersWantEnd want_end;
  /// Called as soon as it is known what ends the attempt here, before the workers are ended.
  std::function<void(const Attempt& attempt)> tell;
};

/// Starts the workers, waits for what ends the attempt, and ends them all.
///
/// port     the round's master port, if this node has rank 0
/// throws   LaunchError, IoError, std::system_error if something of ddprun's own fails
boost::asio::awaitable<Attempt> run_attempt(Job& job, Round round, std::optional<HeldPort> port,
                                            Peers peers = {});

}  // namespace ddprun::launcher
