#pragma once

#include <chrono>

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

}  // namespace ddprun::launcher
