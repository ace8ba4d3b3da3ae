#pragma once

#include <boost/asio/basic_waitable_timer.hpp>
#include <chrono>
#include <cstdint>
#include <string>

namespace ddprun::launcher {

/// A real clock in whose place tests put one of their own: tests/launcher/stopped_clock.h.
template <typename Real>
struct ReplaceableClock : Real {
  static typename Real::time_point now() { return source(); }
  static inline typename Real::time_point (*source)() = &Real::now;
};

// What the launcher goes by.
using LoopClock = ReplaceableClock<std::chrono::steady_clock>;
using WallClock = ReplaceableClock<std::chrono::system_clock>;

using Timer = boost::asio::basic_waitable_timer<LoopClock>;
using WallTimer = boost::asio::basic_waitable_timer<WallClock>;

/// The time of a job, monotonic both since its start and as a date.
class JobClock {
 public:
  using Monotonic = LoopClock;
  using Wall = WallClock;

  explicit JobClock(Monotonic::time_point start = Monotonic::now(), Wall::time_point date = Wall::now())
      : start_(start), date_(date) {}

  Monotonic::time_point start() const { return start_; }
  std::int64_t ns(Monotonic::time_point time) const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time - start_).count();
  }
  Wall::time_point date(Monotonic::time_point time) const {
    return date_ + std::chrono::duration_cast<Wall::duration>(time - start_);
  }

 private:
  Monotonic::time_point start_;
  Wall::time_point date_;
};

/// "30 s", "1.5 s"
std::string in_seconds(std::chrono::milliseconds time);

/// "2026-01-31T12:34:56.123456Z"
///
/// digits  of the second's fraction, at most 6
std::string utc_iso(JobClock::Wall::time_point time, int digits = 6);

}  // namespace ddprun::launcher
