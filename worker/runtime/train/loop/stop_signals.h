#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <thread>

#include <ddprun/common/files.h>
#include <ddprun/group/process_group.h>

namespace ddprun::train {

/// Records SIGTERM, SIGINT and SIGUSR1, so that the training can act on them between two steps. A second
/// SIGINT ends the process at once. One at a time in a process.
///
/// A training that is stuck when SIGTERM or SIGINT comes cannot act on it: after a collective has failed, or
/// without note_progress(), Saving or take_over() for three seconds (or three times the longest interval so
/// far, if longer), the signal takes its normal effect.
class StopSignals {
 public:
  /// throws  std::system_error
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  bool terminate() const;  ///< SIGTERM or SIGINT came
  bool take_save();        ///< SIGUSR1 came since the last call
  void take_over();        ///< the training will act on the signal, however long it takes
  /// Restores the previous signal actions; a pending SIGTERM or SIGINT then takes effect.
  void let_go();

 private:
  void restore();

  UniqueFd event_;
  struct sigaction term_ {
  }, int_{}, usr1_{};
  std::jthread watch_;
};

/// The signal to end by after a training that was terminated: SIGTERM, or SIGINT if that came to this
/// process.
int ending_signal();

/// Reports progress: a batch of the training or of an evaluation.
void note_progress();

/// Counts as progress while it exists: a checkpoint is being saved.
struct Saving {
  Saving();
  ~Saving();
  Saving(const Saving&) = delete;
  Saving& operator=(const Saving&) = delete;
};

/// What was requested from outside, on any rank.
struct Requests {
  bool terminate = false;  ///< SIGTERM or SIGINT: save a checkpoint and stop
  bool save = false;       ///< SIGUSR1: save a checkpoint
  bool out_of_time = false;
};

/// Makes all ranks see the same requests after the same step. They exchange four numbers about twice a
/// second, which costs about a thousandth of the time; a single rank checks after every step.
class StopAgreement {
 public:
  /// max_seconds  from now on; 0: no limit
  StopAgreement(const ddp::ProcessGroup& group, double max_seconds);

  /// Every rank calls it after each step; all must have the same number of steps.
  Requests after_step();
  /// Exchanges now. Every rank calls it.
  Requests now();

  /// After the last step: runs save() undisturbed by signals, then restores the previous signal actions; a
  /// pending SIGTERM takes effect.
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
