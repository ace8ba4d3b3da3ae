#include "worker/tasks/init_weights.h"

#include <torch/nn/module.h>

#include "worker/train/state_dict_file.h"

namespace ddprun::tasks {

void init_weights(torch::nn::Module& model, const Config& config) {
  const auto& file = config.model.init_weights;
  if (!file.empty()) train::load_weights(model, train::read_weights(file), file);
}

}  // namespace ddprun::tasks
