#pragma once

#include <filesystem>
#include <optional>

#include <ddprun/train/loop/callbacks.h>
#include <ddprun/train/loop/epoch_progress.h>
#include <ddprun/train/model/evaluation.h>
#include <ddprun/train/model/parallel_model.h>
#include <ddprun/train/model/run.h>
#include <ddprun/train/record/run_record.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/checkpoint_policy.h>

namespace ddprun::train {

/// What this rank has measured of the epoch so far.
struct EpochSums {
  Totals& totals;
  BatchLosses& losses;
};

/// Where a resumed training goes on from.
struct Resumed {
  std::filesystem::path path;
  TrainingState state;
};

/// Finds the checkpoint to go on from, the same on every rank, and says what it found. Every rank calls it.
///
/// returns  nullopt for a run from the beginning
/// throws   UsageError if the checkpoint is of another task, batch size, seed or training set; IoError
std::optional<Resumed> find_resumed(const Run& run);

/// Writes checkpoints: the newest as last, the best under names of their own. All ranks call the same; rank 0
/// decides and writes.
class CheckpointSaver {
 public:
  using Occasion = CheckpointPolicy::Occasion;

  /// record  null except on rank 0
  CheckpointSaver(const Run& run, ParallelModel& model, const Callbacks& callbacks, RunRecord* record);

  /// Takes the place that the checkpoint tells. On every rank.
  void resume(const Resumed& resumed);

  /// kRequest writes last only.
  /// weights  a file that gets the model's bare state_dict too; empty: none
  /// returns  whether it has them; on rank 0
  bool save(const TrainState& state, const Position& position, const EpochSums& sums, Occasion occasion,
            const std::filesystem::path& weights = {});

  /// The best one, once it is on disk; empty if there is none. The same on every rank, which all call it.
  std::filesystem::path best_path();
  /// Until what was saved is on disk. throws  IoError if it cannot be
  void wait();
  /// How long the training has stood still for checkpoints so far.
  double stall_seconds() const { return stall_seconds_; }

  /// The newest; on rank 0.
  const std::filesystem::path& last_path() const { return last_path_; }

 private:
  CheckpointWriter::Request plan(const TrainState& state, Occasion occasion);
  void forget_missing();

  const Run& run_;
  ParallelModel& model_;
  const Callbacks& callbacks_;
  RunRecord* record_;
  std::optional<CheckpointPolicy> policy_;  // rank 0, if the best are kept
  std::filesystem::path last_path_;
  double stall_seconds_ = 0;
};

/// Takes this rank's sums of the epoch that the checkpoint was made in, as far as it has them.
/// throws  IoError if they are of other measures
void load_sums(const EpochSums& sums, const Resumed& resumed, const ddp::ProcessGroup& group);

}  // namespace ddprun::train
