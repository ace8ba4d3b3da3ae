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
#include <ddprun/train/state/run_folder.h>

namespace ddprun::train {

/// Where a resumed training starts: in this epoch (from 0), after this many of its samples, over all ranks.
/// A checkpoint at the end of epoch 4 has {5, 0}.
struct Position {
  std::int64_t epoch = 0;
  std::int64_t samples = 0;

  bool operator==(const Position&) const = default;
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
  RunIdentity identity = {};
};

/// The state as the dict stored in a file, without the parts that are None. Tensors share memory.
///
///   {"format": 1, "model": ..., "optimizer": ..., ["lr_schedule": ..., "scaler": ..., "ema": ...,
///    "model_config": text, "shards": text,]
///    ["run": {"id": text, "branch": int},]
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

/// Checks the shards of a checkpoint (TrainingState::shards). throws  IoError for damage
using VerifyShards = std::function<void(const std::filesystem::path& checkpoint, const std::string& shards)>;

/// Also checks its shards. verify  null: all of them are on this disk
TrainingState read_and_verify(const std::filesystem::path& path, const VerifyShards& verify = {});

/// The same as read_checkpoint() for a file that may hold only weights: then nullopt.
std::optional<TrainingState> read_if_checkpoint(const std::filesystem::path& path);

/// Reads only model and ema, whole; all other tensors have arbitrary values.
TrainingState read_weights_of_checkpoint(const std::filesystem::path& path);

/// Whether its name ends in .pt or .ckpt, and does not begin with a dot.
bool is_checkpoint_name(const std::filesystem::path& file);

/// The files in a folder that are named like checkpoints; none if it does not exist. throws  IoError if it
/// cannot be listed
std::vector<std::filesystem::path> checkpoint_files(const std::filesystem::path& folder);

/// A training state in checkpoints/ of a run folder.
struct StateFile {
  std::filesystem::path path;
  RunIdentity identity;
  std::int64_t step = 0;
  Position position = {};
  std::filesystem::file_time_type written = {};
  std::string shards = {};   ///< the folder of its shards
  std::string problem = {};  ///< why it cannot be read; then only path and identity are known

  /// Whether they are of one branch of a run.
  bool is_beside(const StateFile& other) const { return identity.branch == other.identity.branch; }
};

/// The training states in a run folder, whatever their names: those of the newest branch first, of these
/// those that cannot be read, then the one with the most steps. A state of another run, or without identity,
/// counts as branch 0. Without a list of files, the newest file counts as a branch of its own if it cannot be
/// read. Does not read tensors. throws  IoError if the folder cannot be listed
std::vector<StateFile> state_files(const RunFolder& folder);

/// Whether no state in its run folder is newer.
bool is_newest_state(const std::filesystem::path& run_folder, const TrainingState& state);

struct ResumePoint {
  std::filesystem::path path;        ///< empty if there is no state
  TrainingState state;               ///< fully checked
  std::vector<std::string> skipped;  ///< one line per damaged file

  bool found() const { return !path.empty(); }
};

/// The newest intact state of the newest branch in a run folder, regardless of file names.
///
/// verify  null: all shards are on this disk
/// since   only states of this run, in this branch or a later one; empty: any
/// throws  IoError if there are states and none can be used, or the run's list names some and they are gone:
///         starting from scratch would be a loss; it names a state of an earlier branch that can be read
ResumePoint find_resume(const std::filesystem::path& run_folder, const VerifyShards& verify = {},
                        const RunIdentity& since = {});

}  // namespace ddprun::train
