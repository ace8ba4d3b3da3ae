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
#include <ddprun/train/record/progress.h>
#include <ddprun/train/record/rank_resources.h>
#include <ddprun/train/record/run_record.h>

namespace ddprun::train {

/// Seconds of rank 0.
struct TimeReport {
  double training = 0;          ///< epochs without their validation
  double evaluation = 0;        ///< validation and test
  double data_wait = 0;         ///< of the training: for batches
  double checkpoint_stall = 0;  ///< for checkpoints that others could have been written beside
};

/// What the summary tells.
struct RunSummary {
  std::int64_t epochs = 0, steps = 0;
  double seconds = 0, samples_per_second = 0;
  TimeReport time;
  PeakMemory memory;
  std::optional<Totals> train, validation, test;  ///< the newest
  std::filesystem::path checkpoint, best_checkpoint;
  std::string stop_reason;
  std::optional<double> loss_scale;
  std::int64_t skipped_steps = 0;
  ddp::DistributedDataParallel::Statistics ddp;
};

/// What a step of this rank under DDP consists of, in ms: forward_ms, backward_ms, communication_ms and
/// overlap_ms, means over the steps so far. Empty where nothing has been measured.
report::MetricRow ddp_times(const ddp::DistributedDataParallel::Statistics& statistics);

/// What a run tells: lines on stdout, the bar, the run folder's files. But for print_own() it is rank 0's
/// business; on other ranks nothing happens.
class RunLog {
 public:
  /// resumed_at  the step that the run goes on from
  RunLog(const Run& run, std::optional<std::int64_t> resumed_at);

  RunRecord* record() { return record_ ? &*record_ : nullptr; }

  void print(const std::string& line);      ///< from rank 0
  void print_own(const std::string& line);  ///< from every rank that calls it
  void announce();
  void row(const report::MetricRow& row);
  /// What is told at every log interval.
  /// more  figures for its row
  void progress(const TrainState& at, const TrainProgress& progress, double learning_rate,
                const report::MetricRow& more);
  /// set  "Test set", "Validation"
  void result_line(const std::string& set, const Totals& totals);
  /// Shows the picture in figures/NAME.png and TensorBoard, if the run is to have a report. It is not worth a
  /// run: what goes wrong with it is a warning.
  void figure(const std::string& name, std::int64_t step, const std::function<image::Image()>& draw);

  /// Once a run: what comes after a loss that is no number is no training any more.
  void warn_unless_finite(const std::string& what, double loss, std::int64_t step);

  bool bar_is_due() const { return bar_.due(); }
  void bar(const BarState& state) { bar_.update(state); }
  void clear_bar() { bar_.clear(); }

  /// Writes summary.json and says where the run's files are.
  void finish(const RunSummary& summary);
  /// Only waits for the checkpoint, which a terminated run goes on from.
  void terminate(const std::filesystem::path& checkpoint);

 private:
  void write_best(const RunSummary& summary);
  void write_report(const std::string& summary_json, const RunSummary& summary);

  const Run& run_;
  const Task& task_;
  const TrainerOptions& options_;
  Progress bar_;
  std::optional<RunRecord> record_;
  bool warned_ = false;
};

}  // namespace ddprun::train
