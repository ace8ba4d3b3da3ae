#pragma once

#include <chrono>
#include <cstddef>
#include <functional>

namespace ddprun::test {

/// What a simulation does at a time. In a std::priority_queue the earliest comes first, and of equals the one
/// of the lowest order.
struct Event {
  std::chrono::steady_clock::time_point time;
  std::size_t order;
  std::function<void()> action;
  bool operator<(const Event& other) const {
    return time != other.time ? time > other.time : order > other.order;
  }
};

}  // namespace ddprun::test
