#pragma once

#include <cstdint>

#include <ddprun/group/process_group.h>
#include <ddprun/train/model/task.h>
#include <ddprun/train/model/trainer_options.h>

namespace ddprun::train {

/// The seed of a rank's own randomness (dropout): far apart for ranks and seeds that are close. Rank 0's is
/// the seed.
std::uint64_t rank_seed(std::uint64_t seed, int rank);

/// How a training ended.
enum class Ending {
  kComplete,   ///< it had its epochs or steps, or was told to stop by its own rules
  kTerminated  ///< by SIGTERM on any rank: a checkpoint was written, and the signal is yet to take its course
};

/// Trains on all ranks of the group: every epoch in a new order, validation, checkpoints, and the test set
/// after every epoch or at the end with the best weights. Rank 0 prints the log lines to stdout and writes
/// metrics, checkpoints and the summary into the run folder.
///
/// Metrics are exact over ranks: each example counts once, however many ranks there are. A training that was
/// resumed (options.checkpoint.resume) gives bit for bit what it would have given without the interruption,
/// on as many ranks. throws  UsageError for options that the task cannot have, IoError, c10::Error
Ending fit(const Task& task, const TrainerOptions& options, const ddp::ProcessGroup& group);

}  // namespace ddprun::train
