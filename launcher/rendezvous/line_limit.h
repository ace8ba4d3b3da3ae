#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

namespace ddprun::launcher {

/// Keeps strangers from filling the log: passes the first few lines, then one per pause, which says how many
/// were left out.
class LineLimit {
 public:
  using Time = std::chrono::steady_clock::time_point;

  static constexpr int kFirst = 5;
  static constexpr std::chrono::seconds kPause{5};

  /// The line to log, if it may be logged now.
  std::optional<std::string> pass(const std::string& line, Time now) {
    if (!use_turn(now)) {
      ++left_out_;
      return {};
    }
    return line + (left_out_ == 0 ? "" : "; before it " + rest());
  }

  /// What to log about lines left out that none has followed, once there is something to say.
  std::optional<std::string> pass_rest(Time now) {
    if (left_out_ == 0 || !use_turn(now)) return {};
    return rest();
  }

 private:
  bool use_turn(Time now) {
    const Time next = std::max(next_, now);
    if (next > now + (kFirst - 1) * kPause) return false;
    next_ = next + kPause;
    return true;
  }
  std::string rest() { return std::to_string(std::exchange(left_out_, 0)) + " such lines were left out"; }

  Time next_;  ///< when the next turn would come if each had waited for its pause
  std::size_t left_out_ = 0;
};

}  // namespace ddprun::launcher
