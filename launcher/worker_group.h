#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "common/exit_status.h"
#include "launcher/guard.h"
#include "launcher/job_events.h"
#include "launcher/launch_plan.h"
#include "launcher/process.h"

namespace ddprun {

struct AllSucceeded {};
struct WorkerFailed {
  std::size_t index;  ///< of the first one
};
struct StartFailed {
  std::size_t index;  ///< those before it were started
  StartFailure failure;
};

struct TimedOut {};
struct Hung {
  std::vector<std::size_t> workers;  ///< those without a sign of life
};

/// Why the job is over, or has to be ended now.
using GroupEvent = std::variant<AllSucceeded, WorkerFailed, SignalReceived, StartFailed, TimedOut, Hung>;

/// Asked for the workers that hang by now, and for when to ask again.
struct HangCheck {
  std::vector<std::size_t> hung;
  JobEvents::Clock::time_point next = JobEvents::Clock::time_point::max();
};
using FindHung = std::function<HangCheck(JobEvents::Clock::time_point now)>;

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
  WorkerGroup(JobEvents& events, const SignalFd& signals, Guard& guard);
  ~WorkerGroup();
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  /// Starts one worker after the other. Stops early when one cannot be started, which is returned, or when
  /// the user wants the job to end, which wait() then returns.
  std::optional<StartFailed> start(const std::string& program, const std::vector<WorkerSpec>& specs);

  /// Until all have succeeded, one has failed, a signal wants the job to end, the deadline has passed, or
  /// find_hung names workers that hang.
  boost::asio::awaitable<GroupEvent> wait(std::optional<JobEvents::Clock::time_point> deadline,
                                          const FindHung& find_hung);

  /// Asks every group that has members left to end, kills it once the grace period has passed or the user has
  /// signalled twice, and waits until all are gone. returns the processes that even SIGKILL did not end
  boost::asio::awaitable<std::vector<pid_t>> stop(int signal, std::chrono::milliseconds grace);

  const std::vector<Worker>& workers() const { return workers_; }
  /// The signals that ddprun sent to end the workers.
  const std::vector<int>& ending_signals() const { return ending_signals_; }
  /// When the job went on after it was stopped by SIGTSTP; else the epoch.
  JobEvents::Clock::time_point resumed() const { return resumed_; }

 private:
  boost::asio::awaitable<bool> groups_gone(JobEvents::Clock::time_point deadline, bool may_hurry);
  void handle(const JobEvent& event);
  void record_exit(Worker& worker);
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
  std::vector<Worker> workers_;
  std::vector<int> ranks_;  ///< by index, of all that are planned
  std::vector<int> ending_signals_;
  std::set<pid_t> told_strays_;  ///< have got the last of ending_signals_
  JobEvents::Clock::time_point resumed_;
  int user_signals_ = 0;  ///< signals of the user that want the job to end
  bool stopping_ = false;
};

}  // namespace ddprun
