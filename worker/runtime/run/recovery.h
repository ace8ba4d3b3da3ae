#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include <ddprun/group/rounds.h>

namespace ddprun {

/// A position in the training: this epoch, after this many batches on each rank.
struct BatchPlace {
  std::int64_t epoch = 0, batches = 0;
};

/// What run() keeps for the next round if a rank is lost (ddprun --recover=rank): the position from the
/// DataLoader, the state from the Checkpoint.
struct Recovery {
  explicit Recovery(const WorkerEnv& env) : rounds(env) {}

  ddp::Rounds rounds;
  std::shared_ptr<void> memory;                  ///< the Checkpoint's; null: none
  BatchPlace begin_with;                         ///< where this round begins
  std::function<void(const BatchPlace&)> begin;  ///< the Checkpoint's, called at each batch; null: none
  std::optional<std::uint64_t> seed;             ///< chosen by the program
};

}  // namespace ddprun
