#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include <ddprun/common/error_file.h>
#include <ddprun/common/files.h>
#include "launcher/events/events_json.h"
#include "launcher/events/job_events.h"
#include "launcher/events/restart_policy.h"
#include "launcher/plan/launch_plan.h"
#include "launcher/workers/guard.h"
#include "launcher/workers/job_processes.h"
#include "launcher/workers/preload.h"
#include "launcher/workers/process.h"
#include "launcher/workers/worker_pipes.h"

namespace ddprun::launcher {

/// Called again at the time it returns.
using FindHung = std::function<std::variant<LookAgain, Hung>(JobEvents::Clock::time_point now)>;

/// The job's other nodes, asked after each event; on a single node there are none.
class Peers {
 public:
  virtual ~Peers() = default;
  /// Why they want the workers to end, if they do.
  virtual std::optional<EndedByPeers> end_reason() { return {}; }
  /// Whether they begin a round in which lost workers are replaced.
  virtual bool begins_round() { return false; }
};

/// A started worker.
struct Worker {
  Process process;
  JobEvents::Clock::time_point started;
  int attempt = 0;                   ///< or round, in which it was started
  std::optional<ExitStatus> status;  ///< set once it has ended; its children may live on
  bool exit_seen = false;            ///< its event has come; a debugger may still have its status for itself
  JobEvents::Clock::time_point ended;
  bool asked_to_end = false;  ///< it ended after ddprun began to stop the group
  std::vector<pid_t> asked;   ///< have got the signal to end; the rest of the group gets it after their end
  std::vector<NotAsked> not_asked;  ///< of its program; get the signal if they go on
  bool group_gone = false;          ///< its process group is empty

  bool succeeded() const { return status && status->success(); }
};

/// The workers of this node with their process groups. Processes that leave a group, like daemons, become
/// children of ddprun, the subreaper, and end with the job too. The destructor kills surviving workers.
class WorkerGroup {
 public:
  /// whole_groups  end all processes of a worker at once
  /// preload       null, or what workers are forked from if it has a fork
  WorkerGroup(JobEvents& events, const SignalFd& signals, Guard& guard, EventsJson& log, int attempt,
              bool whole_groups, Preload* preload);
  ~WorkerGroup();
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  /// Starts the workers in order. Returns early if one cannot start, or if the user ends the job, which
  /// wait() then returns. specs must outlive the group.
  ///
  /// open_output  called for each of them in turn
  std::optional<StartFailed> start(const std::string& program, const std::vector<WorkerSpec>& specs,
                                   const std::function<WorkerOutputs(std::size_t index)>& open_output);

  /// Replaces an ended worker, perhaps with one of the standbys; processes that it left behind get SIGTERM,
  /// and SIGKILL after the grace period. returns  the ended one; or why the new one cannot start, in which
  /// case the old one keeps its place
  std::variant<Worker, StartFailed> replace(std::size_t index, int round, const std::string& program,
                                            WorkerOutputs output, Standbys& standbys,
                                            std::chrono::milliseconds grace);

  /// Records the ends of workers whose events are still queued.
  void record_exits();

  /// Waits until all workers succeed, one fails, a signal ends the job, the deadline passes, workers hang, or
  /// the other nodes end the attempt. nullopt: they begin a round
  boost::asio::awaitable<std::optional<AttemptEnd>> wait(std::optional<JobEvents::Clock::time_point> deadline,
                                                         const FindHung& find_hung, Peers& peers);

  /// Signals every worker, and the rest of its group once its program has ended, or five seconds before the
  /// grace period ends, half of it at most (SIGTERM if that ignores the signal then); sends SIGKILL after it
  /// or the user's second signal. returns what even that did not end
  boost::asio::awaitable<std::vector<pid_t>> stop(int signal, std::chrono::milliseconds grace);

  void on_window_change(std::function<void()> callback) { on_window_change_ = std::move(callback); }
  void log_first_output(std::size_t index) const { log_worker(EventRecord::Kind::kFirstOutput, index); }

  /// Handles one event, such as the end of an orphan. False once the deadline passes or the user ends the
  /// job.
  boost::asio::awaitable<bool> wait_for_event(JobEvents::Clock::time_point deadline);

  const std::vector<Worker>& workers() const { return workers_; }
  std::vector<Worker> take_workers() { return std::move(workers_); }
  /// The signals that ddprun sent to end the workers.
  const std::vector<int>& ending_signals() const { return ending_signals_; }
  /// The user's signals that end the job.
  const std::vector<int>& user_signals() const { return user_signals_; }
  /// Whether a handler of the loop has thrown: what it worked on, such as a worker's output, may stand still.
  bool loop_failed() const { return loop_failed_; }
  /// When the job last continued after a stop; else the epoch.
  JobEvents::Clock::time_point resumed() const { return resumed_; }

 private:
  boost::asio::awaitable<bool> groups_gone(JobEvents::Clock::time_point deadline, bool can_hurry);
  std::optional<StartFailed> start_worker(std::size_t index, const std::string& program, WorkerOutputs output,
                                          Worker& worker, Standbys* standbys);
  void handle(const JobEvent& event);
  void log_worker(EventRecord::Kind kind, std::size_t index) const;
  void record_exit(std::size_t index);
  void reap();
  std::optional<std::size_t> running_worker(pid_t pid) const;
  void check_group(Worker& worker);
  bool look_for_processes();
  void signal_all(int signal);
  void pass_on(int signal);
  JobEvents::Clock::time_point make_offers();
  void signal_to_end(int signal);
  void ask_to_end(Worker& worker, int signal);
  void ask_the_rest(Worker& worker);
  bool ask_who_goes_on();
  void ask_all_the_rest();
  void end_background();
  JobEvents::Clock::time_point kill_leftovers(JobEvents::Clock::time_point now);
  void suspend(int signal = SIGTSTP);
  void stay_off_terminal();
  std::vector<pid_t> strays() const;
  std::string ranks_left() const;
  std::vector<pid_t> processes_left() const;

  JobEvents& events_;
  const SignalFd& signals_;
  Guard& guard_;
  EventsJson& log_;
  int attempt_;  ///< or the last round
  bool whole_groups_;
  Preload* preload_;
  std::vector<Worker> workers_;
  std::unordered_map<pid_t, std::size_t> index_of_;  ///< by the worker's pid
  bool has_child_ended_ = false;                     ///< since reap()
  std::span<const WorkerSpec> specs_;
  std::vector<int> ending_signals_;
  std::vector<std::pair<pid_t, JobEvents::Clock::time_point>> leftovers_;  ///< groups of replaced workers
  /// A signal that is passed on, and the groups that are still asked.
  struct Offer {
    int signal;
    JobEvents::Clock::time_point next, until;
    std::set<pid_t> left;
  };
  std::vector<Offer> offers_;
  std::function<void()> on_window_change_;
  std::set<std::pair<pid_t, int>> signalled_;  ///< strays, and signals since the last of ending_signals_
  JobEvents::Clock::time_point resumed_;
  JobEvents::Clock::duration stopped_{};  ///< for how long the job has been stopped since it was told to end
  bool loop_failed_ = false;
  bool may_be_in_background_ = false;  ///< it was continued, perhaps with `bg`
  std::vector<int> user_signals_;      ///< those that end the job
};

}  // namespace ddprun::launcher
