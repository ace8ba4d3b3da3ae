#pragma once

#include <vector>

#include "worker/config/task_entry.h"

namespace ddprun::worker {

const std::vector<TaskEntry>& all_tasks();

/// The defaults of the task that config.task names; an unknown name changes nothing.
void set_defaults(Config& config);

/// Makes the task that the configuration names: its model, initialised from the seed, and its data, read and
/// checked. throws  UsageError for an unknown task or data set, IoError for data and weights
train::Task make_task(const Config& config);

// The tasks, a file each.
TaskEntry mnist_task();
TaskEntry toy_task();
TaskEntry linear_task();
TaskEntry cifar10_task();
TaskEntry sam_task();

}  // namespace ddprun::worker
