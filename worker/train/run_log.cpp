#include "worker/train/run_log.h"

#include <cmath>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "common/logging.h"
#include "common/one_line.h"

namespace ddprun::train {

std::vector<std::string> epoch_metrics(const Task& task) {
  std::vector<std::string> names = {"train_loss_epoch"};
  const auto add = [&](const std::string& set) {
    names.push_back(set + "_loss");
    if (task.has_accuracy) names.push_back(set + "_acc");
  };
  if (task.has_accuracy) names.emplace_back("train_acc");
  if (task.validation_set) add("val");
  if (task.test_set) add("test");
  return names;
}

std::vector<std::string> metric_columns(const Task& task) {
  std::vector<std::string> columns = {"epoch", "step", "lr", "train_loss"};
  for (auto& name : epoch_metrics(task)) columns.push_back(std::move(name));
  columns.emplace_back("samples_per_second");
  return columns;
}

nlohmann::ordered_json to_json(const ddp::DistributedDataParallel::Statistics& statistics) {
  const auto ms = [](std::int64_t ns) { return static_cast<double>(ns) / 1e6; };
  return {{"backend", statistics.backend},
          {"bucket_bytes", statistics.bucket_bytes},
          {"forward_ms", ms(statistics.forward_ns)},
          {"backward_ms", ms(statistics.backward_ns)},
          {"communication_ms", ms(statistics.communication_ns)},
          {"overlap_ms", ms(statistics.overlap_ns)}};
}

RunLog::RunLog(const Task& task, const TrainerOptions& options, const ddp::ProcessGroup& group,
               std::optional<std::int64_t> resumed_at)
    : task_(task), group_(group), progress_(options.progress && group.rank() == 0) {
  if (group.rank() != 0) return;
  RunRecord::Options record;
  record.columns = metric_columns(task);
  record.resumed_at = resumed_at;
  record.tensorboard = options.tensorboard;
  record_.emplace(options.out, std::move(record));
}

void RunLog::print_own(const std::string& line) {
  progress_.clear();
  std::cout << one_line(line) << std::endl;
}

void RunLog::print(const std::string& line) {
  if (record_) print_own(line);
}

void RunLog::announce() {
  auto line = "Training " + task_.name + " on " + std::to_string(group_.size()) +
              (group_.size() == 1 ? " rank, " : " ranks, ") + std::to_string(task_.train_set->size()) +
              " training";
  const auto add = [&](const char* between, const data::Dataset& set, const char* what) {
    line += between + std::to_string(set.size()) + what;
  };
  if (task_.validation_set && task_.test_set) {
    add(", ", *task_.validation_set, " validation");
    add(" and ", *task_.test_set, " test");
  } else if (task_.test_set) {
    add(" and ", *task_.test_set, " test");
  } else if (task_.validation_set) {
    add(" and ", *task_.validation_set, " validation");
  }
  print(line + " examples from " + task_.data_source);
}

void RunLog::row(const report::MetricRow& row) {
  if (record_) record_->add_metrics(row);
}

void RunLog::test_line(const char* set, const Totals& totals) {
  char line[160];
  if (const auto accuracy = totals.accuracy())
    std::snprintf(line, sizeof line, "%s set: Average loss: %.4f, Accuracy: %.0f/%.0f (%.2f%%)", set,
                  totals.mean_loss(), totals.correct(), totals.samples(), 100 * *accuracy);
  else
    std::snprintf(line, sizeof line, "%s set: Average loss: %.4f", set, totals.mean_loss());
  print(line);
}

void RunLog::warn_unless_finite(const std::string& what, double loss, std::int64_t step) {
  if (!record_ || std::isfinite(loss) || warned_) return;
  warned_ = true;
  log_warning("the " + what + " is " + std::to_string(loss) + " at step " + std::to_string(step) +
              ": the training has diverged; a smaller --lr may help");
}

void RunLog::finish(const nlohmann::ordered_json& summary, const std::filesystem::path& checkpoint) {
  if (!record_) return;
  // A path is bytes, JSON is UTF-8.
  record_->finish(summary.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  print("checkpoint: " + checkpoint.string());
  print("metrics:    " + record_->metrics_path().string());
  print("summary:    " + record_->summary_path().string());
}

}  // namespace ddprun::train
