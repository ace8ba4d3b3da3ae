#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ddprun/ddp/comm_hooks.h>
#include <ddprun/ddp/distributed_data_parallel.h>
#include <ddprun/run/context.h>
#include <ddprun/train/optim/observed_optimizer.h>

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

  /// Also keeps another part of the training, in the file and in memory: anything with state_dict() and
  /// load_state_dict(), such as train::Ema, LrSchedule and GradScaler. Call it before resume(), which loads
  /// the part unless the file was written without it. The part must outlive this.
  template <typename Part>
  void keep(const std::string& name, Part& part) {
    keep(
        name, [&part] { return c10::IValue(part.state_dict()); },
        [&part](const c10::IValue& state) { part.load_state_dict(state.toGenericDict()); });
  }
  /// The same for any other state.
  void keep(const std::string& name, std::function<c10::IValue()> save,
            std::function<void(const c10::IValue&)> load) {
    parts_.push_back({name, std::move(save), std::move(load)});
  }

  /// Loads the file, which only rank 0 needs to see, on every rank; in a later round, what the ranks kept.
  ///
  /// returns  how many epochs are finished; 0 if there is no file
  /// throws   IoError naming the file if it is damaged or belongs to another model or optimizer
  std::int64_t resume();

  /// Rank 0 writes the file, whole or not at all. Every rank calls it.
  /// throws  IoError naming the file
  void save(std::int64_t finished_epochs);

 private:
  void commit();
  void on_step(bool done);
  void keep_in_memory();
  std::int64_t begin(const train::Position& position);
  void load(const train::TrainingState& state);
  train::TrainingState state_after(const train::Position& position) const;

  const Context& context_;
  std::filesystem::path path_;
  torch::nn::Module& module_;
  torch::optim::Optimizer& optimizer_;
  struct Part {
    std::string name;
    std::function<c10::IValue()> save;
    std::function<void(const c10::IValue&)> load;
  };
  std::vector<Part> parts_;
  int exceptions_;                // in flight when it was made
  Recovery* recovery_ = nullptr;  // null: no state is kept for a lost rank's replacement
  ObservedSteps* steps_ = nullptr;
  std::int64_t saved_ = -1;  // the finished epochs of the last save()
  std::vector<at::Tensor> parameters_;
  // After the newest step.
  std::uint64_t sample_ = 0;  // of the parameters, at the last commit
  std::vector<at::Tensor> buffers_;
};

}  // namespace ddprun
