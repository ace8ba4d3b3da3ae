#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <thread>

#include <ddprun/common/files.h>
#include <ddprun/group/process_group.h>

namespace ddprun::train {

/// Records SIGTERM, SIGINT and SIGUSR1, so that the training can act on them between steps. A second SIGINT
/// ends the process at once. One at a time per process.
///
/// A training that is stuck when SIGTERM or SIGINT comes cannot act on it: once a collective has failed or
/// another rank has ended, or without note_progress(), Saving or take_over() for three seconds (or three
/// times the longest interval of this Work so far, if longer; 30 seconds before the first), but at least for
/// three seconds after the signal, the signal takes its normal effect. If the training waits for a reader of
/// its output a second after the signal, what it writes is dropped, so that it goes on and can save.
class StopSignals {
 public:
  /// group  must outlive it
  /// throws  std::system_error
  explicit StopSignals(const ddp::ProcessGroup& group);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  bool terminate() const;  ///< SIGTERM or SIGINT came
  bool take_save();        ///< SIGUSR1 came since the last call
  void take_over();        ///< the training will act on the signal, however long it takes
  /// Restores the previous signal actions; a pending SIGTERM or SIGINT then takes effect.
  void release();

 private:
  void restore();

  UniqueFd event_;
  struct sigaction term_ {
  }, int_{}, usr1_{};
  std::jthread watch_;
};

/// The signal to end by after the training was terminated: SIGTERM, or SIGINT if this process received that.
int ending_signal();

/// What a training does; the two kinds of batches take different times.
enum class Work { kTraining, kEvaluation };

/// Reports that a batch is done.
void note_progress(Work work);
/// Call it before the first batch.
void begin_work(Work work);

/// Counts as progress while it lives: a checkpoint is being saved.
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
  bool keep = false;  ///< every rank can keep its state in memory now
};

/// Makes all ranks see the same requests after the same step. They exchange five numbers about twice a
/// second, which costs about a thousandth of the time; a single rank checks after every step.
class StopAgreement {
 public:
  /// max_seconds  from now on; 0: no limit
  /// can_keep     whether this rank can keep its state in memory now; null: never
  StopAgreement(const ddp::ProcessGroup& group, double max_seconds, std::function<bool()> can_keep = {});

  /// Every rank calls it after each step; all must have taken the same number of steps.
  Requests after_step();
  /// The same for the batches of evaluations.
  Requests after_evaluating();
  /// Exchanges now; after_step() keeps its own pace. Every rank calls it.
  Requests now() { return exchange(now_); }

  /// After the last step: runs save() undisturbed by signals, then restores the previous signal actions; a
  /// pending SIGTERM takes effect.
  void end(const std::function<void()>& save);

 private:
  using Clock = std::chrono::steady_clock;
  struct Pace {
    Clock::time_point last = Clock::now();  // of the last exchange
    std::int64_t steps = 0;                 // since then
    std::int64_t next = 1;                  // steps until the next exchange
  };
  Requests exchange(Pace& pace);

  const ddp::ProcessGroup& group_;
  const double max_seconds_;
  const std::function<bool()> can_keep_;
  StopSignals signals_;
  const Clock::time_point begin_ = Clock::now();
  Pace steps_, evaluation_, now_;
};

}  // namespace ddprun::train
