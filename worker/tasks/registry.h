#pragma once

#include <filesystem>
#include <vector>

#include <ddprun/train/state/state_dict_file.h>
#include "worker/config/task_entry.h"

namespace torch::nn {
class Module;
}

namespace ddprun::worker {

const std::vector<TaskEntry>& all_tasks();

/// Sets the defaults of the task that config.task names; ignores unknown names.
void set_defaults(Config& config);

/// Makes the configured task: its model, initialised from the seed, and its data, read and checked.
/// throws  UsageError for an unknown task or data set, IoError for data and weights
train::Task make_task(const Config& config);

// One file per task.
TaskEntry mnist_task();
TaskEntry toy_task();
TaskEntry linear_task();
TaskEntry cifar10_task();
TaskEntry sam_task();

/// The file of --init-weights or --eval, and its weights; both empty if neither is given. Of a checkpoint
/// with averaged weights --eval takes those, as the test at the end of a training does. throws  as
/// train::read_weights()
struct GivenWeights {
  std::filesystem::path file;
  train::StateDict tensors;
};
GivenWeights read_given_weights(const Config& config);

/// Loads them, if there are any. throws as train::load_weights()
void init_weights(torch::nn::Module& model, const Config& config);

}  // namespace ddprun::worker
