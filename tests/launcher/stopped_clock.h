#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>

#include "launcher/events/clock.h"

namespace ddprun::test {

/// While one lives, time passes for the launcher only when the test says so.
class StoppedClock {
 public:
  StoppedClock() {
    loop_ = std::chrono::steady_clock::now();
    wall_ = std::chrono::system_clock::now();
    launcher::LoopClock::source = [] { return loop_; };
    launcher::WallClock::source = [] { return wall_; };
  }
  ~StoppedClock() {
    launcher::LoopClock::source = std::chrono::steady_clock::now;
    launcher::WallClock::source = std::chrono::system_clock::now;
  }
  StoppedClock(const StoppedClock&) = delete;
  StoppedClock& operator=(const StoppedClock&) = delete;

  /// Handles what is due then, in the order of an event loop. returns how many handlers ran
  static std::size_t pass(boost::asio::io_context& io, std::chrono::milliseconds time) {
    loop_ += time;
    wall_ += time;
    // Asio looks at its timers when the kernel's fires, which knows nothing of this clock, or for a new first
    // one.
    launcher::Timer first(io, launcher::LoopClock::time_point::min());
    first.async_wait([](const boost::system::error_code&) {});
    io.restart();
    return io.poll() - 1;
  }

 private:
  static inline std::chrono::steady_clock::time_point loop_;
  static inline std::chrono::system_clock::time_point wall_;
};

}  // namespace ddprun::test
