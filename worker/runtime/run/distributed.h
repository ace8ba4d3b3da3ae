#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <ddprun/ddp/comm_hooks.h>
#include <ddprun/ddp/distributed_data_parallel.h>
#include <ddprun/run/context.h>

namespace torch::optim {
class Optimizer;
}
namespace torch::nn {
class Module;
}
namespace ddprun::train {
struct Position;
struct TrainingState;
}  // namespace ddprun::train

namespace ddprun {

/// A module that every rank trains with the mean of all ranks' gradients, used like the module itself. It may
/// be a torch::jit::Module, a TorchScript model that Python exported:
///
///   DistributedDataParallel<Net> model(ctx, Net(64));
///   auto loss = criterion(model(input), target);   // model->forward(...) would not synchronise
///   loss.backward();
///
/// The counterpart of Python's torch.nn.parallel.DistributedDataParallel. ddp::DistributedDataParallel is the
/// engine under it, for forward passes that are not a single call of the module.
template <typename Module>
class DistributedDataParallel {
 public:
  using Options = ddp::DistributedDataParallel::Options;

  /// Moves the module to the context's device, and copies rank 0's weights to every rank.
  /// throws  as ddp::DistributedDataParallel
  DistributedDataParallel(const Context& context, std::shared_ptr<Module> module, const Options& options = {})
      : module_(moved(std::move(module), context.device())), engine_(*module_, context.group(), options) {}
  DistributedDataParallel(const Context& context, Module module, const Options& options = {})
      : DistributedDataParallel(context, std::make_shared<Module>(std::move(module)), options) {}

  /// Calls the module's forward(inputs...): any result that ddp::visit_output() supports. Returns a
  /// c10::IValue for TorchScript.
  template <typename... Inputs>
  auto operator()(Inputs&&... inputs) {
    return engine_.forward([&] {
      if constexpr (std::is_same_v<Module, torch::jit::Module>)
        return module_->forward({std::forward<Inputs>(inputs)...});
      else
        return module_->forward(std::forward<Inputs>(inputs)...);
    });
  }

  Module& module() const { return *module_; }
  Module* operator->() const { return module_.get(); }

  /// For an optimizer.
  std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> result;
    for (const auto& parameter : module_->parameters()) result.push_back(parameter);
    return result;
  }

  /// While the returned object lives, backward only adds to this rank's gradients.
  auto no_sync() { return engine_.no_sync(); }
  auto join(const ddp::JoinOptions& options) { return engine_.join(options); }
  void register_comm_hook(ddp::CommHook hook) { engine_.register_comm_hook(std::move(hook)); }
  void zero_grad() { engine_.zero_grad(); }
  ddp::DistributedDataParallel& engine() { return engine_; }

 private:
  static std::shared_ptr<Module> moved(std::shared_ptr<Module> module, at::Device device) {
    module->to(device);
    return module;
  }

  std::shared_ptr<Module> module_;
  ddp::DistributedDataParallel engine_;
};

/// A training's state in one file, which Python's torch.load reads too: weights, optimizer and finished
/// epochs.
///
///   Checkpoint checkpoint(ctx, "own_worker.pt", model, optimizer);
///   for (int64_t epoch = checkpoint.resume(); epoch < 5; checkpoint.save(++epoch)) ...
class Checkpoint {
 public:
  /// model and optimizer must outlive it.
  template <typename Module>
  Checkpoint(const Context& context, std::filesystem::path path, DistributedDataParallel<Module>& model,
             torch::optim::Optimizer& optimizer)
      : Checkpoint(context, std::move(path), model.module(), optimizer) {}
  Checkpoint(const Context& context, std::filesystem::path path, torch::nn::Module& module,
             torch::optim::Optimizer& optimizer);
  /// If another rank was lost, keeps the state for the next round.
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  /// Loads the file, which only rank 0 needs to see, on every rank; in a later round, what the ranks kept.
  ///
  /// returns  how many epochs are finished; 0 if there is no file
  /// throws   IoError naming the file if it is damaged or belongs to another model or optimizer
  std::int64_t resume();

  /// Rank 0 writes the file, whole or not at all. Every rank calls it.
  /// throws  IoError naming the file
  void save(std::int64_t finished_epochs);

 private:
  std::int64_t begin(std::int64_t epoch, std::int64_t done);
  void load(const train::TrainingState& state);
  train::TrainingState state_after(const train::Position& position) const;

  const Context& context_;
  std::filesystem::path path_;
  torch::nn::Module& module_;
  torch::optim::Optimizer& optimizer_;
  int exceptions_;  // in flight when it was made
  // If a lost rank can be replaced: the current batch, whose step may be done, and the state before it.
  std::int64_t epoch_ = -1, done_ = 0, version_ = 0;
  std::vector<at::Tensor> buffers_;
};

}  // namespace ddprun
