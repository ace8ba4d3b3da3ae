#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include <ddprun/train/model/evaluation.h>
#include <ddprun/train/model/run.h>
#include <ddprun/train/record/rank_resources.h>
#include <ddprun/train/record/run_log.h>

namespace ddprun::train {

/// The evaluations of a run: of which sets, and what is told of them. Every rank calls the same.
class RunEvaluation {
 public:
  RunEvaluation(const Run& run, ParallelModel& model, RankResources& resources, RunLog& log);

  /// A few batches before the training, so that a mistake in the validation comes to light at once and not
  /// after an epoch. Nothing is told of it.
  void sanity_check();

  /// Validation in the middle of an epoch. returns  its row. The module is in eval mode then
  report::MetricRow within_epoch(const TrainState& at);

  /// What an epoch was like for all ranks.
  struct Epoch {
    Totals totals;       ///< this rank's
    double samples = 0;  ///< of all ranks
    double seconds = 0;
  };
  /// The epoch's row, also of one that was ended early: training, validation, test.
  report::MetricRow end_of_epoch(const TrainState& at, const Epoch& epoch);

  /// The test at the end, of the weights in the best checkpoint; empty: of the newest.
  void test_at_end(const TrainState& at, const std::filesystem::path& best);

  /// Adds the newest results.
  void add_to(RunSummary& summary) const;

  /// Keeps what training_samples.png shows, until the next call. Costs a copy from the device.
  void show_training(const data::Batch& batch, const BatchResult& result);

  /// training_samples.png, and samples.png and confusion.png of the last validation or test.
  void draw_figures(std::int64_t step);

 private:
  enum class Set { kValidation, kTest };
  /// Of the weights as they are. The row gets the figures, and a line is printed.
  void evaluate_set(Set which, const TrainState& at, report::MetricRow& row);
  /// Of the averages, if there are any.
  void evaluate_now(Set which, const TrainState& at, report::MetricRow& row);
  report::MetricRow new_row(const TrainState& at) const;

  Evaluation evaluate(const data::Dataset& set, std::int64_t max_batches = 0);

  const Run& run_;
  const Task& task_;
  ParallelModel& model_;
  RankResources& resources_;
  RunLog& log_;
  std::optional<Totals> train_, validation_, test_;  // the newest, over all ranks
  std::vector<Evaluated> trained_;                   // on the CPU, of rank 0
  std::optional<Evaluation> last_;                   // of validation or test
  const char* last_set_ = "";
  double train_seconds_ = 0, trained_samples_ = 0, evaluation_seconds_ = 0;
};

}  // namespace ddprun::train
