#pragma once

#include <unistd.h>

#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <deque>
#include <functional>
#include <list>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include "launcher/events/clock.h"
#include "launcher/events/launch_error.h"
#include "launcher/events/signals.h"

namespace ddprun::launcher {

struct WorkerExited {
  std::size_t index;  ///< as passed to watch_exit
};
struct ChildEnded {};  ///< any child, perhaps an orphan of a worker
struct DeadlinePassed {};
struct PeerEvent {};  ///< something arrived from the job's other nodes
struct OwnFailure {   ///< an exception in a handler of the loop
  int exit_code;
  std::string message;
};

using JobEvent =
    std::variant<WorkerExited, SignalReceived, ChildEnded, DeadlinePassed, PeerEvent, OwnFailure>;

/// While no worker runs, a handler's failure ends the job.
inline void throw_if_failed(const JobEvent& event) {
  if (const auto* failure = std::get_if<OwnFailure>(&event))
    throw LaunchError(failure->exit_code, failure->message);
}

/// Everything that can happen to a running job, in the order the kernel saw it. The loop takes one event at a
/// time and decides; handlers only queue.
class JobEvents {
 public:
  using Clock = LoopClock;

  JobEvents(boost::asio::io_context& io, const SignalFd& signals);
  ~JobEvents();

  /// Reports the exit of this process. The caller keeps the descriptor.
  void watch_exit(std::size_t index, int pidfd);

  /// Stops watching it, before the caller closes the descriptor of a worker that has been replaced.
  void forget_exit(int pidfd);

  /// Drops pending exits, once all watched workers have been reaped.
  void forget_exits();

  void push(JobEvent event);

  /// Also tells this function each signal as it comes, and SIGCHLD before somebody reaps the child.
  void on_signal(std::function<void(int)> tell) { tell_ = std::move(tell); }

  /// Asks this function first about each signal from outside: one for which it returns true is no event.
  void handle_instead(std::function<bool(int)> handle) { instead_ = std::move(handle); }

  /// True if next() would not wait.
  bool pending() const { return !events_.empty(); }
  /// True if a signal that ends the job is among the events.
  bool end_requested() const;
  /// How many signals that end the job have come.
  int end_signals() const { return end_signals_; }

  /// The next event; DeadlinePassed if none arrives in time.
  boost::asio::awaitable<JobEvent> next(std::optional<Clock::time_point> deadline = std::nullopt);

 private:
  using Descriptor = boost::asio::posix::stream_descriptor;

  void watch_signals();
  void read_signals();
  void judge_doubtful();

  boost::asio::io_context& io_;
  const SignalFd& handled_;
  int end_signals_ = 0;
  std::function<void(int)> tell_;
  std::function<bool(int)> instead_;
  Descriptor signals_;
  const pid_t parent_ = std::max(::getppid(), 1);  ///< 0 stands for all processes outside a container
  SignalsOnce signals_once_{parent_, [this](int signal) { return handled_.ends_job(signal); }};
  std::list<Descriptor> pidfds_;
  int generation_ = 0;  ///< of pidfds_: a handler may be queued when exits are forgotten
  Timer wake_up_;       ///< cancelled when an event arrives
  std::deque<JobEvent> events_;
  std::set<int> doubtful_;  ///< signals that the parent has sent again at once
  Timer judge_;             ///< them
};

}  // namespace ddprun::launcher
