#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ddprun/group/collectives.h>
#include <ddprun/run/distributed.h>
#include <ddprun/run/recovery.h>
#include <ddprun/sharding/zero_optimizer.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/optimizer_state.h>
#include <ddprun/train/state/run_memory.h>
#include <ddprun/train/state/state_dict_file.h>

namespace ddprun {

namespace {

/// Changes whenever an optimizer changes a weight.
std::int64_t version_of(const torch::nn::Module& module) {
  std::int64_t sum = 0;
  for (const auto& parameter : module.parameters()) sum += parameter._version();
  return sum;
}

/// The process's; made with its first Checkpoint.
train::RunMemory& memory_of(Recovery& recovery) {
  if (!recovery.memory) recovery.memory = std::make_shared<train::RunMemory>();
  return *static_cast<train::RunMemory*>(recovery.memory.get());
}

}  // namespace

Checkpoint::Checkpoint(const Context& context, std::filesystem::path path, torch::nn::Module& module,
                       torch::optim::Optimizer& optimizer)
    : context_(context),
      path_(std::move(path)),
      module_(module),
      optimizer_(optimizer),
      exceptions_(std::uncaught_exceptions()) {
  Recovery* recovery = context.recovery();
  const bool whole = dynamic_cast<ddp::ZeroOptimizer*>(&optimizer) == nullptr;
  // On a GPU, a step in progress cannot be abandoned cleanly.
  if (recovery == nullptr || !whole || !context.device().is_cpu()) return;
  recovery->begin = [this](const BatchPlace& place) { begin(place.epoch, place.batches); };
  recovery->rounds.announce(true);
}

Checkpoint::~Checkpoint() {
  Recovery* recovery = context_.recovery();
  if (recovery == nullptr || !recovery->begin) return;
  auto& memory = memory_of(*recovery);
  if (recovery->rounds.enabled() && std::uncaught_exceptions() > exceptions_ && !memory.state &&
      epoch_ >= 0) {
    const bool done = version_of(module_) != version_;  // this batch's step
    const torch::NoGradGuard no_grad;
    const auto buffers = module_.buffers();
    for (std::size_t i = 0; !done && i < buffers.size(); ++i) buffers[i].copy_(buffers_[i]);
    memory.state = state_after({epoch_, done_ + (done ? 1 : 0)});
    memory.state->model =
        train::copied(memory.state->model.toGenericDict());  // the next model takes rank 0's
  }
  recovery->begin = nullptr;
}

void Checkpoint::load(const train::TrainingState& state) {
  train::load_weights(module_, train::to_weights(state.model, path_), path_);
  train::load_optimizer_state(optimizer_, state.optimizer, path_);
}

train::TrainingState Checkpoint::state_after(const train::Position& position) const {
  train::TrainingState state{.model = train::state_dict(module_),
                             .optimizer = train::optimizer_state_dict(optimizer_)};
  state.epoch = position.epoch;
  state.position = position;
  state.world_size = context_.world_size();
  return state;
}

/// returns  the epoch
std::int64_t Checkpoint::begin(std::int64_t epoch, std::int64_t done) {
  const Recovery* recovery = context_.recovery();
  if (recovery == nullptr || !recovery->begin || !recovery->rounds.enabled()) return epoch;
  epoch_ = epoch;
  done_ = done;
  version_ = version_of(module_);
  buffers_.clear();
  for (const auto& buffer : module_.buffers()) buffers_.push_back(buffer.detach().clone());
  return epoch;
}

std::int64_t Checkpoint::resume() {
  if (Recovery* recovery = context_.recovery();
      recovery != nullptr && recovery->begin && context_.env().round > 0) {
    auto& memory = memory_of(*recovery);
    memory.share(context_.group());
    if (const auto state = std::exchange(memory.state, std::nullopt)) {
      context_.print("a lost rank was replaced; going on in epoch ", state->position.epoch + 1);
      recovery->begin_with = {state->position.epoch, state->position.samples};
      load(*state);
      return begin(state->position.epoch, state->position.samples);
    }
  }
  std::string bytes;
  if (context_.is_main() && std::filesystem::exists(path_)) {
    const auto pickled = torch::pickle_save(train::to_value(train::read_checkpoint(path_)));
    bytes.assign(pickled.begin(), pickled.end());
  }
  if (context_.world_size() > 1) bytes = ddp::broadcast_from_rank_0(context_.group(), bytes);
  if (bytes.empty()) return begin(0, 0);
  const auto state = train::to_training_state(torch::pickle_load({bytes.begin(), bytes.end()}), path_);
  load(state);
  return begin(state.position.epoch, 0);
}

void Checkpoint::save(std::int64_t finished_epochs) {
  begin(finished_epochs, 0);
  auto state = state_after({finished_epochs, 0});  // a ZeroOptimizer's state needs every rank
  if (!context_.is_main()) return;
  state.epoch = finished_epochs - 1;
  train::save_checkpoint(path_, state);
}

}  // namespace ddprun
