#pragma once

#include <cstdint>

#include <ddprun/common/status.h>
#include <ddprun/train/loop/checkpoint_saver.h>
#include <ddprun/train/loop/epoch_progress.h>
#include <ddprun/train/loop/run_evaluation.h>
#include <ddprun/train/model/parallel_model.h>
#include <ddprun/train/model/run.h>
#include <ddprun/train/state/ledger.h>

namespace ddprun::train {

/// Where this rank's time goes, and what it reports to ddprun about the training (docs/status.md).
class RunStatus {
 public:
  RunStatus(const Run& run, const ParallelModel& model, const RunEvaluation& evaluation,
            const CheckpointSaver& saver);

  /// Counts as a training batch while it lives.
  class Batch {
   public:
    Batch(RunStatus& owner, std::int64_t samples);
    ~Batch();
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;

   private:
    RunStatus& owner_;
    SecondsAdded seconds_;
    double waited_;
  };

  double& data_seconds() { return spent_.data; }
  void set_loss(double loss) { told_.loss = loss; }

  /// In this process so far, including earlier rounds.
  Ledger spent() const;

  /// Tells ddprun how far the training has come.
  void report(const char* phase, const TrainState& at);
  /// The same, at most ten times a second.
  void report_step(const TrainState& at) {
    if (Clock::now() >= next_) report("train", at);
  }

 private:
  const Run& run_;
  const ParallelModel& model_;
  const RunEvaluation& evaluation_;
  const CheckpointSaver& saver_;
  Ledger spent_;  ///< without what others count
  std::int64_t samples_ = 0;
  WorkerStatus told_;
  Clock::time_point next_;
};

}  // namespace ddprun::train
