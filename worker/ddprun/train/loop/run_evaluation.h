#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include <ddprun/train/loop/epoch_progress.h>
#include <ddprun/train/loop/trainer.h>
#include <ddprun/train/model/evaluation.h>
#include <ddprun/train/model/run.h>
#include <ddprun/train/record/rank_resources.h>
#include <ddprun/train/record/run_log.h>

namespace ddprun::train {

class CheckpointSaver;

/// Evaluates a run on its data sets and reports the results. All ranks make the same calls.
class RunEvaluation {
 public:
  /// leave  asked after each batch that every rank has, until evaluate_at_end(); true, on all ranks, leaves
  ///        the evaluation
  RunEvaluation(const Run& run, ParallelModel& model, RankResources& resources, RunLog& log,
                std::function<bool()> leave);

  /// Evaluates a few batches before the training, to find errors early. Results are not reported.
  void sanity_check();

  /// Validation in the middle of an epoch. Leaves the module in eval mode.
  /// returns  its row; nullopt if it was left
  std::optional<report::MetricRow> within_epoch(const TrainState& at);

  struct Epoch {
    Totals totals;       ///< this rank's
    double samples = 0;  ///< of all ranks
    double seconds = 0;
  };
  /// Validates and tests, also after an epoch that ended early.
  /// returns  the epoch's row; nullopt if it was left
  std::optional<report::MetricRow> end_of_epoch(const TrainState& at, const Epoch& epoch);

  /// If a best checkpoint is kept, loads its weights and evaluates them on all held-out sets; otherwise tests
  /// the current ones unless every epoch has been tested. One that is damaged no longer counts.
  void evaluate_at_end(const TrainState& at, CheckpointSaver& saver);

  /// Adopts the validation in a checkpoint's latest metrics.
  void resume(const report::MetricRow& metrics);

  double seconds() const { return evaluation_seconds_; }
  /// Of whole epochs, without their validation.
  double training_seconds() const { return train_seconds_; }

  /// Diverged if a loss of the last epoch or of the last test is NaN or infinite. Every rank calls it once
  /// rank 0 has written everything: a rank that fails ends the others.
  Ending ending(const TrainState& at) const;

  /// Adds the latest results, and on rank 0 those of summary.best_checkpoint, which has been evaluated.
  void add_to(RunSummary& summary, const TrainState& at) const;

  /// Remembers the samples for training_samples.png. Costs a copy from the device.
  void show_training(const data::Batch& batch, const BatchResult& result);

  /// Writes training_samples.png and, if missing, the last evaluation's samples.png and confusion.svg; and
  /// the last picture of the report's slider.
  void draw_figures(std::int64_t step);

 private:
  bool has_diverged(const TrainState& at) const;
  enum class Set { kValidation, kTest };
  /// With the current weights. Adds to the row and prints a line. False if it was left.
  bool evaluate_set(Set which, const TrainState& at, report::MetricRow& row, bool with_line = true);
  /// With the averaged weights, if there are any.
  bool evaluate_now(Set which, const TrainState& at, report::MetricRow& row, bool with_line = true);
  bool draw_is_due() const;
  /// The last evaluation's, for Task::draw_samples. With Task::sample_of every rank calls it.
  const std::vector<Evaluated>& samples();
  /// Samples and confusion matrix of the last evaluation.
  void draw_last(std::int64_t step);
  /// A picture of the report's slider, figures/epochs/NAME.png.
  void draw_epoch(const std::string& name, std::int64_t step);
  report::MetricRow new_row(const TrainState& at) const;

  std::optional<Evaluation> evaluate(const data::Dataset& set, std::int64_t max_batches = 0);

  const Run& run_;
  ParallelModel& model_;
  RankResources& resources_;
  RunLog& log_;
  std::function<bool()> leave_;
  std::optional<Totals> train_, validation_, test_;  // the latest, over all ranks
  std::vector<Evaluated> trained_;                   // on the CPU; rank 0's
  std::optional<Evaluation> last_;                   // of validation or test
  std::optional<std::vector<Evaluated>> samples_;    // of last_
  Set last_set_ = Set::kValidation;
  bool drawn_ = false;         // whether the last evaluation is drawn
  Clock::time_point draw_at_;  // the next time at which an evaluation may be drawn
  double train_seconds_ = 0, trained_samples_ = 0, evaluation_seconds_ = 0;
};

}  // namespace ddprun::train
