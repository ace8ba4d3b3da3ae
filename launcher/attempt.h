#pragma once

#include <boost/asio/awaitable.hpp>
#include <map>
#include <string>
#include <vector>

#include "launcher/job.h"
#include "launcher/worker_group.h"

namespace ddprun {

/// One start of all workers, as it was when they had ended.
struct Attempt {
  int number = 0;  ///< from 0
  int port = 0;
  JobEvents::Clock::time_point start, end;
  GroupEvent event;                                      ///< what ended it
  std::vector<WorkerSpec> specs;                         ///< of all workers
  std::vector<Worker> workers;                           ///< of those that were started
  std::vector<std::vector<std::string>> last_lines;      ///< of each worker's stderr
  std::vector<std::vector<std::filesystem::path>> logs;  ///< each worker's files
  std::map<int, std::filesystem::path> stacks;  ///< by rank, where they were dumped; empty if nothing hung
  std::vector<int> ending_signals;              ///< that ddprun sent
  int user_signals = 0;                         ///< that wanted the job to end
  std::vector<pid_t> left;                      ///< processes that even SIGKILL did not end
};

/// What the workers of an attempt are to be, without starting them.
///
/// folder      of the attempt
/// store_fd, heartbeat_fds   for the workers; -1 and empty: none
std::vector<WorkerSpec> plan_attempt(const Job& job, int number, const std::filesystem::path& folder,
                                     int port, int store_fd, const std::vector<int>& heartbeat_fds);

/// Starts the workers, waits for what ends the attempt, and ends them all.
/// throws LaunchError, IoError, std::system_error if something of ddprun's own fails
boost::asio::awaitable<Attempt> run_attempt(Job& job, int number);

}  // namespace ddprun
