#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include <ddprun/common/files.h>

namespace ddprun::launcher {

/// Heartbeats of the workers. Each inherits the writing end of a pipe as DDPRUN_HEARTBEAT_FD; every byte
/// written there is a beat. Writing never blocks: if the pipe is full (EAGAIN), a beat is already queued.
///
/// Pipes are read at most ten times a second, so that short steps do not keep ddprun busy; a beat may seem up
/// to 0.1 s younger than it is.
class Heartbeats {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Heartbeats(boost::asio::io_context& io) : io_(io) {}
  ~Heartbeats();
  Heartbeats(const Heartbeats&) = delete;
  Heartbeats& operator=(const Heartbeats&) = delete;

  /// Opens the pipe of the next worker, from index 0. returns its writing end, to close once the worker has
  /// inherited it. throws std::system_error
  UniqueFd add();

  /// When the worker's latest beat was seen; nullopt: never.
  std::optional<Clock::time_point> last_beat(std::size_t index) const;

 private:
  struct Pipe;
  static void watch(const std::shared_ptr<Pipe>& pipe);
  static void take_beats(const std::shared_ptr<Pipe>& pipe);

  boost::asio::io_context& io_;
  std::vector<std::shared_ptr<Pipe>> pipes_;
};

}  // namespace ddprun::launcher
