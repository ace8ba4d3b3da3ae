#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "common/heartbeat.h"
#include "worker/ddp/process_group.h"
#include "worker/train/parallel_options.h"
#include "worker/train/task.h"

namespace ddprun::train {

struct OptimOptions {
  double lr = 1e-3;
};

struct TrainerOptions {
  std::int64_t epochs = 5;
  std::int64_t batch_size = 128;   ///< of each rank
  std::int64_t log_interval = 10;  ///< steps between log lines
  std::uint64_t seed = 0;
  int loader_threads = 1;
  bool progress = true;            ///< a progress bar, where stderr is a terminal
  std::filesystem::path out;       ///< the run folder; used on rank 0 only
  std::string config_json = "{}";  ///< what the run was asked for, kept in its checkpoints
  OptimOptions optim;
  ParallelOptions parallel;        ///< how the ranks work together
  Heartbeat heartbeat;             ///< gets a beat every training step and every test batch
};

/// The seed of a rank's own randomness (dropout): far apart for ranks and seeds that are close. Rank 0's is
/// the seed.
std::uint64_t rank_seed(std::uint64_t seed, int rank);

/// Trains on all ranks of the group: every epoch in a new order, then the test set, then checkpoints/last.pt.
/// Rank 0 prints the log lines to stdout and writes metrics.csv, checkpoints/ and summary.json into the run
/// folder.
///
/// Metrics are exact over ranks: each test example counts once, however many ranks there are.
/// throws  IoError, c10::Error
void fit(Task& task, const TrainerOptions& options, const ddp::ProcessGroup& group);

}  // namespace ddprun::train
