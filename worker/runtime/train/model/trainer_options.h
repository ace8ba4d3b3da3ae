#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include <ddprun/common/heartbeat.h>
#include <ddprun/train/optim/optimization.h>
#include <ddprun/train/optim/precision.h>

namespace ddprun::train {

/// How the ranks of a training work together: torch.nn.parallel.DistributedDataParallel's options and what
/// may take its place.
struct ParallelOptions {
  std::int64_t bucket_mb = 25;         ///< MiB of gradients an all-reduce, about
  bool find_unused = false;            ///< a step may leave parameters unused, others in every step
  bool static_graph = false;           ///< every step uses the same parameters
  bool bucket_view = true;             ///< gradients lie in the buckets
  std::string comm_hook = "none";      ///< how gradients travel: none, fp16, bf16 or powersgd
  std::int64_t powersgd_start = 1000;  ///< reductions before PowerSGD begins to compress
  bool sync_batch_norm = false;        ///< batch norm over the batches of all ranks
  bool zero1 = false;                  ///< optimizer state sharded
  bool fsdp = false;                   ///< parameters, gradients and optimizer state sharded
  bool join = false;                   ///< no sample twice; ranks may have another number of steps
  bool nan_check = false;              ///< end at the first gradient that is no number
};

struct PrecisionOptions {
  Precision precision = Precision::k32;
  bool channels_last = false;
};

/// Which checkpoints are kept, and when a run that gets no better ends.
struct CheckpointOptions {
  std::string resume;            ///< "auto", a file, or empty: a run from the beginning
  std::int64_t every_steps = 0;  ///< 0: not within an epoch
  std::int64_t save_every = 1;   ///< epochs: those whose number it divides, and the last one
  bool save_last = true;         ///< keeps the newest under the name last
  std::int64_t top_k = 0;        ///< of the best; -1: all
  std::string filename;          ///< of these, see checkpoint_name()
  std::string extension = ".pt";
  std::string monitor;        ///< the metric to judge by; empty: the task's first of validation
  std::string mode;           ///< "min" or "max"; empty: by the metric's name
  std::int64_t patience = 0;  ///< of early stopping; 0: none
  double min_delta = 0;
};

struct TrainerOptions {
  std::int64_t epochs = 5;
  std::int64_t max_steps = 0;        ///< 0: no limit
  double max_seconds = 0;            ///< 0: no limit
  std::int64_t batch_size = 128;     ///< of each rank
  std::int64_t accumulate = 1;       ///< batches of an optimizer step
  std::int64_t val_every_steps = 0;  ///< 0: after every epoch
  std::int64_t sanity_batches = 2;   ///< of validation, before the training
  std::int64_t log_interval = 10;    ///< steps between log lines
  std::uint64_t seed = 0;
  int loader_threads = 1;
  bool progress = true;               ///< a progress bar, where stderr is a terminal
  bool tensorboard = true;            ///< TensorBoard's event files
  bool profile = false;               ///< record some of rank 0's steps
  bool report = true;                 ///< report.html, charts and sample pictures at the end
  std::filesystem::path log_indices;  ///< empty, or what FILE.<rank> with every step's samples begins with
  std::string gpu_uuid;               ///< of this rank's GPU; empty: none
  std::filesystem::path out;          ///< the run folder; used on rank 0 only
  std::string config_json = "{}";     ///< what the run was asked for, kept in its checkpoints
  OptimOptions optim;
  PrecisionOptions precision;
  CheckpointOptions checkpoint;
  ParallelOptions parallel;  ///< how the ranks work together
  Heartbeat heartbeat;       ///< gets a beat every training step and every test batch
};

}  // namespace ddprun::train
