#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "launcher/workers/worker_pipes.h"

namespace ddprun::launcher {

/// Heartbeats of the workers. Each inherits the writing end of a pipe as DDPRUN_HEARTBEAT_FD; every byte
/// written there is a beat.
class Heartbeats {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Heartbeats(boost::asio::io_context& io)
      : pipes_(io, [this](std::size_t index, std::string_view) { last_beats_[index] = Clock::now(); }) {}

  /// Opens a worker's pipe, like WorkerPipes::open.
  UniqueFd open(std::size_t index) {
    if (last_beats_.size() <= index) last_beats_.resize(index + 1);
    last_beats_[index].reset();
    return pipes_.open(index);
  }

  /// When the worker's latest beat was seen; nullopt: never.
  std::optional<Clock::time_point> last_beat(std::size_t index) const { return last_beats_.at(index); }

 private:
  WorkerPipes pipes_;
  std::vector<std::optional<Clock::time_point>> last_beats_;
};

}  // namespace ddprun::launcher
