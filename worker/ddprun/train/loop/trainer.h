#pragma once

#include <cstdint>

#include <ddprun/group/process_group.h>
#include <ddprun/train/model/task.h>
#include <ddprun/train/model/trainer_options.h>

namespace ddprun::train {

/// The seed of a rank's own randomness (dropout), far apart for nearby ranks and seeds. Rank 0 uses the seed
/// itself.
std::uint64_t rank_seed(std::uint64_t seed, int rank);

/// How a training ended.
enum class Ending {
  kComplete,   ///< after its epochs or steps, or stopped by its own rules
  kDiverged,   ///< the same, but a last loss is NaN or infinite (unless TrainerOptions::allow_nan)
  kTerminated  ///< by a signal on any rank, after a checkpoint; the signal is still pending, see
               ///< ending_signal()
};

/// Trains on all ranks of the group: shuffled epochs, validation, checkpoints, and the test set after every
/// epoch or at the end; if best checkpoints are kept, all held-out sets at the end with the best weights,
/// which the module then has. Rank 0 prints the log to stdout and writes metrics, checkpoints and the summary
/// into the run folder.
///
/// Metrics are exact: every example counts once, on any number of ranks. A resumed run
/// (options.checkpoint.resume) gives, bit for bit, the result of an uninterrupted one on the same number of
/// ranks. throws  UsageError for options that do not fit the task, IoError, c10::Error
Ending fit(const Task& task, const TrainerOptions& options, const ddp::ProcessGroup& group);

}  // namespace ddprun::train
