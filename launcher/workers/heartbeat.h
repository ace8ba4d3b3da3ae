#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include <ddprun/common/unique_fd.h>

namespace ddprun::launcher {

/// Signs of life that the workers send. Each has a pipe of its own, whose writing end it inherits as
/// DDPRUN_HEARTBEAT_FD: every byte written there, whatever its value, is one. Writing never blocks a worker:
/// a full pipe gives EAGAIN, and holds beats enough.
///
/// A pipe is looked at ten times a second at most, so that workers with short steps do not keep ddprun busy;
/// a beat may thus be taken for up to 0.1 s younger than it is.
class Heartbeats {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Heartbeats(boost::asio::io_context& io) : io_(io) {}
  ~Heartbeats();
  Heartbeats(const Heartbeats&) = delete;
  Heartbeats& operator=(const Heartbeats&) = delete;

  /// The pipe of the next worker, from index 0 on. returns its writing end, to be inherited by the worker and
  /// then closed. throws std::system_error
  UniqueFd add();

  /// When the worker's latest beat was seen; nullopt if it never sent one.
  std::optional<Clock::time_point> last_beat(std::size_t index) const;

 private:
  struct Pipe;
  static void watch(const std::shared_ptr<Pipe>& pipe);
  static void take_beats(const std::shared_ptr<Pipe>& pipe);

  boost::asio::io_context& io_;
  std::vector<std::shared_ptr<Pipe>> pipes_;
};

}  // namespace ddprun::launcher
