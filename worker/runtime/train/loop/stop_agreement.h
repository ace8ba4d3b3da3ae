#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include <ddprun/group/process_group.h>
#include <ddprun/train/loop/stop_signals.h>

namespace ddprun::train {

/// What somebody outside asked of the training, on any rank.
struct Requests {
  bool terminate = false;  ///< SIGTERM: checkpoint, then end
  bool save = false;       ///< SIGUSR1: checkpoint, then go on
  bool out_of_time = false;
};

/// Makes the ranks see the same requests after the same step. For that they exchange four numbers, but only
/// once in half a second or so, not every step: about a thousandth of the time. A world of one looks after
/// every step.
class StopAgreement {
 public:
  /// max_seconds  from now on; 0: no limit
  StopAgreement(const ddp::ProcessGroup& group, double max_seconds);

  /// Every rank calls it after each of its steps, which they must have as many of.
  Requests after_step();
  /// Exchanges now. Every rank calls it.
  Requests now();

  /// For when no step is left: save() is not disturbed by a signal. From then on they have the actions again
  /// that they had before, and a SIGTERM that nobody heeded takes its course.
  void end(const std::function<void()>& save);

 private:
  using Clock = std::chrono::steady_clock;

  const ddp::ProcessGroup& group_;
  const double max_seconds_;
  StopSignals signals_;
  Clock::time_point begin_ = Clock::now(), last_ = begin_;
  std::int64_t steps_ = 0;  // since the last exchange
  std::int64_t next_ = 1;   // exchange after that many
};

}  // namespace ddprun::train
