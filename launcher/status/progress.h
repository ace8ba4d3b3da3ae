#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include <ddprun/common/status.h>

namespace ddprun::launcher {

/// How a worker's steps go, over the last ten seconds or so.
struct Pace {
  double step_seconds = 0;
  double samples_per_second = 0;  ///< 0: unknown
  /// Of each step; nullopt: not said.
  std::optional<double> data, compute, communication;
  std::int64_t steps = 0;  ///< that it is measured over
};

/// What a worker has said through its status channel, and what follows from it.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  /// Takes bytes from the channel. A line that is no status, or too long for one, is garbage.
  void add(std::string_view bytes, Clock::time_point now);

  const WorkerStatus& latest() const { return latest_; }
  std::optional<std::int64_t> first_step() const { return first_step_; }  ///< that it has spoken of
  std::optional<Clock::time_point> said_at() const { return said_at_; }   ///< nullopt: nothing yet
  std::uint64_t garbage_lines() const { return garbage_; }

  /// nullopt: it has not said of two steps how far it is.
  std::optional<Pace> pace() const;

 private:
  struct Point {
    Clock::time_point at;
    WorkerStatus status;
  };
  void take_line(std::string_view line, Clock::time_point now);

  WorkerStatus latest_;
  std::optional<std::int64_t> first_step_;
  std::optional<Clock::time_point> said_at_;
  std::uint64_t garbage_ = 0;
  std::string partial_;    ///< of a line, at most kMaxStatusLine
  bool skipping_ = false;  ///< the rest of a line that is too long
  std::deque<Point> window_;
};

}  // namespace ddprun::launcher
