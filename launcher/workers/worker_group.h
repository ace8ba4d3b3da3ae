#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include <ddprun/common/exit_status.h>
#include <ddprun/common/unique_fd.h>
#include "launcher/events/events_json.h"
#include "launcher/events/job_events.h"
#include "launcher/plan/launch_plan.h"
#include "launcher/rendezvous/attempt_end.h"
#include "launcher/workers/guard.h"
#include "launcher/workers/hang_policy.h"
#include "launcher/workers/process.h"

namespace ddprun::launcher {

/// Asked again at the time that it names.
using FindHung = std::function<std::variant<LookAgain, Hung>(JobEvents::Clock::time_point now)>;

/// Asked after each event: why the job's other nodes want the workers to end, if they do.
using PeersWantEnd = std::function<std::optional<std::string>()>;

/// A worker's stdout and stderr; what is not set is ddprun's own.
struct WorkerOutputs {
  UniqueFd out, err;
};

/// A worker that was started.
struct Worker {
  Process process;
  JobEvents::Clock::time_point started;
  std::optional<ExitStatus> status;  ///< once it has ended; its children may live on
  JobEvents::Clock::time_point ended;
  bool asked_to_end = false;  ///< it ended after ddprun had begun to stop the group
  bool group_gone = false;    ///< nobody is left in its process group
};

/// The workers of this node, and with each of them its process group: everything that it started itself. What
/// has left its group, as a daemon does, becomes a child of ddprun, which is its subreaper, and ends with the
/// job as well. Destroyed while some of them live, it kills them.
class WorkerGroup {
 public:
  /// attempt  for the log
  WorkerGroup(JobEvents& events, const SignalFd& signals, Guard& guard, EventsJson& log, int attempt);
  ~WorkerGroup();
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  /// Starts one worker after the other. Stops early when one cannot be started, which is returned, or when
  /// the user wants the job to end, which wait() then returns.
  std::optional<StartFailed> start(const std::string& program, const std::vector<WorkerSpec>& specs,
                                   std::vector<WorkerOutputs> outputs);

  /// Until all have succeeded, one has failed, a signal wants the job to end, the deadline has passed,
  /// find_hung names workers that hang, or the other nodes want an end.
  boost::asio::awaitable<AttemptEnd> wait(std::optional<JobEvents::Clock::time_point> deadline,
                                          const FindHung& find_hung, const PeersWantEnd& peers_want_end);

  /// Asks every group that has members left to end, kills it once the grace period has passed or the user has
  /// signalled twice, and waits until all are gone. returns the processes that even SIGKILL did not end
  boost::asio::awaitable<std::vector<pid_t>> stop(int signal, std::chrono::milliseconds grace);

  void on_window_change(std::function<void()> callback) { on_window_change_ = std::move(callback); }
  void log_first_output(std::size_t index) const { log_worker(EventRecord::Kind::kFirstOutput, index); }

  /// Handles one event, such as the end of a child that is no worker's. False if the deadline has passed or
  /// the user wants the job to end.
  boost::asio::awaitable<bool> wait_for_event(JobEvents::Clock::time_point deadline);

  const std::vector<Worker>& workers() const { return workers_; }
  /// Once they have all ended.
  std::vector<Worker> take_workers() { return std::move(workers_); }
  /// The signals that ddprun sent to end the workers.
  const std::vector<int>& ending_signals() const { return ending_signals_; }
  /// The signals of the user that wanted the job to end.
  const std::vector<int>& user_signals() const { return user_signals_; }
  /// When the job went on after it was stopped by SIGTSTP; else the epoch.
  JobEvents::Clock::time_point resumed() const { return resumed_; }

 private:
  boost::asio::awaitable<bool> groups_gone(JobEvents::Clock::time_point deadline, bool may_hurry);
  struct Place {
    int rank, local_rank;
  };
  void handle(const JobEvent& event);
  void log_worker(EventRecord::Kind kind, std::size_t index) const;
  void record_exit(std::size_t index);
  void reap_orphans();
  void check_group(Worker& worker);
  void signal_all(int signal);
  void signal_to_end(int signal);
  void signal_strays();
  void stop_with_the_job();
  std::vector<pid_t> strays() const;
  bool all_gone() const;
  bool is_running_worker(pid_t pid) const;
  std::string ranks_left() const;
  std::vector<pid_t> processes_left() const;

  JobEvents& events_;
  const SignalFd& signals_;
  Guard& guard_;
  EventsJson& log_;
  int attempt_;
  std::vector<Worker> workers_;
  std::vector<Place> places_;  ///< by index, of all that are planned
  std::vector<int> ending_signals_;
  std::function<void()> on_window_change_;
  std::set<pid_t> told_strays_;  ///< have got the last of ending_signals_
  JobEvents::Clock::time_point resumed_;
  std::vector<int> user_signals_;  ///< that want the job to end
  bool stopping_ = false;
};

}  // namespace ddprun::launcher
