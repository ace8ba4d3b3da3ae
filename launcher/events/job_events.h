#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <list>
#include <optional>
#include <variant>

#include "launcher/events/signals.h"

namespace ddprun::launcher {

struct WorkerExited {
  std::size_t index;  ///< as given to watch_exit
};
struct ChildEnded {};  ///< some child, perhaps one that a worker left to us
struct DeadlinePassed {};
struct PeerNews {};  ///< something has come from the job's other nodes

using JobEvent = std::variant<WorkerExited, SignalReceived, ChildEnded, DeadlinePassed, PeerNews>;

/// Everything that can happen to a running job, one after the other, in the order in which the kernel saw it.
/// Nothing is acted on where it is noticed: the loop takes one event at a time and decides.
class JobEvents {
 public:
  using Clock = std::chrono::steady_clock;

  JobEvents(boost::asio::io_context& io, const SignalFd& signals);
  ~JobEvents();

  /// From now on the end of this process is an event. The descriptor remains the caller's.
  void watch_exit(std::size_t index, int pidfd);

  /// The workers that were watched have all been reaped: what is still to be told of them is not.
  void forget_exits();

  /// For what is noticed elsewhere.
  void push(JobEvent event);

  /// True if next() would not wait.
  bool pending() const { return !events_.empty(); }

  /// The next event; DeadlinePassed if none comes in time.
  boost::asio::awaitable<JobEvent> next(std::optional<Clock::time_point> deadline = std::nullopt);

 private:
  using Descriptor = boost::asio::posix::stream_descriptor;

  void watch_signals();
  void read_signals();

  boost::asio::io_context& io_;
  Descriptor signals_;
  std::list<Descriptor> pidfds_;
  int generation_ = 0;                 ///< of pidfds_: an exit may be on its way when it is forgotten
  boost::asio::steady_timer wake_up_;  ///< cancelled when an event has come
  std::deque<JobEvent> events_;
};

}  // namespace ddprun::launcher
