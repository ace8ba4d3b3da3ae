#pragma once

#include <csignal>
#include <thread>

#include <ddprun/common/unique_fd.h>

namespace ddprun::train {

/// While it lives, SIGTERM and SIGUSR1 are noted, for the training to act on between two steps. One at a time
/// in a process.
///
/// A training that gets nowhere after SIGTERM, as when another rank is gone, cannot act: where neither
/// note_progress() nor take_over() comes for three seconds (or three times as long as it took the last time,
/// if that is more), the signal takes its course.
class StopSignals {
 public:
  /// throws  std::system_error
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  bool terminate() const;  ///< SIGTERM came
  bool take_save();        ///< SIGUSR1 came since the last time this was asked
  void take_over();        ///< the training acts on SIGTERM, however long it takes
  /// The signals have the actions again that they had before, and a SIGTERM that came takes its course.
  void let_go();

 private:
  void restore();

  UniqueFd event_;
  struct sigaction term_ {
  }, usr1_{};
  std::jthread watch_;
};

/// The training gets on: a step, a batch of an evaluation.
void note_progress();

}  // namespace ddprun::train
