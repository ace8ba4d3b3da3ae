#pragma once

#include "worker/config/config.h"

namespace torch::nn {
class Module;
}

namespace ddprun::worker {

/// Gives the model the weights that --init-weights names, if it does. throws as train::load_weights()
void init_weights(torch::nn::Module& model, const Config& config);

}  // namespace ddprun::worker
