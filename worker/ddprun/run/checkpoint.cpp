#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include <ddprun/group/collectives.h>
#include <ddprun/run/checkpoint.h>
#include <ddprun/run/recovery.h>
#include <ddprun/run/run_worker.h>
#include <ddprun/sharding/zero_optimizer.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/optimizer_state.h>
#include <ddprun/train/state/run_memory.h>
#include <ddprun/train/state/state_dict_file.h>

namespace ddprun {

namespace {

constexpr const char* kFinished = "finished";  // beside the names of the kept parts

/// Tells whether anything but an ObservedSteps has changed them, such as sharpness-aware minimization, from
/// at most 16 times 8 bytes of each. Their version counters would not tell: LibTorch's optimizers write past
/// them, and averages that are swapped in and out raise them.
std::uint64_t sample_of(const std::vector<at::Tensor>& tensors) {
  constexpr std::size_t kWord = sizeof(std::uint64_t), kSamples = 16;
  std::uint64_t sum = 0;
  for (const auto& tensor : tensors) {
    if (!tensor.has_storage() || tensor.storage().data() == nullptr) continue;
    if (!tensor.is_non_overlapping_and_dense()) continue;
    const auto* bytes = static_cast<const char*>(tensor.const_data_ptr());
    const std::size_t size = tensor.nbytes(), words = std::max<std::size_t>(size / kWord, 1);
    const auto samples = std::min(words, kSamples);
    for (std::size_t i = 0; i < samples; ++i) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes + i * words / samples * kWord, std::min(kWord, size));
      sum = (sum ^ word) * 0x9E3779B97F4A7C15u;
      sum ^= sum >> 32;
    }
  }
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
  if (recovery == nullptr || !recovery->rounds.enabled()) return;
  auto& round = recovery->round;
  const char* problem = nullptr;
  if (round.checkpoints++ > 0) problem = "there is more than one Checkpoint";
  auto* steps = dynamic_cast<ObservedSteps*>(&optimizer);
  if (dynamic_cast<ddp::ZeroOptimizer*>(&optimizer) != nullptr)
    problem = "each rank has a part of the ZeroOptimizer's state";
  if (!context.device().is_cpu())
    problem = "the ranks train on GPUs";  // a step there cannot be abandoned cleanly
  if (problem != nullptr) {
    if (context.is_main()) log_info(std::string("if a rank is lost, all start again: ") + problem);
    round.commit = nullptr;
    if (round.checkpoints > 1) recovery->rounds.announce(false);
    return;
  }
  recovery_ = recovery;
  steps_ = steps;
  if (steps != nullptr)
    steps->on_step = [this](bool done) { on_step(done); };
  else if (context.is_main())
    log_info("if a rank is lost, all continue from the file: make the optimizer a ddprun::Optimizer<...>");
  parameters_ = module.parameters();
  round.commit = [this] { commit(); };
  round.seed = at::detail::getDefaultCPUGenerator().current_seed();
  recovery->rounds.announce(true);
}

Checkpoint::~Checkpoint() {
  if (recovery_ == nullptr) return;
  if (steps_ != nullptr) steps_->on_step = nullptr;
  if (!recovery_->round.commit) return;
  if (std::uncaught_exceptions() > exceptions_) try {
      keep_in_memory();
    } catch (const std::exception&) {  // for instance out of memory
      log_warning(std::string("cannot keep the training's state: ") +
                  describe_failure(std::current_exception()).message);
    }
  recovery_->round.commit = nullptr;
}

void Checkpoint::keep(const std::string& name, std::function<c10::IValue()> save,
                      std::function<void(const c10::IValue&)> load) {
  if (name == kFinished)
    throw std::invalid_argument("Checkpoint::keep: expected a name other than 'finished'");
  parts_.push_back({name, std::move(save), std::move(load)});
}

/// The weights are now those after round.done.
void Checkpoint::commit() {
  std::vector<at::Tensor> buffers;
  for (const auto& buffer : module_.buffers()) buffers.push_back(buffer.detach().clone());
  buffers_ = std::move(buffers);  // nothing below throws
  sample_ = sample_of(parameters_);
}

