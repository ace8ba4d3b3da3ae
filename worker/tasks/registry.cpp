#include "worker/tasks/registry.h"

#include <torch/nn/module.h>

#include <ddprun/common/errors.h>
#include <ddprun/train/state/state_dict_file.h>

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

void init_weights(torch::nn::Module& model, const Config& config) {
  const auto& file = config.model.init_weights;
  if (!file.empty()) train::load_weights(model, train::read_weights(file), file);
}

}  // namespace ddprun::worker
