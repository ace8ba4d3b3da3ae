#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include <ddprun/group/rounds.h>

namespace ddprun {

/// Where a training is: in this epoch, after so many of each rank's batches.
struct BatchPlace {
  std::int64_t epoch = 0, batches = 0;
};

/// What run() keeps of a training for the next round, if a rank is lost (ddprun --recover=rank): the
/// DataLoader says where the training is, the Checkpoint what its state is.
struct Recovery {
  explicit Recovery(const WorkerEnv& env) : rounds(env) {}

  ddp::Rounds rounds;
  std::shared_ptr<void> memory;                  ///< the Checkpoint's; null: there is none
  BatchPlace begin_with;                         ///< where this round begins
  std::function<void(const BatchPlace&)> begin;  ///< of the Checkpoint, at each batch; null: there is none
  std::optional<std::uint64_t> seed;             ///< that the program chose
};

}  // namespace ddprun
