#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/common/status.h>
#include <ddprun/train/optim/gradients.h>
#include <ddprun/train/optim/optimization.h>

namespace ddprun::train {

class Callback;
struct RunMemory;
class RunFolder;

/// How ranks train together: torch.nn.parallel.DistributedDataParallel's options and its alternatives.
struct ParallelOptions {
  std::int64_t bucket_mb = 25;         ///< approximate MiB of gradients per all-reduce
  bool find_unused = false;            ///< a step may leave parameters unused, different ones each time
  bool static_graph = false;           ///< every step uses the same parameters
  bool bucket_view = true;             ///< gradients are views of the buckets
  std::string comm_hook = "none";      ///< compresses gradients: none, fp16, bf16 or powersgd
  std::int64_t powersgd_start = 1000;  ///< reductions before PowerSGD begins to compress
  bool sync_batch_norm = false;        ///< batch norm over the batches of all ranks
  bool zero1 = false;                  ///< optimizer state sharded
  bool fsdp = false;                   ///< parameters, gradients and optimizer state sharded
  bool join = false;                   ///< no sample twice; ranks may have different numbers of batches
  bool nan_check = false;              ///< stop at the first NaN or infinite gradient
  /// Steps between comparisons of the ranks' parameters and optimizer state (ddp::check_replicas()), also
  /// before a checkpoint; 0: none.
  std::int64_t check_replicas = 0;
};

/// Whether to run GPU steps as a CUDA graph (ddp::StepGraph). kAuto: where possible. kOn: an error if
/// impossible.
enum class GraphChoice { kOff, kAuto, kOn };

struct PrecisionOptions {
  Precision precision = Precision::k32;
  bool channels_last = false;
  std::string matmul = "highest";  ///< for float32 matrix products: highest, high or medium
  bool cudnn_benchmark = false;    ///< let cuDNN try its algorithms for each new shape
};

/// Which checkpoints to keep, and when to stop early.
struct CheckpointOptions {
  std::string resume;            ///< "auto", a file, or empty: start from scratch
  std::int64_t every_steps = 0;  ///< 0: only between epochs
  std::int64_t save_every = 1;   ///< after epochs divisible by it, and after the last
  /// Steps between the states kept in memory in case all ranks are lost (RunMemory::file); 0: as often as
  /// possible at a cost of at most a hundredth of the time.
  std::int64_t memory_every_steps = 0;
  bool replicate_shards = false;  ///< also keep each rank's part of these on another node
  bool save_last = true;          ///< keep the newest as last.EXTENSION
  std::int64_t top_k = 0;         ///< number of best checkpoints to keep; -1: all
  std::string filename;           ///< of the best ones, see checkpoint_name()
  /// .ckpt: Lightning's format, in which the weights' names begin with the prefix.
  std::string extension = ".pt", prefix;
  std::string monitor;        ///< metric to compare; empty: see choose_monitor()
  std::string mode;           ///< "min" or "max"; empty: by the metric's name
  std::int64_t patience = 0;  ///< for early stopping; 0: none
  double min_delta = 0;
};

/// A command that may follow a run, for the end of its log.
struct NextCommand {
  std::string label;               ///< "continue", "continue on all 2 ranks"
  std::vector<std::string> words;  ///< quoted for a shell
  bool resumes = false;            ///< it continues the run: the run's limits are added, as --epochs 6
};

/// Why a training stops after max_seconds.
inline constexpr const char* kTimeIsUp = "the time is up";

struct TrainerOptions {
  std::int64_t epochs = 5;
  std::int64_t max_steps = 0;        ///< 0: no limit
  double max_seconds = 0;            ///< 0: no limit
  std::int64_t batch_size = 128;     ///< per rank
  bool drop_last = false;            ///< skip the end of an epoch that does not fill a batch on every rank
  std::int64_t accumulate = 1;       ///< batches per optimizer step
  std::int64_t val_every_steps = 0;  ///< 0: after every epoch
  std::int64_t sanity_batches = 2;   ///< validation batches before the training
  std::int64_t log_interval = 10;    ///< steps between log lines
  std::uint64_t seed = 0;
  int loader_threads = 1;
  bool progress = true;               ///< progress bar, if stderr is a terminal
  bool tensorboard = true;            ///< TensorBoard's event files
  bool profile = false;               ///< profile a few steps of each rank
  bool allow_nan = false;             ///< a last loss that is not finite is no failure
  bool report = true;                 ///< report.html, charts and sample pictures at the end
  std::filesystem::path log_indices;  ///< writes every step's samples to FILE.RANK; empty: none
  std::string gpu_uuid;               ///< of this rank's GPU; empty: none
  std::string device_name;            ///< of this rank's GPU; empty: a CPU
  /// The run folder, created if necessary; only rank 0 uses it. An earlier run there is refused, unless
  /// `checkpoint.resume` continues it or `overwrite` sets it aside.
  std::filesystem::path out;
  bool overwrite = false;
  std::string config_json = "{}";  ///< the run's settings, stored in its checkpoints
  OptimOptions optim;
  /// With resume: gets the checkpoint's config_json on every rank, or "" if there is no checkpoint; may
  /// change these options before the training starts. May be null.
  std::function<void(TrainerOptions&, const std::string& config_json)> on_resume;
  /// On rank 0 once the folder is this run's, before the training starts: may write to it what it claims. May
  /// be null.
  std::function<void(RunFolder&)> on_folder;
  /// Files that on_folder writes.
  std::vector<std::string> more_files;
  /// Of the run that wrote the checkpoint; what the optimizer's state says changes where `optim` differs from
  /// it. nullopt: `optim` does not. The schedule is always that of `optim`.
  std::optional<OptimOptions> optim_before;
  std::vector<std::shared_ptr<Callback>> callbacks;  ///< the program's own (train/model/callback.h)
  std::vector<NextCommand> next_commands;
  PrecisionOptions precision;
  GraphChoice cuda_graph = GraphChoice::kOff;
  CheckpointOptions checkpoint;
  ParallelOptions parallel;
  /// Where a rank keeps the training when another rank is lost, and from where it continues. If set, the
  /// random numbers of a step depend only on (seed, rank, step), so that a new rank draws the lost one's. May
  /// be null.
  RunMemory* memory = nullptr;
  Heartbeat heartbeat;   ///< beats at every training step and test batch
  StatusChannel status;  ///< this rank's: every phase, and steps at most ten times a second
};

}  // namespace ddprun::train
