#include "worker/tasks/init_weights.h"

#include <torch/nn/module.h>

#include <ddprun/train/state/state_dict_file.h>

namespace ddprun::worker {

void init_weights(torch::nn::Module& model, const Config& config) {
  const auto& file = config.model.init_weights;
  if (!file.empty()) train::load_weights(model, train::read_weights(file), file);
}

}  // namespace ddprun::worker
