#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <ddprun/train/state/generator_state.h>

namespace ddprun::train {

/// Where a training goes on: with this epoch (from 0), after that many of its samples, of all ranks together.
/// A checkpoint at the end of epoch 4 has {5, 0}.
struct Position {
  std::int64_t epoch = 0;
  std::int64_t samples = 0;
};

/// All that a training needs to go on as if it had never stopped: what a checkpoint is made of. IValues are
/// state_dicts, or None for what the training does not use.
struct TrainingState {
  c10::IValue model;               ///< state_dict() of the module
  c10::IValue optimizer;           ///< optimizer_state_dict()
  std::int64_t epoch = 0;          ///< the one that was under way or has just ended, from 0
  std::int64_t step = 0;           ///< optimizer steps done
  std::string config_json = "{}";  ///< a JSON object
  Position position = {};
  c10::IValue lr_schedule = {};
  c10::IValue scaler = {};
  c10::IValue ema = {};                               ///< Ema's: torch.optim.swa_utils.AveragedModel's keys
  std::vector<GeneratorState> generators = {};        ///< by rank
  std::map<std::string, c10::IValue> callbacks = {};  ///< whatever else has a state, by name
  std::int64_t world_size = 1;
  std::string model_config = {};  ///< the model's shape as its task writes it; empty: the task alone tells it
};

/// The state as the dict that a file holds; absent is what is None. Tensors share memory with the state's.
///
///   {"format": 1, "model": ..., "optimizer": ..., ["lr_schedule": ..., "scaler": ..., "ema": ...,
///    "model_config": text,]
///    "epoch": int, "step": int, "position": {"epoch": int, "samples": int}, "world_size": int,
///    "generators": [{"cpu": uint8 [n], ["cuda": uint8 [m]]}, ...], "callbacks": {name: ...}, "config":
///    {...}}
c10::IValue to_value(const TrainingState& state);

/// The inverse. source: the file to name
/// throws  IoError naming the key that is missing or of another type
TrainingState to_training_state(const c10::IValue& value, const std::filesystem::path& source);

/// Writes the state as a file that torch.load(path) reads, atomically: a crash at any moment leaves the old
/// file or the new one. Makes the folder if need be. See CheckpointWriter for doing so in the background.
/// throws  IoError naming the path
void save_checkpoint(const std::filesystem::path& path, const TrainingState& state);

/// The state in a file of save_checkpoint(), with its tensors on the CPU.
/// throws  IoError naming path and what is wrong: damaged (every byte is checked by a CRC-32), of another
///         kind (a model's weights alone), of a newer format, a part missing
TrainingState read_checkpoint(const std::filesystem::path& path);

/// The same of the weights alone, model and ema: all else that is made of tensors has arbitrary values.
TrainingState read_weights_of_checkpoint(const std::filesystem::path& path);

/// The files in checkpoints/ of a run folder that are training states, damaged tensors or not.
/// throws  IoError if the folder cannot be listed; one that is not there holds nothing
std::vector<std::filesystem::path> training_state_files(const std::filesystem::path& run_folder);

/// What find_resume() found.
struct ResumePoint {
  std::filesystem::path path;        ///< empty if there is no good state
  TrainingState state;               ///< all of it was checked
  std::vector<std::string> skipped;  ///< a line for each damaged file that was passed over

  bool found() const { return !path.empty(); }
};

/// The newest good state (that of most steps) in checkpoints/ of a run folder, whatever the files' names.
/// Files that are no training state are not looked at; damaged ones are named and passed over.
/// throws  IoError if the folder cannot be listed; one that is not there holds nothing
ResumePoint find_resume(const std::filesystem::path& run_folder);

}  // namespace ddprun::train
