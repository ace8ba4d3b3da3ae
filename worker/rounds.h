#pragma once

#include <optional>
#include <string>

#include <ddprun/group/rounds.h>
#include <ddprun/train/loop/trainer.h>
#include <ddprun/train/state/run_memory.h>
#include "worker/config/config.h"
#include "worker/tasks/registry.h"

namespace ddprun::worker {

/// What a round of the job leaves to the next one, if a rank is lost.
struct InMemory {
  LoadedTask task;
  train::RunMemory run;
  std::optional<std::string> checkpoint_settings;  ///< applied, as JSON; empty: none
  bool has_settings = false;  ///< this process has all that the run has, also from a state or other ranks
  bool has_folder = false;    ///< this process, with rank 0, has made or locked the run folder
};

/// Decides whether this rank continues in place when another one is lost, and from which memory.
void set_up_memory(Config& config, const ddp::Rounds& rounds, at::Device device, InMemory& in_memory);

/// Connects the ranks, trains and closes the group. nullopt: another rank was lost, and the next round has
/// begun.
std::optional<train::Ending> run_round(Config& config, ddp::Rounds& rounds, InMemory& memory);

}  // namespace ddprun::worker
