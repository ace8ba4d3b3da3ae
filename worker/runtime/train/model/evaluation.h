#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ddprun/data/dataset.h>
#include <ddprun/report/metric_sink.h>
#include <ddprun/train/model/metrics.h>
#include <ddprun/train/model/parallel_model.h>

namespace ddprun::train {

/// Mean loss and measures of samples, first of one rank, then of all. Adding does not wait for the device.
class Totals {
 public:
  /// measures  the names of what there is beside the loss: Task::measures
  explicit Totals(const std::vector<std::string>& measures);

  /// Adds the batch's first `count` examples.
  /// throws  std::invalid_argument if it has other measures
  void add(const BatchResult& result, std::int64_t count);
  double mean_loss() const { return loss_.value(); }
  double samples() const { return loss_.count(); }
  const std::vector<std::pair<std::string, Mean>>& measures() const { return measures_; }

  /// "acc 0.8731"; empty if there is none
  std::string first_measure() const;

  /// SET_loss or the name given, and SET_NAME of each measure.
  void append_to(report::MetricRow& row, const std::string& set, const std::string& loss = "") const;

  std::vector<double> sums() const;  ///< what set_sums() takes: for checkpoints
  /// throws  std::invalid_argument for another count of them
  void set_sums(const std::vector<double>& sums);

 private:
  Mean loss_;
  std::vector<std::pair<std::string, Mean>> measures_;
};

/// What an evaluation found.
struct Evaluation {
  Totals totals;                             ///< of all ranks
  std::optional<ConfusionMatrix> confusion;  ///< of all ranks, if the task names its classes
  std::vector<Evaluated> shown;              ///< this rank's, for Task::draw_samples
};

/// The model's loss and measures on a data set, over all ranks: each example counts once, whatever the number
/// of ranks. The module is left in eval mode.
///
/// max_batches  0: all
Evaluation evaluate(ParallelModel& model, const Run& run, const data::Dataset& set,
                    const std::function<void()>& after_batch, std::int64_t max_batches = 0);

}  // namespace ddprun::train
