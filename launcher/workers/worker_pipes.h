#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <ddprun/common/files.h>
#include "launcher/events/clock.h"

namespace ddprun::launcher {

/// A pipe from each worker. Its writer never waits for ddprun: if the pipe is full, it drops its data.
///
/// Pipes are read at most ten times a second, so that short steps do not keep ddprun busy; bytes may seem up
/// to 0.1 s younger than they are.
class WorkerPipes {
 public:
  using OnBytes = std::function<void(std::size_t index, std::string_view bytes)>;

  WorkerPipes(boost::asio::io_context& io, OnBytes on_bytes);
  ~WorkerPipes();
  WorkerPipes(const WorkerPipes&) = delete;
  WorkerPipes& operator=(const WorkerPipes&) = delete;

  /// Opens a worker's pipe, and closes that of an earlier worker in its place. returns its writing end, to
  /// close once the worker has inherited it. throws std::system_error
  UniqueFd open(std::size_t index);

  /// Reads what the workers have written so far.
  void read_now();

 private:
  struct Pipe;
  static void close(Pipe& pipe);
  static void watch(const std::shared_ptr<Pipe>& pipe);
  static void take_bytes(const std::shared_ptr<Pipe>& pipe);

  boost::asio::io_context& io_;
  std::shared_ptr<const OnBytes> on_bytes_;
  std::vector<std::shared_ptr<Pipe>> pipes_;
};

/// Heartbeats of the workers. Each inherits the writing end of a pipe as DDPRUN_HEARTBEAT_FD; every byte
/// written there is a beat.
class Heartbeats {
 public:
  using Clock = LoopClock;

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
