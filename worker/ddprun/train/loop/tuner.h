#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/train/model/run.h>

namespace ddprun::train {

/// The range test of Smith 2017, "Cyclical Learning Rates", section 3.3, as Lightning's Tuner.lr_find() does
/// it: the learning rate rises by a constant factor from step to step, until the loss diverges.
class LrSearch {
 public:
  explicit LrSearch(double min_lr = 1e-8, double max_lr = 1, std::int64_t steps = 100)
      : min_lr_(min_lr), max_lr_(max_lr), steps_(steps) {}

  /// For the next step; nullopt: the search is over.
  std::optional<double> next_lr() const;
  /// loss  of the step
  void add(double loss);
  /// The learning rate where the loss falls fastest; nullopt after too few steps.
  std::optional<double> suggestion() const;

  const std::vector<double>& lrs() const { return lrs_; }
  const std::vector<double>& losses() const { return losses_; }  ///< smoothed

 private:
  double min_lr_, max_lr_;
  std::int64_t steps_;
  std::vector<double> lrs_, losses_;
  double average_ = 0, best_ = 0;
  bool diverged_ = false;
};

/// "0.25", "97.5", "1,840": three digits, and all before the point.
std::string rounded_text(double value);

/// Trains with rising learning rates, reports the best, and draws lr_finder.svg into figures/ of the run
/// folder. Every rank calls it. Changes the task's module.
/// returns  the suggestion
std::optional<double> find_lr(const Task& task, const TrainerOptions& options,
                              const ddp::ProcessGroup& group);

/// Doubles the batch size from 2 on, for three steps each, until memory or the training set is exhausted, as
/// Lightning's Tuner.scale_batch_size() does; reports the largest that fits, and draws batch_size_finder.svg:
/// samples per second. On a CPU, does not try a batch that needs more than the free memory.
/// returns  the largest batch size that fits; 0: none fits
/// throws   UsageError for several ranks
std::int64_t find_batch_size(const Task& task, const TrainerOptions& options, const ddp::ProcessGroup& group);

}  // namespace ddprun::train
