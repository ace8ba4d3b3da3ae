#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ddprun/train/model/task.h>
#include "worker/config/config.h"

namespace ddprun::worker {

/// A task as the program knows it.
struct TaskEntry {
  std::string name;
  std::string description;  ///< one line, for the help
  std::string footer;       ///< below the task's own help
  /// Settings that may be given by position, and what the help calls them.
  std::vector<std::pair<std::string, std::string>> positionals;
  /// Where the task's document has others than Config. They may depend on other settings.
  void (*set_defaults)(Config&);
  train::Task (*make)(const Config&);
};

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
