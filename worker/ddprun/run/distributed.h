#pragma once

#include <ATen/core/ivalue.h>

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <ddprun/ddp/comm_hooks.h>
#include <ddprun/ddp/distributed_data_parallel.h>
#include <ddprun/run/context.h>

namespace ddprun {

/// What TORCH_MODULE makes, such as torch::nn::Linear and torch::nn::Sequential: refers to a module.
template <typename Type>
concept ModuleHolder = requires(const Type& holder) {
  { holder.ptr() } -> std::convertible_to<std::shared_ptr<typename Type::ContainedType>>;
};

/// The type of a module, of what a shared_ptr points to, or of what a holder refers to.
template <typename Type>
struct ModuleOf {
  using type = Type;
};
template <ModuleHolder Type>
struct ModuleOf<Type> {
  using type = typename Type::ContainedType;
};
template <typename Type>
struct ModuleOf<std::shared_ptr<Type>> {
  using type = Type;
};

/// A module that every rank trains with the mean of all ranks' gradients, used like the module itself. It may
/// be a torch::jit::Module, a TorchScript model that Python exported. Net is the module's type, or the holder
/// that TORCH_MODULE makes of it, and follows from what is given:
///
///   DistributedDataParallel<Net> model(ctx, Net(64));
///   auto loss = criterion(model(input), target);   // model->forward(...) would not synchronise
///   loss.backward();
///
/// The counterpart of Python's torch.nn.parallel.DistributedDataParallel. ddp::DistributedDataParallel is the
/// engine under it, for forward passes that are not a single call of the module.
template <typename Net>
class DistributedDataParallel {
 public:
  using Module = typename ModuleOf<Net>::type;
  using Options = ddp::DistributedDataParallel::Options;

  /// Moves the module to the context's device, and copies rank 0's weights to every rank.
  /// throws  as ddp::DistributedDataParallel
  DistributedDataParallel(const Context& context, std::shared_ptr<Module> module, const Options& options = {})
      : module_(moved(std::move(module), context.device())), engine_(*module_, context.group(), options) {}
  DistributedDataParallel(const Context& context, Module module, const Options& options = {})
      : DistributedDataParallel(context, std::make_shared<Module>(std::move(module)), options) {}
  template <ModuleHolder Holder>
  DistributedDataParallel(const Context& context, const Holder& holder, const Options& options = {})
      : DistributedDataParallel(context, std::shared_ptr<Module>(holder.ptr()), options) {}

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

  /// While the returned object lives, backward only adds to this rank's gradients; with false, nothing
  /// changes.
  [[nodiscard]] auto no_sync(bool accumulate = true) { return engine_.no_sync(accumulate); }
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

template <typename Net>
DistributedDataParallel(const Context&, Net) -> DistributedDataParallel<typename ModuleOf<Net>::type>;
template <typename Net>
DistributedDataParallel(const Context&, Net, const ddp::DistributedDataParallel::Options&)
    -> DistributedDataParallel<typename ModuleOf<Net>::type>;

}  // namespace ddprun
