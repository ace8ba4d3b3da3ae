#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize.h>

#include <string>
#include <vector>

#include <ddprun/group/collectives.h>
#include <ddprun/run/distributed.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/optimizer_state.h>
#include <ddprun/train/state/state_dict_file.h>

namespace ddprun {

std::int64_t Checkpoint::resume() {
  std::string bytes;
  if (context_.is_main() && std::filesystem::exists(path_)) {
    const auto pickled = torch::pickle_save(train::to_value(train::read_checkpoint(path_)));
    bytes.assign(pickled.begin(), pickled.end());
  }
  if (context_.world_size() > 1) bytes = ddp::broadcast_from_rank_0(context_.group(), bytes);
  if (bytes.empty()) return 0;
  const auto state = train::to_training_state(torch::pickle_load({bytes.begin(), bytes.end()}), path_);
  train::load_weights(module_, train::to_weights(state.model, path_), path_);
  train::load_optimizer_state(optimizer_, state.optimizer, path_);
  return state.position.epoch;
}

void Checkpoint::save(std::int64_t finished_epochs) {
  const auto optimizer = train::optimizer_state_dict(optimizer_);  // of a ZeroOptimizer, from every rank
  if (!context_.is_main()) return;
  train::TrainingState state{.model = train::state_dict(module_), .optimizer = optimizer};
  state.epoch = finished_epochs - 1;
  state.position = {finished_epochs, 0};
  state.world_size = context_.world_size();
  train::save_checkpoint(path_, state);
}

}  // namespace ddprun
