#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace ddprun::train {

/// What a checkpoint is made of.
struct TrainingState {
  c10::IValue model;               ///< state_dict() of the module
  c10::IValue optimizer;           ///< optimizer_state_dict()
  std::int64_t epoch;              ///< the last one that was finished, from 0
  std::int64_t step;               ///< optimizer steps done
  std::string config_json = "{}";  ///< a flat JSON object
};

/// Writes {"model", "optimizer", "epoch", "step", "config"} as a file that torch.load(path) reads,
/// atomically: a crash at any moment leaves the old file or the new one. Makes the folder if need be. throws
/// IoError naming the path
void save_checkpoint(const std::filesystem::path& path, const TrainingState& state);

}  // namespace ddprun::train
