#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "worker/data/dataset.h"
#include "worker/ddp/process_group.h"
#include "worker/report/metric_sink.h"
#include "worker/train/metrics.h"
#include "worker/train/parallel_model.h"

namespace ddprun::train {

/// Loss and accuracy of samples, first of one rank, then of all. Adding does not wait for the device.
class Totals {
 public:
  /// Adds the batch's first `count` examples.
  void add(const StepResult& result, std::int64_t count);
  /// Those of all ranks, on every rank.
  Totals over_ranks(const ddp::ProcessGroup& group) const;

  double mean_loss() const { return loss_.value(); }
  std::optional<double> accuracy() const;  ///< nullopt: the task has no such thing
  double correct() const;
  double samples() const { return loss_.count(); }

  /// PREFIX_loss, PREFIX_acc
  void append_to(report::MetricRow& row, const std::string& loss, const std::string& accuracy) const;

  std::vector<double> sums() const;  ///< what set_sums() takes: for checkpoints
  void set_sums(const std::vector<double>& sums);

 private:
  Mean loss_;
  Accuracy accuracy_;
  bool has_accuracy_ = false;
};

/// The model's loss and accuracy on a data set, over all ranks: each example counts once, whatever the number
/// of ranks. The module is left in eval mode.
///
/// max_batches  0: all
Totals evaluate(ParallelModel& model, const Task& task, const data::Dataset& set,
                const ddp::ProcessGroup& group, const TrainerOptions& options, std::int64_t max_batches = 0);

}  // namespace ddprun::train