void Checkpoint::on_step(bool done) {
  auto& round = recovery_->round;
  round.certain = false;
  if (done && round.batch) recovery_->commit({round.batch->epoch, round.batch->batches + 1});
}

/// Unless it is not certain which steps are done.
void Checkpoint::keep_in_memory() {
  auto& memory = memory_of(*recovery_);
  const auto& round = recovery_->round;
  if (memory.state || steps_ == nullptr || !round.certain || sample_of(parameters_) != sample_) return;
  const torch::NoGradGuard no_grad;
  const auto buffers = module_.buffers();
  for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(buffers_[i]);
  auto state = state_after({round.done.epoch, round.done.batches});
  state.model = train::copied(state.model.toGenericDict());  // the next model takes rank 0's
  memory.state = std::move(state);
}

void Checkpoint::load(const train::TrainingState& state) {
  train::load_weights(module_, train::to_weights(state.model, path_), path_);
  train::load_optimizer_state(optimizer_, state.optimizer, path_);
  finished_ = state.callbacks.contains(kFinished);
  for (const auto& part : parts_)
    if (const auto found = state.callbacks.find(part.name); found != state.callbacks.end())
      part.load(found->second);
}

train::TrainingState Checkpoint::state_after(const train::Position& position) const {
  train::TrainingState state{.model = train::state_dict(module_),
                             .optimizer = train::optimizer_state_dict(optimizer_)};
  state.epoch = position.epoch - (position.epoch == saved_ && position.samples == 0 ? 1 : 0);
  state.position = position;
  state.world_size = context_.world_size();
  for (const auto& part : parts_) state.callbacks[part.name] = part.save();
  if (finished_) state.callbacks[kFinished] = true;
  return state;
}

/// returns  what resume() does
std::int64_t Checkpoint::begin(const train::Position& position) {
  epoch_ = position.epoch;
  if (recovery_ != nullptr) {
    recovery_->round.next_epoch = position.epoch;
    recovery_->round.batch.reset();
    recovery_->commit({position.epoch, position.samples});
  }
  return finished_ ? kNoMore : position.epoch;
}

std::int64_t Checkpoint::resume() {
  if (context_.is_main()) remove_dead_temporaries(path_);
  if (recovery_ != nullptr && context_.env().round > 0) {
    auto& memory = memory_of(*recovery_);
    memory.share(context_.group());
    if (const auto state = std::exchange(memory.state, std::nullopt)) {
      const auto& position = state->position;
      context_.print("a lost rank was replaced: continuing in epoch ", position.epoch + 1, " after batch ",
                     position.samples);
      load(*state);
      recovery_->round.begin_with = {position.epoch, position.samples};
      if (state->epoch < position.epoch) {  // in save(), where rank 0 may have been lost
        saved_ = position.epoch;
        if (context_.is_main()) train::save_checkpoint(path_, *state);
      }
      return begin(position);
    }
    context_.print("no rank has the training's state: continuing from the last checkpoint");
  }
  std::string bytes;
  if (context_.is_main() && std::filesystem::exists(path_)) {
    const auto pickled = torch::pickle_save(train::to_value(train::read_checkpoint(path_)));
    bytes.assign(pickled.begin(), pickled.end());
  }
  if (context_.world_size() > 1) bytes = ddp::broadcast_from_rank_0(context_.group(), bytes);
  if (bytes.empty()) return begin({});
  const auto state = train::to_training_state(torch::pickle_load({bytes.begin(), bytes.end()}), path_);
  load(state);
  if (finished_) context_.print("the training has finished: remove ", path_.string(), " to begin again");
  return begin({state.position.epoch, 0});
}

void Checkpoint::save(std::int64_t finished_epochs) {
  saved_ = epoch_ = finished_epochs;
  if (recovery_ != nullptr && finished_epochs > recovery_->round.done.epoch) begin({finished_epochs, 0});
  const auto state = state_after({finished_epochs, 0});  // a ZeroOptimizer's state needs every rank
  if (context_.is_main()) train::save_checkpoint(path_, state);
}

void Checkpoint::finish() {
  finished_ = true;
  save(epoch_ + 1);
}

}  // namespace ddprun
