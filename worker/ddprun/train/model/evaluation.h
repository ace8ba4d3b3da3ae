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

/// Mean loss and measures of samples. Adding does not wait for the device.
class Totals {
 public:
  /// measures  Task::measures
  explicit Totals(const std::vector<std::string>& measures);

  /// Adds the batch's first `count` examples.
  /// throws  std::invalid_argument if the measures differ from the constructor's
  void add(const BatchResult& result, std::int64_t count);
  double mean_loss() const { return loss_.value(); }
  double samples() const { return loss_.count(); }
  const std::vector<std::pair<std::string, Mean>>& measures() const { return measures_; }

  /// "acc 0.8731"; empty without measures
  std::string first_measure() const;

  /// Adds SET_loss (or `loss`, if given) and SET_NAME for each measure.
  void append_to(report::MetricRow& row, const std::string& set, const std::string& loss = "") const;

  std::vector<double> sums() const;  ///< for checkpoints and sums over ranks
  /// throws  std::invalid_argument if the number of sums differs
  void set_sums(const std::vector<double>& sums);

 private:
  Mean loss_;
  std::vector<std::pair<std::string, Mean>> measures_;
};

struct Evaluation {
  Totals totals;                                  ///< over all ranks
  std::optional<ConfusionMatrix> confusion = {};  ///< over all ranks, if the task names classes
  std::vector<Evaluated> shown = {};              ///< this rank's, for Task::draw_samples or worst_of_all()
};

/// The samples with the lowest first measures, the lowest first: of each rank's, which Task::sample_of has
/// made and which are in this order. Every rank calls it, and gets them all, on the CPU.
std::vector<Evaluated> worst_of_all(const ddp::ProcessGroup& group, const std::vector<Evaluated>& own,
                                    std::int64_t count);

/// The model's loss and measures on a data set, over all ranks: every example counts once. Leaves the module
/// in eval mode.
///
/// max_batches  0: all
/// leave        asked after each batch that every rank has; may be null. True, on all ranks, ends it
/// returns      nullopt if it was left
std::optional<Evaluation> evaluate(ParallelModel& model, const Run& run, const data::Dataset& set,
                                   const std::function<void()>& after_batch, std::int64_t max_batches = 0,
                                   const std::function<bool()>& leave = {});

}  // namespace ddprun::train
