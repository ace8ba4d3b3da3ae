#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include <ddprun/train/loop/callbacks.h>
#include <ddprun/train/loop/epoch_progress.h>
#include <ddprun/train/model/evaluation.h>
#include <ddprun/train/model/parallel_model.h>
#include <ddprun/train/model/run.h>
#include <ddprun/train/record/run_record.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/checkpoint_policy.h>
#include <ddprun/train/state/ledger.h>
#include <ddprun/train/state/shard_writer.h>

namespace ddprun::train {

/// This rank's measurements of the epoch so far.
struct EpochSums {
  Totals& totals;
  BatchLosses& losses;
};

/// The checkpoint that a run resumes from.
struct Resumed {
  std::filesystem::path path;  ///< empty: it was in memory
  TrainingState state;
  bool is_newest = true;  ///< of those in its run folder; on rank 0
  /// In errors.
  std::filesystem::path source() const { return path.empty() ? kInMemory : path; }
  /// Whether the file is one of this run folder's checkpoints, whatever its path is.
  bool is_in(const std::filesystem::path& run_folder) const;
};

/// The evaluation during which the checkpoint was made, to begin with.
Evaluating evaluating_of(const TrainingState& state);
/// How the run was doing when its state was kept.
struct SoFar {
  double seconds = 0;                      ///< spent on training so far
  Ledger spent;                            ///< of this rank, by all processes that have trained the run
  double training_seconds = 0;             ///< of whole epochs, without their validation
  std::optional<std::string> stop_reason;  ///< if the training is to end here
  bool trained = false;                    ///< all steps and checkpoints are done; only in memory
};
/// Without the reason to stop if the run may now be longer, or goes by another metric or patience.
SoFar before_resume(const TrainingState& state, const Run& run);

/// What may end a run that goes on: a run that has ended goes on if one of these is another one now.
std::string limits_of(const Run& run);

/// throws  IoError unless the trainer can read all that it kept in the checkpoint
void check_kept(const Resumed& resumed, const Run& run);
/// The size of the training set; nullopt in older checkpoints.
std::optional<std::int64_t> examples_of(const TrainingState& state);
/// The latest metrics when the checkpoint was made; none in older checkpoints.
report::MetricRow metrics_of(const TrainingState& state);
/// The number of rows of metrics when the checkpoint was made; nullopt in older checkpoints.
std::optional<std::int64_t> rows_of(const TrainingState& state);

/// Writes checkpoints: the newest as last, the best under their own names. All ranks make the same calls;
/// rank 0 decides and writes.
class CheckpointSaver {
 public:
  using Occasion = CheckpointPolicy::Occasion;

  /// record  null on all ranks but 0
  CheckpointSaver(const Run& run, ParallelModel& model, const Callbacks& callbacks, RunRecord* record);

  /// Restores the checkpoint's state, on every rank.
  void resume(const Resumed& resumed);

  /// kRequest writes last only.
  /// weights  also gets a bare state_dict of the model, or of its averages if there are any; empty: none
  /// returns  on rank 0: whether it was written
  bool save(const TrainState& state, const Position& position, const EpochSums& sums, const SoFar& so_far,
            Occasion occasion, const std::filesystem::path& weights = {});

  /// What a checkpoint would hold, from this rank alone. Tensors share memory with the model's and the
  /// optimizer's.
  ///
  /// part  only this rank's part of the model and these sums, for resume() on this rank
  TrainingState state_alone(const TrainState& at, const Position& position, const SoFar& so_far,
                            const std::optional<EpochSums>& part = {});

  /// The best checkpoint, once it is on disk; empty if there is none. Every rank calls it and gets the same.
  std::filesystem::path best_path();
  /// The same once this one no longer counts, with a warning.
  std::filesystem::path best_path_without(const std::filesystem::path& damaged, const std::string& problem);
  /// Waits until everything is on disk. throws  IoError
  void wait();
  /// How long checkpoints have held up the training so far.
  double stall_seconds() const { return stall_seconds_; }

  /// The newest checkpoint; on rank 0.
  const std::filesystem::path& last_path() const { return last_path_; }

 private:
  void add_trainer(c10::impl::GenericDict& own, const TrainState& at, const SoFar& so_far) const;
  TrainingState begin_state(const TrainState& at, const Position& position) const;
  void add_callbacks(TrainingState& state) const;
  CheckpointWriter::Request plan(const TrainState& state, Occasion occasion);
  void forget_others();
  void write_shards(TrainingState& state, Shards shards, CheckpointWriter::Request& request);

  const Run& run_;
  ParallelModel& model_;
  const Callbacks& callbacks_;
  RunRecord* record_;
  std::optional<CheckpointPolicy> policy_;  // on rank 0, if the best are kept
  RunIdentity resumed_;                     // that of the state that was resumed
  std::int64_t resumed_step_ = 0;
  std::optional<ShardWriter> shard_writer_;  // if the model is sharded
  std::filesystem::path last_path_;
  double stall_seconds_ = 0;
};

/// Restores this rank's sums of the checkpoint's epoch, if it has any. throws  IoError for other measures
void load_sums(const EpochSums& sums, const Resumed& resumed, const ddp::ProcessGroup& group);

}  // namespace ddprun::train
