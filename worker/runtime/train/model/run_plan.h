#pragma once

#include <string>
#include <vector>

#include <ddprun/group/process_group.h>
#include <ddprun/train/model/task.h>
#include <ddprun/train/optim/monitor.h>
#include <ddprun/train/optim/optimization.h>
#include <ddprun/train/optim/options.h>

namespace ddprun::train {

/// How many optimizer steps the run has, as far as that is known before.
RunLength run_length(const Task& task, const TrainerOptions& options, const ddp::ProcessGroup& group);

/// The metrics that a row at the end of an epoch has.
std::vector<std::string> epoch_metrics(const Task& task);
/// The columns of metrics.csv.
std::vector<std::string> metric_columns(const Task& task);

/// The metric that the best checkpoint, early stopping and the plateau schedule go by; if none is asked for,
/// the loss of validation, else of a test after every epoch, else of training.
/// throws  UsageError if the run will have no such metric
std::string choose_monitor(const Task& task, const std::string& wanted);

/// throws  UsageError for options that a run of this task cannot have
void check_options(const Task& task, const TrainerOptions& options);

/// Warns in one line if the test set decides what is kept or when the run ends, and nobody asked for that.
void warn_if_test_set_judges(const Task& task, const TrainerOptions& options);

/// min where the metric is a loss or the like, max for accuracies, Dice coefficients and the like; unless the
/// options say so.
MonitorMode monitor_mode(const CheckpointOptions& options, const std::string& monitor);

}  // namespace ddprun::train
