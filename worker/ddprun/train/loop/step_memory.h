#pragma once

#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <ddprun/train/loop/callbacks.h>
#include <ddprun/train/loop/checkpoint_saver.h>
#include <ddprun/train/loop/epoch_progress.h>
#include <ddprun/train/model/run.h>
#include <ddprun/train/record/run_record.h>
#include <ddprun/train/state/run_memory.h>

namespace ddprun::train {

/// When to copy the state next: copies take at most a 400th of the time. A copy counts as long as the shorter
/// of the last two, since other processes may have interrupted one.
class CopyPause {
 public:
  void copied(Clock::time_point begin, Clock::time_point end);
  Clock::time_point next() const { return next_; }

 private:
  Clock::duration took_ = Clock::duration::max();
  Clock::time_point next_;
};

/// Keeps the newest whole step in the run's RunMemory, from which the training continues if a rank is lost.
/// Without one (TrainerOptions::memory) its methods do nothing.
class StepMemory {
 public:
  /// totals  of the epoch
  /// record  null except on rank 0
  /// so_far  returns what a state in memory has now in addition to a checkpoint's state
  StepMemory(const Run& run, CheckpointSaver& saver, Totals& totals, const RunRecord* record,
             std::function<SoFar()> so_far);

  /// If a rank is lost, the training continues from this point.
  void commit(const TrainState& at, const Position& position, Evaluating evaluating);

  /// After commit(): writes the state to the memory file if it is time.
  void snapshot_if_due(BatchLosses& losses);

  // If each rank has a part of the state, all of them keep theirs after the same step.

  bool has_parts() const { return memory_ != nullptr && memory_->parts; }
  /// Whether this rank could keep its part now, by time.
  bool can_snapshot() const;
  /// All ranks can: the next snapshot_if_due() does.
  void agree_to_snapshot() { agreed_ = true; }
  void snapshot_part(BatchLosses& losses);
  /// Every rank calls it: waits until all have written their last part.
  void snapshot_part_now(BatchLosses& losses);

  /// After a failure: leaves the committed step in the memory.
  void remember(const Ledger& spent);

 private:
  void commit_buffers();

  const Run& run_;
  CheckpointSaver& saver_;
  Totals& totals_;
  const RunRecord* record_;
  const std::function<SoFar()> so_far_;
  RunMemory* const memory_;
  struct Committed {
    TrainState at;
    Position position;
    std::vector<double> totals;
    std::vector<at::Tensor> buffers;
  };
  std::optional<Committed> committed_;  // nullopt: nothing yet
  CopyPause copy_pause_;
  bool agreed_ = false;
  std::int64_t kept_step_ = -1;
};

}  // namespace ddprun::train
