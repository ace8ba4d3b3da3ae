#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <ddprun/group/rounds.h>

namespace ddprun {

/// A position in the training: this epoch, after this many batches on each rank.
struct BatchPlace {
  std::int64_t epoch = -1, batches = 0;
};

/// How run() continues if a rank is lost (ddprun --recover=rank): the position is from the DataLoader, the
/// state from the Checkpoint.
struct Recovery {
  explicit Recovery(const WorkerEnv& env) : rounds(env) {}

  ddp::Rounds rounds;
  std::shared_ptr<void> memory;  ///< the Checkpoint's; null: none

  struct Round {
    int checkpoints = 0;  ///< made so far
    /// The Checkpoint's. False, with unless_accumulating: since the last time gradients were computed at
    /// most, and that state is still to continue from. Null: no state is kept.
    std::function<bool(bool unless_accumulating)> remember;
    std::uint64_t seed = 0;          ///< chosen by the program
    BatchPlace begin_with;           ///< where this round begins
    std::int64_t next_epoch = -1;    ///< begun next by the loader that trains
    BatchPlace place;                ///< of the weights, when remembered
    bool in_batch = false;           ///< the step after it may be done
    std::int64_t batches_after = 0;  ///< that step: as place.batches
  } round;

  /// in_batch  one begins; false: an epoch begins or ends
  void set_place(const BatchPlace& place, bool in_batch) {
    round.batches_after = place.batches + (in_batch ? 1 : 0);
    const bool may_accumulate = in_batch && round.in_batch && place.epoch == round.place.epoch;
    if (round.remember && !round.remember(may_accumulate)) return;
    round.place = place;
    round.in_batch = in_batch;
  }
};

}  // namespace ddprun
