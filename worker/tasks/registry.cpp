#include "worker/tasks/registry.h"

#include <ddprun/common/errors.h>

namespace ddprun::worker {

const std::vector<TaskEntry>& all_tasks() {
  static const std::vector<TaskEntry> tasks = {mnist_task(), toy_task(), linear_task(), cifar10_task(),
                                               sam_task()};
  return tasks;
}

void set_defaults(Config& config) {
  for (const auto& entry : all_tasks())
    if (entry.name == config.task) entry.set_defaults(config);
}

train::Task make_task(const Config& config) {
  for (const auto& entry : all_tasks())
    if (entry.name == config.task) return entry.make(config);
  throw UsageError("unknown task '" + config.task + "'");
}

}  // namespace ddprun::worker
