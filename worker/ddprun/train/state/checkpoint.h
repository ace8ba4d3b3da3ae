#pragma once

#include <atomic>
#include <future>

#include <ddprun/ddp/comm_hooks.h>
#include <ddprun/serialize/portable_value.h>
#include <ddprun/train/state/run_folder.h>

namespace ddprun::train {

/// The state of a rank's random number generators, as the bytes (uint8 [n], on the CPU) that
/// torch.set_rng_state and torch.cuda.set_rng_state take.
struct GeneratorState {
  at::Tensor cpu;   ///< of the default generator, which dropout uses
  at::Tensor cuda;  ///< of the rank's GPU; undefined without one
};

/// Of this process: the CPU's generator and, if the device is a GPU, that GPU's.
GeneratorState generator_state(at::Device device);

/// Restores the generators; leaves one whose state is undefined unchanged.
/// throws  std::invalid_argument for bytes that are not a generator's state
void set_generator_state(const GeneratorState& state, at::Device device);

/// Every rank's generator_state(), by rank, on every rank. All ranks call it.
std::vector<GeneratorState> gather_generator_states(const ddp::ProcessGroup& group);

/// PowerSGD's state on all ranks, for a checkpoint: {"iteration": int, "random_state": str, "qs": {name:
/// tensor}, "errors": [{name: tensor}, ...] by rank}. Every rank calls it; all but rank 0 get None.
///
/// alone  on this rank, whichever it is, with only its errors
c10::IValue powersgd_state(const ddp::PowerSgd& power_sgd, const torch::nn::Module& module,
                           const ddp::ProcessGroup& group, bool alone = false);

/// The inverse, on every rank. On another number of ranks, errors start at 0.
/// throws  IoError naming source and what does not fit
void load_powersgd_state(ddp::PowerSgd& power_sgd, const torch::nn::Module& module,
                         const ddp::ProcessGroup& group, const c10::IValue& state,
                         const std::filesystem::path& source);

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

/// The state of rank `source`, on every rank; the others pass nullopt. Tensors travel as they are.
TrainingState broadcast_state(const ddp::ProcessGroup& group, const std::optional<TrainingState>& state,
                              int source = 0);

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
std::optional<TrainingState> read_if_checkpoint(const std::filesystem::path& path, bool with_tensors = true);

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
  /// Whether a run wrote it on the way to a state, of which these are the identity and the step: a name alone
  /// does not say it, since a later branch, another run or a copy of the run may have used it.
  bool leads_to(const RunIdentity& of, std::int64_t at_step) const {
    return problem.empty() && (identity.run.empty() || identity.run == of.run) &&
           identity.branch <= of.branch && step <= at_step;
  }
};

/// nullopt: the file is not a training state.
std::optional<StateFile> peek_state(const std::filesystem::path& path, const RunFolder& folder);

/// The training states in a run folder, whatever their names: those of the newest branch first, of these
/// those that cannot be read, then the one with the most steps. A state of another run, or without identity,
/// counts as branch 0. Without a list of files, the newest file counts as a branch of its own if it cannot be
/// read. Does not read tensors. throws  IoError if the folder cannot be listed
std::vector<StateFile> state_files(const RunFolder& folder);

/// Of state_files() those of the folder's run.
///
/// skipped  gets a line if the newest one is gone
/// throws   IoError if the run's list names states that are gone, of a later branch; or if there is no list
///          and there are states of two runs
std::vector<StateFile> own_states(const RunFolder& folder, std::vector<std::string>& skipped);

/// Whether the file is the newest state in the run folder, or a copy of it: another one of the same step may
/// be of a run that was copied and has gone on.
bool is_newest_state(const std::filesystem::path& run_folder, const std::filesystem::path& file);

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

/// Writes checkpoints on a background thread: the training waits only for a copy of its state in memory.
///
///   CheckpointWriter writer(run_folder);
///   writer.write(state, {{folder / "last.pt", folder / "epoch=3.pt"}, {folder / "epoch=1.pt"}});
///   ... the next step may change the tensors ...
///   writer.flush();
///
/// Keeps one copy and reuses its memory. A request waits for the previous one, because every request carries
/// its own deletions and memory must stay bounded. Check busy() to skip one instead.
class CheckpointWriter {
 public:
  struct Request {
    std::vector<std::filesystem::path> paths;  ///< written in this order; all have one extension
    /// Deleted once the first is on disk and verified, if they are the run's.
    std::vector<std::filesystem::path> doomed = {};
    bool asked_for = false;  ///< by a signal: the runs that this one has replaced stay until the next
    /// Called in the background before the first is written: waits for the ranks' shards, and returns the new
    /// TrainingState::shards. give_up() is true once the writer ends.
    std::function<std::string(const std::function<bool()>& give_up)> finish_shards = {};
  };

  /// folder  the run's, which outlives it
  explicit CheckpointWriter(RunFolder& folder) : folder_(folder) {}
  /// Waits for the current request; its errors are lost unless flush() was called.
  ~CheckpointWriter();

  /// Copies the state and returns; each file is then written atomically and read back to verify its CRC-32.
  /// Ignores files to delete that do not exist or are among paths.
  /// throws  IoError of an earlier request, once; this state is then not written
  void write(const TrainingState& state, Request request);

  /// Whether a request is being written.
  bool busy() const;

  /// Waits until everything is on disk. throws  as write()
  void flush();

  /// After flush(), even if it threw: whether the first file of the last request is on disk and `doomed`
  /// deleted.
  bool wrote_first() const { return wrote_first_; }

  /// Waits, ignoring errors, and frees the copy.
  void release_memory();

 private:
  void carry_out(const Request& request);
  void wait() const;

  RunFolder& folder_;
  c10::IValue staged_;  // of the state being written
  serialize::StagingMemory memory_;
  bool wrote_first_ = false;  // changes only while writing
  std::atomic<bool> ending_ = false;
  std::future<void> writing_;
};

/// Steps, samples and so on of a file are refused above this: sums and products of them do not overflow.
inline constexpr std::int64_t kMostCounted = std::int64_t{1} << 40;

/// The state as the dict that Lightning's Trainer saves (2.0 and later), which its fit(ckpt_path=...) and
/// LightningModule.load_from_checkpoint() read:
///
///   {"state_dict": {PREFIX + name: ...}, "optimizer_states": [...], "lr_schedulers": [...] or [],
///    ["MixedPrecision": ...,] "epoch": int, "global_step": int, "loops": {"fit_loop": ..., ...},
///    "callbacks": {"EarlyStopping{'monitor': ...}": ...}, "hyper_parameters": the configuration and
///    "learning_rate", "hparams_name": "kwargs", "pytorch-lightning_version": "2.0.0",
///    "ddprun": what Lightning has no place for}
///
/// Without an optimizer: only weights, as save_weights_only=True leaves them. The state must be whole.
c10::IValue to_lightning(const TrainingState& state);

/// Whether a file's value has Lightning's layout.
bool is_lightning(const c10::IValue& value);

/// Whether it also holds a state of ours.
bool is_our_lightning(const c10::IValue& value);

/// The dict that to_value() would have made from the state in Lightning's dict, as far as present; returns
/// any other value unchanged. Another program's weights keep their prefix. Lightning does not record ranks
/// and batch size: "world_size" is 0, and "samples" of "position" counts a rank's batches.
/// throws  std::invalid_argument naming the key whose value has the wrong type
c10::IValue from_lightning(const c10::IValue& value);

}  // namespace ddprun::train
