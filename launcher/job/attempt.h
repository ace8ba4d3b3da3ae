#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ddprun/common/error_file.h>
#include <ddprun/common/held_port.h>
#include <ddprun/common/status.h>
#include "launcher/job/job.h"
#include "launcher/outcome/oom.h"
#include "launcher/outcome/result_json.h"
#include "launcher/rendezvous/message.h"
#include "launcher/status/progress.h"
#include "launcher/workers/worker_group.h"

namespace ddprun::launcher {

/// A replaced worker (--recover=rank).
struct LostWorker {
  WorkerSpec spec;
  Worker worker;
  std::vector<std::filesystem::path> logs;
  ErrorFileContent error = {};  ///< what it has reported
};

/// One start of all workers, and how they ended.
struct Attempt {
  Round round;
  JobEvents::Clock::time_point start, round_start, end;
  AttemptEnd outcome;
  std::set<int> reported_before;  ///< ranks with an error file from before the failure, which had not exited
  std::vector<WorkerSpec> specs;  ///< of all workers
  std::vector<Worker> workers;    ///< those that were started
  std::vector<LostWorker> lost;
  std::vector<std::vector<std::string>> last_lines;      ///< of each worker's stderr
  std::vector<std::vector<std::filesystem::path>> logs;  ///< each worker's files
  std::vector<ErrorFileContent> errors;                  ///< what each worker has reported, once it was read
  std::map<int, std::filesystem::path> stacks;           ///< by rank, if they were dumped
  std::vector<int> ending_signals;                       ///< sent by ddprun
  std::vector<int> user_signals;                         ///< that end the job
  std::vector<pid_t> left;                               ///< processes that SIGKILL did not end
  std::vector<Straggler> stragglers;                     ///< ranks that were slow for a while
  bool unannounced = false;  ///< --recover=rank: a worker has never said whether it can go on without another
  WorkerStatus said;         ///< last report of the worker on this node that accounts for most time
  std::optional<std::int64_t> first_step;  ///< reported by that worker
};

/// The workers' ends of their descriptors, by index; empty: none.
struct WorkerEnds {
  std::vector<UniqueFd> heartbeats, statuses, rounds;

  /// Once the worker has inherited them.
  void close(std::size_t index) {
    for (auto* ends : {&heartbeats, &statuses, &rounds})
      if (index < ends->size()) (*ends)[index].reset();
  }
};

/// Plans the workers of an attempt.
///
/// store_fd  for rank 0; -1: none
std::vector<WorkerSpec> plan_attempt(const Job& job, const Round& round, int store_fd,
                                     const WorkerEnds& ends = {});

/// The other nodes; empty on a single node.
struct Peers {
  PeerEndReason end_reason;
  /// Called as soon as the attempt's outcome is known, before the workers are stopped.
  std::function<void(const Attempt& attempt)> report_end;
  /// Called after each event: whether the nodes begin a round in which lost workers are replaced.
  Interrupted begins_round;
  /// Tells the other nodes about the signs of life of this node's workers. returns what is known of the job's
  std::function<KnownSigns(const KnownSigns& own)> share_signs;
  /// This node's workers cannot continue in that round. returns why, after telling the other nodes
  std::function<std::string(const Attempt& attempt)> decline;
};

/// A round in which only lost workers are restarted, and its master port if this node has rank 0.
struct NextRound {
  Round round;
  std::optional<HeldPort> port;
};

/// How workers are replaced one by one (--recover=rank).
struct Replacing {
  /// A worker has failed, and the others can continue without it: whether to wait for the nodes to begin a
  /// round in which it is replaced.
  std::function<bool(const Attempt& attempt, pid_t failed)> ask;
  /// The round that begins.
  std::function<NextRound(const Attempt& attempt)> next;
};

/// Starts the workers, waits for the attempt's outcome, and stops them all.
///
/// port    the round's master port, if this node has rank 0
/// throws  LaunchError, IoError, std::system_error for ddprun's own failures
boost::asio::awaitable<Attempt> run_attempt(Job& job, Round round, std::optional<HeldPort> port,
                                            const Replacing& replacing, Peers peers = {});

/// Why the attempt failed, in one line for other nodes: "rank 3 failed: exit code 7: out of range".
std::string describe_end(const Attempt& attempt);

/// The same for a failed worker that is to be replaced, and whether it ran out of memory.
std::string describe_loss(const Attempt& attempt, pid_t failed, OomWatch& oom);

/// Reports how an attempt ended: to the user, to the program that started ddprun, and in the record.
///
/// throws  LaunchError, after that, if a worker could not start, or if a process survived SIGKILL
void report_attempt(const Job& job, const Attempt& attempt, OomWatch& oom, JobRecord& record);

/// If a worker failed: turns the outcome from the first exit into the worker that failed first, and its exit.
/// A crash comes before an exit and before an error. A worker that had written its error file before is about
/// to exit, within two seconds, for its exit code is the job's; or it may have recovered from the error, and is only one of those that reported before.
boost::asio::awaitable<void> find_first_failure(const Job& job, WorkerGroup& group, Attempt& attempt);

/// Reads what workers have reported: those that have failed, or all for --result-json.
boost::asio::awaitable<void> read_errors(const Job& job, const std::vector<Worker>& workers,
                                         Attempt& attempt);

}  // namespace ddprun::launcher
