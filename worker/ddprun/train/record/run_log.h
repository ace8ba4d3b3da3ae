#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/train/model/evaluation.h>
#include <ddprun/train/model/run.h>
#include <ddprun/train/record/end_card.h>
#include <ddprun/train/record/progress.h>
#include <ddprun/train/record/rank_resources.h>
#include <ddprun/train/record/run_record.h>
#include <ddprun/train/state/ledger.h>

namespace ddprun::train {

/// For summary.json.
struct RunSummary {
  std::int64_t epochs = 0, steps = 0;
  double seconds = 0, samples_per_second = 0;
  double training_seconds = 0;  ///< of epochs, without their validation
  Ledger spent;                 ///< by rank 0
  PeakMemory memory;
  /// The newest; of held-out sets those of the best checkpoint, if one is kept.
  std::optional<Totals> train, validation, test;
  /// Figures at the best checkpoint, if one is kept, and at the end.
  report::MetricRow best, last;
  std::filesystem::path checkpoint, best_checkpoint;
  std::string stop_reason;
  bool diverged = false;  ///< a last loss is NaN or infinite
  std::optional<double> loss_scale;
  std::int64_t skipped_steps = 0;
  ddp::DistributedDataParallel::Statistics ddp;
};

/// Times of this rank's steps under DDP: forward_ms, backward_ms, communication_ms and overlap_ms, means over
/// the steps so far. Empty if nothing was measured.
report::MetricRow ddp_times(const ddp::DistributedDataParallel::Statistics& statistics);

/// "Test set: Average loss: 0.0312, Accuracy: 9897/10000 (98.97%)", "..., dice: 0.8123, iou: 0.7011"
std::string result_line(const std::string& set, const Totals& totals);

/// A run's output: lines on stdout, the progress bar, the files in the run folder. Except for print_own(),
/// only rank 0 writes anything.
class RunLog {
 public:
  /// resumed_at, resumed_rows  as in RunRecord::Options
  RunLog(const Run& run, std::optional<std::int64_t> resumed_at, std::optional<std::int64_t> resumed_rows);

  RunRecord* record() { return record_ ? &*record_ : nullptr; }

  void print(const std::string& line);      ///< from rank 0
  void print_own(const std::string& line);  ///< from every rank that calls it
  /// Announces, before the first step, what is trained on what.
  ///
  /// from_start  the run is not resumed, so that a learning rate that warms up is yet to rise
  void announce(double learning_rate, bool from_start);
  void row(const report::MetricRow& row);
  /// Writes the log line and row of every log interval, and the row at an epoch's end.
  /// more  added to the row
  void progress(const TrainState& at, const TrainProgress& progress, bool with_line, double learning_rate,
                const report::MetricRow& more);
  /// "Epoch 3/20: train_loss 0.3100, train_dice 0.7000, val_loss 0.3500": the row's figures of the sets.
  void epoch_line(std::int64_t epoch, const report::MetricRow& row);
  /// set  "Test set", "Validation"
  void result_line(const std::string& set, const Totals& totals);
  /// Writes the figure to figures/ and, under this metric, to TensorBoard, if the run has a report. Errors
  /// are only warnings.
  void figure(const std::string& name, const std::string& metric, std::int64_t step,
              const std::function<Figure()>& draw);

  /// Warns once per run that the training has diverged.
  void warn_unless_finite(const std::string& what, double loss, std::int64_t step);

  bool bar_is_due() const { return bar_.due(); }
  void bar(const BarState& state) { bar_.update(state); }
  void clear_bar() { bar_.clear(); }

  /// Writes summary.json, the report and the best weights, and prints the results.
  void finish(const RunSummary& summary);
  /// Says how to continue, if the checkpoint is there.
  void terminate();

 private:
  EndCard results(const RunSummary& summary) const;
  bool write_best(const RunSummary& summary);
  bool write_report();
  void write_page_so_far();

  const Run& run_;
  Progress bar_;
  std::optional<RunRecord> record_;
  bool warned_ = false;
  std::chrono::steady_clock::time_point next_page_;
};

}  // namespace ddprun::train
