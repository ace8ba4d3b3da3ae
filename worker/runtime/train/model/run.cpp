#include <ddprun/train/model/run.h>

#include <algorithm>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/logging.h>

namespace ddprun::train {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

void add_set(std::vector<std::string>& names, const Task& task, const std::string& set) {
  names.push_back(set + "_loss");
  for (const auto& measure : task.measures) names.push_back(set + "_" + measure);
}

/// Of the row at the end of an epoch.
std::vector<std::string> epoch_metrics(const Task& task) {
  std::vector<std::string> names;
  add_set(names, task, "train");
  names[0] = "train_loss_epoch";  // train_loss is a step's
  if (task.validation_set) add_set(names, task, "val");
  if (task.test_set && task.test_every_epoch) add_set(names, task, "test");
  return names;
}

}  // namespace

std::string choose_monitor(const Task& task, const std::string& wanted) {
  if (wanted.empty())
    return task.validation_set                      ? "val_loss"
           : task.test_set && task.test_every_epoch ? "test_loss"
                                                    : "train_loss_epoch";
  const auto names = epoch_metrics(task);
  if (std::find(names.begin(), names.end(), wanted) != names.end()) return wanted;
  std::string all;
  for (const auto& name : names) all += (all.empty() ? "" : ", ") + name;
  throw UsageError("--monitor: this run has no metric '" + wanted + "' after an epoch, expected one of " +
                   all);
}

MonitorMode monitor_mode(const CheckpointOptions& options, const std::string& monitor) {
  if (!options.mode.empty()) return options.mode == "max" ? MonitorMode::kMax : MonitorMode::kMin;
  for (const char* part : {"acc", "dice", "iou"})
    if (monitor.find(part) != std::string::npos) return MonitorMode::kMax;
  return MonitorMode::kMin;
}

RunLength Run::length() const {
  const auto batches = ceil_div(ceil_div(task.train_set->size(), group.size()), options.batch_size);
  return {options.epochs, ceil_div(batches, options.accumulate), options.max_steps};
}

std::vector<std::string> Run::metric_columns() const {
  std::vector<std::string> columns = {"epoch", "step", "lr", "train_loss"};
  for (auto& name : epoch_metrics(task)) columns.push_back(std::move(name));
  if (task.test_set && !task.test_every_epoch) add_set(columns, task, "test");
  columns.emplace_back("samples_per_second");
  return columns;
}

void check_options(const Task& task, const TrainerOptions& options) {
  choose_monitor(task, options.checkpoint.monitor);
  if (options.val_every_steps > 0 && !task.validation_set)
    throw UsageError("--val-every-steps: this run has no validation set, expected --val-split too");
}

void warn_of_test_set(const Run& run) {
  const auto& options = run.options;
  const auto& checkpoint = options.checkpoint;
  if (!run.on_rank_0() || !checkpoint.monitor.empty() || run.monitor != "test_loss") return;
  std::string judges;
  for (const auto& [used, flag] :
       {std::pair(checkpoint.patience > 0, "--patience"), std::pair(checkpoint.top_k != 0, "--save-top-k"),
        std::pair(options.optim.schedule == LrScheduleKind::kPlateau, "--lr-schedule=plateau")})
    if (used) judges += (judges.empty() ? "" : ", ") + std::string(flag);
  if (!judges.empty())
    log_warning(
        judges +
        ": uses test_loss, because there is no validation set; a test set used for selection gives too "
        "good a result; expected --val-split, or --monitor to name another metric");
}

}  // namespace ddprun::train
