#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

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
    /// The Checkpoint's: the weights are those after round.done. Null: no state is kept.
    std::function<void()> commit;
    std::uint64_t seed = 0;           ///< chosen by the program
    BatchPlace begin_with;            ///< where this round begins
    std::int64_t next_epoch = -1;     ///< begun next by the loader that trains
    std::optional<BatchPlace> batch;  ///< the batch in use; a step that is done includes it
    BatchPlace done;                  ///< the newest step's
    bool certain = false;             ///< the weights are those after it
  } round;

  void commit(const BatchPlace& place) {
    if (!round.commit) return;
    round.commit();
    round.done = place;
    round.certain = true;
  }
};

}  // namespace ddprun
