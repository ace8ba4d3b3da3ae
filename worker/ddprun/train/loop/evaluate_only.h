#pragma once

#include <filesystem>

#include <ddprun/group/process_group.h>
#include <ddprun/train/model/task.h>
#include <ddprun/train/model/trainer_options.h>

namespace ddprun::train {

/// Evaluates the task's module with its current weights, without training: on the test set, or if the task
/// has none on the validation set, or else on the training set. Every example counts once, on any number of
/// ranks.
///
/// Rank 0 prints a line and a JSON object, which it also writes to evaluation.json in options.out unless that
/// is empty:
///
///   {"task": "mnist", "weights": "a.pt", "set": "test", "samples": 10000, "world_size": 2, "seconds": 1.5,
///    "test_loss": 0.0312, "test_acc": 0.9897}
///
/// weights  where they come from, for the output
/// throws   IoError if the file cannot be written
void evaluate_only(const Task& task, const TrainerOptions& options, const ddp::ProcessGroup& group,
                   const std::filesystem::path& weights);

}  // namespace ddprun::train
