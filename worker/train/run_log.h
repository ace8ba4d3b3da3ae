#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "worker/ddp/process_group.h"
#include "worker/train/evaluation.h"
#include "worker/train/options.h"
#include "worker/train/progress.h"
#include "worker/train/run_record.h"

namespace ddprun::train {

/// What a run tells: lines on stdout, the bar, the run folder's files. But for print_own() it is rank 0's
/// business; on other ranks nothing happens.
class RunLog {
 public:
  /// resumed_at  the step that the run goes on from
  RunLog(const Task& task, const TrainerOptions& options, const ddp::ProcessGroup& group,
         std::optional<std::int64_t> resumed_at);

  RunRecord* record() { return record_ ? &*record_ : nullptr; }

  void print(const std::string& line);      ///< from rank 0
  void print_own(const std::string& line);  ///< from every rank that calls it
  void announce();
  void row(const report::MetricRow& row);
  void test_line(const char* set, const Totals& totals);

  /// Once a run: what comes after a loss that is no number is no training any more.
  void warn_unless_finite(const std::string& what, double loss, std::int64_t step);

  bool bar_is_due() const { return progress_.due(); }
  void bar(const BarState& state) { progress_.update(state); }
  void clear_bar() { progress_.clear(); }

  /// Writes summary.json and says where the run's files are.
  void finish(const nlohmann::ordered_json& summary, const std::filesystem::path& checkpoint);

 private:
  const Task& task_;
  const ddp::ProcessGroup& group_;
  Progress progress_;
  std::optional<RunRecord> record_;
  bool warned_ = false;
};

/// The columns of metrics.csv in this run.
std::vector<std::string> metric_columns(const Task& task);
/// Those that are there at the end of an epoch: what may be monitored.
std::vector<std::string> epoch_metrics(const Task& task);

/// What a report shows of the reduction of gradients; times in ms a step.
nlohmann::ordered_json to_json(const ddp::DistributedDataParallel::Statistics& statistics);

}  // namespace ddprun::train
