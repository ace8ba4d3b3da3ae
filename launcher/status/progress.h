#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include <ddprun/common/status.h>
#include "launcher/events/clock.h"

namespace ddprun::launcher {

/// The pace of a worker's steps, over about the last ten seconds.
struct Pace {
  double step_seconds = 0;
  double samples_per_second = 0;  ///< 0: unknown
  /// Per step; nullopt: not reported.
  std::optional<double> data, compute, communication;
  std::int64_t steps = 0;  ///< over which it is measured
};

/// What a worker has reported through its status channel, and conclusions from it.
class Progress {
 public:
  using Clock = LoopClock;

  /// Takes bytes from the channel. Drops a line that is not a status, or too long.
  void add(std::string_view bytes, Clock::time_point now);

  const WorkerStatus& latest() const { return latest_; }
  std::optional<std::int64_t> first_step() const { return first_step_; }  ///< that it has reported
  std::optional<Clock::time_point> said_at() const { return said_at_; }   ///< nullopt: never
  std::uint64_t garbage_lines() const { return garbage_; }

  /// nullopt: it has not reported two steps.
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
  bool skipping_ = false;  ///< the rest of an overlong line
  std::deque<Point> window_;
};

}  // namespace ddprun::launcher
