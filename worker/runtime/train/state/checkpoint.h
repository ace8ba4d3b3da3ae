#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/train/state/rank_state.h>

namespace ddprun::train {

/// Where a resumed training starts: in this epoch (from 0), after this many of its samples, over all ranks.
/// A checkpoint at the end of epoch 4 has {5, 0}.
struct Position {
  std::int64_t epoch = 0;
  std::int64_t samples = 0;
};

/// A checkpoint: everything a training needs to resume as if it had never stopped. IValues are state_dicts,
/// or None if the training does not use that part.
struct TrainingState {
  c10::IValue model = {};          ///< state_dict() of the module
  c10::IValue optimizer = {};      ///< optimizer_state_dict()
  std::int64_t epoch = 0;          ///< the current or just finished one, from 0
  std::int64_t step = 0;           ///< optimizer steps done
  std::string config_json = "{}";  ///< a JSON object
  Position position = {};
  c10::IValue lr_schedule = {};
  c10::IValue scaler = {};
  c10::IValue ema = {};                               ///< with torch.optim.swa_utils.AveragedModel's keys
  std::vector<GeneratorState> generators = {};        ///< by rank
  std::map<std::string, c10::IValue> callbacks = {};  ///< other states by name
  std::int64_t world_size = 1;
  /// Where the sharded tensors are (shard_index.h); model, optimizer and ema then lack them. Empty if the
  /// state is whole.
  std::string shards = {};
  /// Prefix of the names in a .ckpt: the LightningModule's attribute that is the model, and a dot.
  std::string prefix = {};
  std::string model_config = {};  ///< the model's shape, written by its task; empty if the task implies it
};

/// The state as the dict stored in a file, without the parts that are None. Tensors share memory.
///
///   {"format": 1, "model": ..., "optimizer": ..., ["lr_schedule": ..., "scaler": ..., "ema": ...,
///    "model_config": text, "shards": text,]
///    "epoch": int, "step": int, "position": {"epoch": int, "samples": int}, "world_size": int,
///    "generators": [{"cpu": uint8 [n], ["cuda": uint8 [m]]}, ...], "callbacks": {name: ...}, "config":
///    {...}}
c10::IValue to_value(const TrainingState& state);

/// The source of a state that is not in a file.
inline constexpr const char* kInMemory = "memory";

/// The inverse. source: the file named in errors
/// throws  IoError naming the key that is missing or has the wrong type
TrainingState to_training_state(const c10::IValue& value, const std::filesystem::path& source);

/// The contents of a file with this name: to_lightning() if it ends in .ckpt and the state is whole, else
/// to_value().
c10::IValue to_file_value(const TrainingState& state, const std::filesystem::path& path);

/// Writes the state as a file that torch.load(path) reads, atomically: a crash leaves the old file or the new
/// one. Creates the folder. CheckpointWriter does this in the background.
/// throws  IoError naming the path
void save_checkpoint(const std::filesystem::path& path, const TrainingState& state);

/// Reads a file written by save_checkpoint() or by Lightning's Trainer (from_lightning() says what world_size
/// and position are then); tensors are on the CPU. Of a sharded checkpoint, reads only the index.
/// throws  IoError naming path and what is wrong: damaged (a CRC-32 covers every byte), only a model's
///         weights, a newer format, a missing part
TrainingState read_checkpoint(const std::filesystem::path& path);

/// The same for a file that may hold only weights: then nullopt.
std::optional<TrainingState> read_if_checkpoint(const std::filesystem::path& path);

/// Reads only model and ema, whole; all other tensors have arbitrary values.
TrainingState read_weights_of_checkpoint(const std::filesystem::path& path);

/// The files in a folder that are named like checkpoints; none if it does not exist. throws  IoError if it
/// cannot be listed
std::vector<std::filesystem::path> checkpoint_files(const std::filesystem::path& folder);

/// The training states in checkpoints/ of a run folder, including those with damaged tensors; none if the
/// folder does not exist. throws  IoError if it cannot be listed
std::vector<std::filesystem::path> training_state_files(const std::filesystem::path& run_folder);

struct ResumePoint {
  std::filesystem::path path;        ///< empty if none was found
  TrainingState state;               ///< fully checked
  std::vector<std::string> skipped;  ///< one line per damaged file

  bool found() const { return !path.empty(); }
};

/// The newest intact state (the one with most steps) in checkpoints/ of a run folder, regardless of file
/// names. Ignores files that are not training states; lists damaged ones in `skipped`. throws  IoError if the
/// folder cannot be listed
///
/// verify  checks the shards of a checkpoint (TrainingState::shards), throws IoError for damage; null: all of
///         them are on this disk
ResumePoint find_resume(const std::filesystem::path& run_folder,
                        const std::function<void(const std::filesystem::path& checkpoint,
                                                 const std::string& shards)>& verify = {});

}  // namespace ddprun::train
