#pragma once

#include "worker/config.h"
#include "worker/train/task.h"

namespace ddprun::tasks {

/// Makes the task that the configuration names: its model, initialised from the seed, and its data, read and
/// checked. throws  UsageError for an unknown task or data set, IoError for data and weights
train::Task make_task(const Config& config);

// The tasks, a file each.
train::Task make_mnist(const Config& config);

}  // namespace ddprun::tasks
