#include <ddprun/train/optim/fused_optimizers.h>

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <tuple>
#include <vector>

namespace ddprun::train {
namespace {

using torch::Tensor;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;
using Tensors = std::vector<Tensor>;

bool fits(const Tensor& parameter) {
  const auto& gradient = parameter.grad();
  return parameter.layout() == torch::kStrided && parameter.is_non_overlapping_and_dense() &&
         at::isFloatingType(parameter.scalar_type()) && (parameter.is_cpu() || parameter.is_cuda()) &&
         gradient.layout() == torch::kStrided && gradient.scalar_type() == parameter.scalar_type() &&
         gradient.device() == parameter.device();
}

/// Whether the fused kernels can update every parameter that has a gradient.
bool all_fit(const Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups())
    for (const auto& parameter : group.params())
      if (parameter.grad().defined() && !fits(parameter)) return false;
  return true;
}

/// The kernels walk over memory, element i of one tensor with element i of another. How far apart the
/// elements of a dimension of one would lie does not matter.
Tensor laid_out_like(const Tensor& parameter, const Tensor& other) {
  bool same = true;
  for (std::int64_t i = 0; i < parameter.dim(); ++i)
    same = same && (parameter.size(i) == 1 || parameter.stride(i) == other.stride(i));
  return same ? other : torch::empty_like(parameter.detach()).copy_(other);
}

/// What one call of a kernel takes: tensors of one device and type, and of parameters as many steps old.
struct Batch {
  Tensors parameters, gradients, first, second, third;  // the state's tensors, as the kernel wants them
  std::int64_t step = 0;
  bool first_step = false;
};

Batch& batch_for(std::vector<Batch>& batches, const Tensor& parameter, std::int64_t step, bool first_step) {
  const auto found = std::find_if(batches.begin(), batches.end(), [&](const Batch& batch) {
    const auto& one = batch.parameters[0];
    return one.scalar_type() == parameter.scalar_type() && one.device() == parameter.device() &&
           batch.step == step && batch.first_step == first_step;
  });
  if (found != batches.end()) return *found;
  auto& batch = batches.emplace_back();
  batch.step = step;
  batch.first_step = first_step;
  return batch;
}

void add_parameter(Batch& batch, const Tensor& parameter) {
  batch.parameters.push_back(parameter);
  batch.gradients.push_back(laid_out_like(parameter, parameter.grad()));
}

template <typename State>
State& state_of(Optimizer& optimizer, const Tensor& parameter) {
  auto& slot = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (slot == nullptr) slot = std::make_unique<State>();
  return static_cast<State&>(*slot);
}

/// A state's tensor in the parameter's layout. One that came from elsewhere, in another, is replaced.
Tensor state_tensor(Tensor& tensor, const Tensor& parameter) {
  if (!tensor.defined())
    tensor = torch::zeros_like(parameter.detach());
  else
    tensor = laid_out_like(parameter, tensor);
  return tensor;
}

void sgd_step(Optimizer& optimizer, OptimizerParamGroup& group) {
  const auto& options = static_cast<torch::optim::SGDOptions&>(group.options());
  const bool has_momentum = options.momentum() != 0;
  std::vector<Batch> batches;
  for (const auto& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    Tensor* buffer = nullptr;
    bool first_step = false;
    if (has_momentum) {
      buffer = &state_of<torch::optim::SGDParamState>(optimizer, parameter).momentum_buffer();
      first_step = !buffer->defined();
    }
    auto& batch = batch_for(batches, parameter, 0, first_step);
    add_parameter(batch, parameter);
    if (has_momentum) batch.first.push_back(state_tensor(*buffer, parameter));
  }
  for (const auto& batch : batches)
    at::_fused_sgd_(batch.parameters, batch.gradients, batch.first, options.weight_decay(),
                    options.momentum(), options.lr(), options.dampening(), options.nesterov(),
                    /*maximize=*/false, batch.first_step);
}

/// Adam's and AdamW's, whose options and states differ in type alone.
template <typename Options, typename State, typename Kernel>
void adam_step(Optimizer& optimizer, OptimizerParamGroup& group, const Kernel& kernel) {
  const auto& options = static_cast<Options&>(group.options());
  std::vector<Batch> batches;
  for (const auto& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    auto& state = state_of<State>(optimizer, parameter);
    state.step(state.step() + 1);
    auto& batch = batch_for(batches, parameter, state.step(), false);
    add_parameter(batch, parameter);
    batch.first.push_back(state_tensor(state.exp_avg(), parameter));
    batch.second.push_back(state_tensor(state.exp_avg_sq(), parameter));
    if (options.amsgrad()) batch.third.push_back(state_tensor(state.max_exp_avg_sq(), parameter));
  }
  for (const auto& batch : batches) {
    // Read only: one tensor serves all. On the device, so that nobody waits for it.
    const auto step = torch::full({}, static_cast<double>(batch.step),
                                  torch::dtype(torch::kFloat32).device(batch.parameters[0].device()));
    kernel(batch, Tensors(batch.parameters.size(), step), options);
  }
}

const auto adam_kernel = [](const Batch& batch, const Tensors& steps, const torch::optim::AdamOptions& o) {
  at::_fused_adam_(batch.parameters, batch.gradients, batch.first, batch.second, batch.third, steps, o.lr(),
                   std::get<0>(o.betas()), std::get<1>(o.betas()), o.weight_decay(), o.eps(), o.amsgrad(),
                   /*maximize=*/false);
};

const auto adamw_kernel = [](const Batch& batch, const Tensors& steps, const torch::optim::AdamWOptions& o) {
  at::_fused_adamw_(batch.parameters, batch.gradients, batch.first, batch.second, batch.third, steps, o.lr(),
                    std::get<0>(o.betas()), std::get<1>(o.betas()), o.weight_decay(), o.eps(), o.amsgrad(),
                    /*maximize=*/false);
};

Tensor loss_of(const Optimizer::LossClosure& closure) {
  if (closure == nullptr) return {};
  const torch::AutoGradMode enable_grad(true);
  return closure();
}

}  // namespace

Tensor FusedSgd::step(LossClosure closure) {
  const auto loss = loss_of(closure);
  const torch::NoGradGuard no_grad;
  if (all_fit(*this))
    for (auto& group : param_groups()) sgd_step(*this, group);
  else
    SGD::step();
  return loss;
}

Tensor FusedAdam::step(LossClosure closure) {
  const auto loss = loss_of(closure);
  const torch::NoGradGuard no_grad;
  if (all_fit(*this))
    for (auto& group : param_groups())
      adam_step<torch::optim::AdamOptions, torch::optim::AdamParamState>(*this, group, adam_kernel);
  else
    Adam::step();
  return loss;
}

Tensor FusedAdamW::step(LossClosure closure) {
  const auto loss = loss_of(closure);
  const torch::NoGradGuard no_grad;
  if (all_fit(*this))
    for (auto& group : param_groups())
      adam_step<torch::optim::AdamWOptions, torch::optim::AdamWParamState>(*this, group, adamw_kernel);
  else
    AdamW::step();
  return loss;
}

}  // namespace ddprun::train
