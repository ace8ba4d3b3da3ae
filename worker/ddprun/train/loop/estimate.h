#pragma once

#include <cstdint>
#include <string>

#include <ddprun/group/process_group.h>
#include <ddprun/train/model/task.h>
#include <ddprun/train/model/trainer_options.h>

namespace ddprun::train {

/// Measured times of a few steps, in seconds per batch; the slowest rank counts.
struct MeasuredSteps {
  int ranks = 1;
  double batch = 0;        ///< with the gradients' reduction
  double batch_alone = 0;  ///< without it
};

/// Seconds per batch on that many ranks: computing time stays the same, and communication grows like a ring
/// all-reduce's share, (ranks - 1) / ranks. Measured on one rank, communication costs nothing.
double seconds_per_batch(const MeasuredSteps& measured, int ranks);

/// A table for 1, 2, 4 and 8 ranks and the measured number: batches per epoch, seconds per batch, epoch and
/// run, and the efficiency against one rank; with what it counts and assumes. samples: per epoch
std::string estimate_table(const MeasuredSteps& measured, std::int64_t samples, std::int64_t batch_size,
                           std::int64_t epochs);

/// Trains for ten steps, after three to warm up, and returns the table on every rank. Saves nothing.
std::string estimate(const Task& task, const TrainerOptions& options, const ddp::ProcessGroup& group);

}  // namespace ddprun::train
