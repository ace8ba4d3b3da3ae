#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstdint>
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
  std::vector<StreamPlan> err_plans;                     ///< each worker's stderr
  std::vector<ErrorFileContent> errors;                  ///< what each worker has reported, once it was read
  std::map<int, std::filesystem::path> stacks;           ///< by rank, if they were dumped
  std::vector<int> ending_signals;                       ///< sent by ddprun
  std::vector<int> user_signals;                         ///< that end the job
  std::vector<pid_t> left;                               ///< processes that SIGKILL did not end
  std::vector<Straggler> stragglers;                     ///< ranks that were slow for a while
  bool unannounced = false;  ///< --recover=rank: a worker has never said whether it can go on without another
  WorkerStatus said;         ///< last report of the worker on this node that accounts for most time
  std::optional<std::int64_t> first_step;  ///< reported by that worker
  Reached reached;                         ///< by any worker on this node
};

/// A round in which only lost workers are restarted, and its master port if this node has rank 0.
struct NextRound {
  Round round;
  std::optional<HeldPort> port;
};

/// Whoever runs attempts, and knows the rest of the job: the supervisor of the only node, or of one of
/// several.
class Supervisor : public Peers {
 public:
  /// A worker has failed, and the others can continue without it (--recover=rank): whether it is replaced, on
  /// several nodes once they begin a round.
  virtual bool replaces(const Attempt& attempt, const std::vector<Worker>& workers) = 0;
  /// The round that begins.
  virtual NextRound next_round(const Attempt& attempt) = 0;

  // With other nodes.

  virtual bool has_peers() const { return false; }
  /// Called as soon as the attempt's outcome is known, before the workers are stopped.
  virtual void report_end(const Attempt&) {}
  /// This node's workers cannot start now: it leaves if the job can go on without it; then end_reason() says
  /// so.
  virtual void ask_to_leave(const std::string& /*problem*/) {}
  /// The workers of the attempt's round have started, or have been told of it.
  virtual void note_running(const Attempt&) {}
  /// Tells the other nodes about the signs of life of this node's workers. returns what is known of the job's
  virtual KnownSigns share_signs(const KnownSigns& own) { return own; }
  /// This node's workers cannot continue in that round. returns why, after telling the other nodes
  virtual std::string decline(const Attempt&) { return ""; }
};

/// Starts the workers, waits for the attempt's outcome, and stops them all.
///
/// port    the round's master port, if this node has rank 0
/// throws  LaunchError, IoError, std::system_error for ddprun's own failures
boost::asio::awaitable<Attempt> run_attempt(Job& job, Supervisor& supervisor, Round round,
                                            std::optional<HeldPort> port);

/// Why the attempt failed, in one line for other nodes: "rank 3 failed: exit code 7: out of range".
std::string describe_end(const Attempt& attempt);

/// The same for a failed worker that is to be replaced, and whether it ran out of memory.
std::string describe_loss(const Attempt& attempt, const std::vector<Worker>& workers, OomWatch& oom);

/// Reports how an attempt ended: to the user, to the program that started ddprun, and in the record.
///
/// throws  LaunchError, after that, if a worker could not start, or if a process survived SIGKILL
boost::asio::awaitable<void> report_attempt(const Job& job, const Attempt& attempt, OomWatch& oom,
                                            JobRecord& record);

/// For run_aside(): whether a signal that ends the job has come.
std::function<bool()> gives_up(const Job& job);

/// If a worker failed: turns the outcome from the first exit into the worker that failed first, and its exit.
/// A crash comes before an exit and before an error. A worker that had written its error file before is about
/// to exit, within two seconds, for its exit code is the job's; or it may have recovered from the error, and
/// is only one of those that reported before.
boost::asio::awaitable<void> find_first_failure(const Job& job, WorkerGroup& group, Attempt& attempt);

/// Reads what workers have reported: those that have failed, or all for --result-json.
boost::asio::awaitable<void> read_errors(const Job& job, const std::vector<Worker>& workers,
                                         Attempt& attempt);

/// An error file that was there when the first exit of a failed worker was noticed.
struct ErrorSeen {
  std::int64_t reported = 0;    ///< by the worker, in seconds of this host's clock; 0: unknown
  std::int64_t written_ns = 0;  ///< by the clock of the file system, which may be another one
  ErrorFileContent content = {};
};

/// The worker that failed first. The first to exit may have failed because of another one, which takes longer
/// to exit but had written its error file before. Of several files the oldest counts; their times are
/// compared only with each other.
///
/// first  the first to exit
/// seen   by worker; nullopt also for one that has succeeded
std::size_t root_cause(std::size_t first, const std::vector<std::optional<ErrorSeen>>& seen);

/// Whether a worker that lives may be about to exit with this error. False: it has long recovered.
///
/// now  in seconds of this host's clock
bool may_exit_soon(const ErrorSeen& error, std::int64_t now);

}  // namespace ddprun::launcher
