#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ddprun/common/files.h>
#include <ddprun/group/process_group.h>
#include <ddprun/train/model/callback.h>
#include <ddprun/train/model/task.h>
#include <ddprun/train/model/trainer_options.h>
#include <ddprun/train/optim/monitor.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/ledger.h>

namespace ddprun::train {

/// The metric that picks the best checkpoint and drives early stopping and the plateau schedule; by default
/// the validation loss, else that of a test after every epoch, else the training loss.
///
/// within_epochs  it is looked at whenever --val-every-steps validates, not after epochs
/// throws  UsageError if the run will have no such metric then
std::string choose_monitor(const Task& task, const std::string& wanted, bool within_epochs = false);

/// As the options say; else kMax for accuracies, Dice and IoU, kMin for losses.
MonitorMode monitor_mode(const CheckpointOptions& options, const std::string& monitor);

/// What TrainerOptions::memory holds of this run as it begins or goes on.
struct InMemory {
  bool begun = false;  ///< the run has begun in an earlier round
  bool state = false;  ///< a state to go on from
  bool parts = false;  ///< that state is in parts, one on each rank
  Ledger spent = {};   ///< by this rank, in earlier rounds
};
InMemory look_in_memory(const TrainerOptions& options);

/// What is trained, how, and by which ranks. Every part of the trainer shares it; what it refers to outlives
/// them all.
struct Run {
  const Task& task;
  const TrainerOptions& options;
  const ddp::ProcessGroup& group;
  InMemory in_memory = look_in_memory(options);
  std::string monitor = choose_monitor(task, options.checkpoint.monitor, options.val_every_steps > 0);
  MonitorMode mode = monitor_mode(options.checkpoint, monitor);
  RunFolder* folder = nullptr;         ///< on rank 0, once the training begins
  std::vector<FolderLock> locks = {};  ///< on it
  RunIdentity identity = {};           ///< the same on every rank

  bool on_rank_0() const { return group.rank() == 0; }
  /// In optimizer steps, as far as they are known in advance.
  RunLength length() const;
  /// For schedules: how far it is if it continues from this state.
  RunProgress progress_of(const TrainingState& state) const;
  /// The columns of metrics.csv.
  std::vector<std::string> metric_columns() const;
};

/// Whether each rank has a part of the state that no other rank has.
bool keeps_parts(const TrainerOptions& options);

/// Why steps cannot run as a CUDA graph, as far as it is known in advance; empty if they can.
std::string graph_obstacle(const Run& run);

/// throws  UsageError for options that do not fit the task
void check_options(const Task& task, const TrainerOptions& options);

/// throws  UsageError for a number of steps that does not fit the run's
void check_length(const Run& run);

/// Rank 0 warns if the test set picks checkpoints or ends the run without having been requested.
void warn_of_test_set(const Run& run);

}  // namespace ddprun::train
