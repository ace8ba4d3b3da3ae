#include <ddprun/train/optim/optimizer.h>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <ddprun/ddp/model_tensors.h>
#include <ddprun/train/optim/observed_optimizer.h>

namespace ddprun::train {
namespace {

using torch::Tensor;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;
using Tensors = std::vector<Tensor>;

/// Whether the fused kernels can update every parameter that has a gradient.
bool all_fit(Optimizer& optimizer) {
  return std::ranges::all_of(parameters_of(optimizer), [](const Tensor& parameter) {
    const auto& gradient = parameter.grad();
    return !gradient.defined() ||
           (parameter.layout() == torch::kStrided && parameter.is_non_overlapping_and_dense() &&
            at::isFloatingType(parameter.scalar_type()) && (parameter.is_cpu() || parameter.is_cuda()) &&
            gradient.layout() == torch::kStrided && gradient.scalar_type() == parameter.scalar_type() &&
            gradient.device() == parameter.device());
  });
}

/// The kernels pair up elements by their position in memory. Strides of dimensions of size 1 do not matter.
Tensor laid_out_like(const Tensor& parameter, const Tensor& other) {
  bool same = true;
  for (std::int64_t i = 0; i < parameter.dim(); ++i)
    same = same && (parameter.size(i) == 1 || parameter.stride(i) == other.stride(i));
  return same ? other : torch::empty_like(parameter.detach()).copy_(other);
}

/// For one kernel call: tensors of one device and type, for parameters with the same number of steps.
struct Batch {
  Tensors parameters, gradients, first, second, third;  // the state's tensors
  Tensors steps;                                        // counted on the device
  std::int64_t step = 0;
  bool first_step = false;
};

/// The batch that the parameter and its gradient were added to.
Batch& add_parameter(std::vector<Batch>& batches, const Tensor& parameter, std::int64_t step,
                     bool first_step) {
  const auto found = std::find_if(batches.begin(), batches.end(), [&](const Batch& batch) {
    const auto& one = batch.parameters[0];
    return one.scalar_type() == parameter.scalar_type() && one.device() == parameter.device() &&
           batch.step == step && batch.first_step == first_step;
  });
  auto& batch = found != batches.end() ? *found : batches.emplace_back();
  batch.step = step;
  batch.first_step = first_step;
  batch.parameters.push_back(parameter);
  batch.gradients.push_back(laid_out_like(parameter, parameter.grad()));
  return batch;
}

template <typename State>
State& state_of(Optimizer& optimizer, const Tensor& parameter) {
  auto& slot = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (slot == nullptr) slot = std::make_unique<State>();
  return static_cast<State&>(*slot);
}

/// A state tensor, created or converted to the parameter's layout if necessary.
Tensor state_tensor(Tensor& tensor, const Tensor& parameter) {
  tensor = tensor.defined() ? laid_out_like(parameter, tensor) : torch::zeros_like(parameter.detach());
  return tensor;
}

/// rate  undefined: the options'
void sgd_step(Optimizer& optimizer, OptimizerParamGroup& group, const Tensor& rate,
              const std::optional<Tensor>& held) {
  const auto& options = static_cast<torch::optim::SGDOptions&>(group.options());
  const bool has_momentum = options.momentum() != 0;
  std::vector<Batch> batches;
  for (const auto& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    auto* buffer = has_momentum
                       ? &state_of<torch::optim::SGDParamState>(optimizer, parameter).momentum_buffer()
                       : nullptr;
    auto& batch = add_parameter(batches, parameter, 0, has_momentum && !buffer->defined());
    if (has_momentum) batch.first.push_back(state_tensor(*buffer, parameter));
  }
  for (const auto& batch : batches) {
    const auto update = [&](const auto& lr) {
      at::_fused_sgd_(batch.parameters, batch.gradients, batch.first, options.weight_decay(),
                      options.momentum(), lr, options.dampening(), options.nesterov(),
                      /*maximize=*/false, batch.first_step, /*grad_scale=*/{}, held);
    };
    rate.defined() ? update(rate) : update(options.lr());
  }
}

/// On the parameter's device, as the kernels require.
Tensor step_tensor(std::int64_t step, const Tensor& parameter) {
  return torch::full({}, static_cast<double>(step), torch::dtype(torch::kFloat32).device(parameter.device()));
}

/// The parameter's count on its device, which keeps its memory; starts from the state's steps unless ahead of
/// them.
template <typename State>
Tensor& count_of(DeviceSteps& counts, const State& state, const Tensor& parameter) {
  auto& [count, settled] = counts[parameter.unsafeGetTensorImpl()];
  if (!count.defined()) count = step_tensor(state.step(), parameter);
  if (std::exchange(settled, state.step()) != state.step()) count.fill_(state.step());
  return count;
}

/// Copies the counts to the states. Waits for the device.
template <typename State>
void settle_counts(Optimizer& optimizer, DeviceSteps& counts) {
  if (counts.empty()) return;
  Tensors steps;
  for (const auto& [parameter, step] : counts) steps.push_back(step.count);
  const auto values = torch::stack(steps).cpu();
  const auto* value = values.const_data_ptr<float>();
  for (auto& [parameter, step] : counts) {
    step.settled = std::llround(*value++);
    static_cast<State&>(*optimizer.state().at(parameter)).step(step.settled);
  }
}

/// Of Adam or AdamW, whose options, states and kernels differ only in type.
///
/// rate    undefined: the options'
/// counts  null: the states' steps are counted. Else the steps on the device: whether this one counts is not
///         known here
template <typename Options, typename State, typename Kernel>
void adam_step(const Kernel& kernel, Optimizer& optimizer, OptimizerParamGroup& group, const Tensor& rate,
               DeviceSteps* counts, const std::optional<Tensor>& held) {
  const auto& o = static_cast<Options&>(group.options());
  std::vector<Batch> batches;
  for (const auto& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    auto& state = state_of<State>(optimizer, parameter);
    if (counts == nullptr) state.step(state.step() + 1);
    auto& batch = add_parameter(batches, parameter, counts == nullptr ? state.step() : 0, false);
    if (counts != nullptr) batch.steps.push_back(count_of(*counts, state, parameter));
    batch.first.push_back(state_tensor(state.exp_avg(), parameter));
    batch.second.push_back(state_tensor(state.exp_avg_sq(), parameter));
    if (o.amsgrad()) batch.third.push_back(state_tensor(state.max_exp_avg_sq(), parameter));
  }
  for (auto& batch : batches) {
    // Read-only, so one tensor serves all; on the device, to avoid a wait.
    if (counts == nullptr)
      batch.steps.assign(batch.parameters.size(), step_tensor(batch.step, batch.parameters[0]));
    else
      at::_foreach_add_(batch.steps, 1);
    const auto update = [&](const auto& lr) {
      kernel(batch.parameters, batch.gradients, batch.first, batch.second, batch.third, batch.steps, lr,
             std::get<0>(o.betas()), std::get<1>(o.betas()), o.weight_decay(), o.eps(), o.amsgrad(),
             /*maximize=*/false, /*grad_scale=*/std::optional<Tensor>(), held);
    };
    rate.defined() ? update(rate) : update(o.lr());
    if (held) at::_foreach_sub_(batch.steps, Tensors(batch.steps.size(), *held));
  }
}

//   s <- rho s + (1 - rho) g^2
//   d = g sqrt(a + eps) / sqrt(s + eps)
//   a <- rho a + (1 - rho) d^2
//   p <- p - lr d
//
// rate and counts as in adam_step(); held needs counts
void adadelta_step(Optimizer& optimizer, OptimizerParamGroup& group, const Tensor& rate, DeviceSteps* counts,
                   const std::optional<Tensor>& held) {
  const auto& options = static_cast<AdadeltaOptions&>(group.options());
  Tensors parameters, gradients, square_avgs, acc_deltas, steps;
  for (const auto& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    TORCH_CHECK(!parameter.grad().is_sparse(), "Adadelta: expected dense gradients, got a sparse one");
    auto& state = state_of<AdadeltaParamState>(optimizer, parameter);
    if (counts == nullptr)
      state.step(state.step() + 1);
    else
      steps.push_back(count_of(*counts, state, parameter));
    parameters.push_back(parameter);
    gradients.push_back(parameter.grad());
    square_avgs.push_back(state_tensor(state.square_avg(), parameter));
    acc_deltas.push_back(state_tensor(state.acc_delta(), parameter));
  }
  if (parameters.empty()) return;
  Tensors changed, before;
  for (const auto* tensors : {&parameters, &square_avgs, &acc_deltas, &steps})
    changed.insert(changed.end(), tensors->begin(), tensors->end());
  if (held)
    for (const auto& tensor : changed) before.push_back(tensor.clone());
  if (counts != nullptr) at::_foreach_add_(steps, 1);
  const double rho = options.rho();
  if (options.weight_decay() != 0)
    gradients = at::_foreach_add(gradients, parameters, options.weight_decay());
  at::_foreach_mul_(square_avgs, rho);
  at::_foreach_addcmul_(square_avgs, gradients, gradients, 1 - rho);
  const auto roots = at::_foreach_add(square_avgs, options.eps());
  at::_foreach_sqrt_(roots);
  const auto deltas = at::_foreach_add(acc_deltas, options.eps());
  at::_foreach_sqrt_(deltas);
  at::_foreach_div_(deltas, roots);
  at::_foreach_mul_(deltas, gradients);
  at::_foreach_mul_(acc_deltas, rho);
  at::_foreach_addcmul_(acc_deltas, deltas, deltas, 1 - rho);
  if (rate.defined()) {
    at::_foreach_mul_(deltas, rate);
    at::_foreach_sub_(parameters, deltas);
  } else {
    at::_foreach_add_(parameters, deltas, -options.lr());
  }
  for (std::size_t i = 0; i < before.size(); ++i)
    changed[i].copy_(torch::where(*held == 0, changed[i], before[i]));
}

Tensor loss_of(const Optimizer::LossClosure& closure) {
  if (closure == nullptr) return {};
  const torch::AutoGradMode enable_grad(true);
  return closure();
}

/// Calls visit(value in the options, member of the settings, the kind's default) for each setting of the
/// kind.
template <typename Visit>
void for_each_setting(torch::optim::OptimizerOptions& options, const Visit& visit) {
  using S = OptimizerSettings;
  const auto visit_adam = [&](auto& adam, double weight_decay) {
    visit(adam.weight_decay(), &S::weight_decay, weight_decay);
    visit(adam.eps(), &S::eps, 1e-8);
    visit(std::get<0>(adam.betas()), &S::beta1, 0);
    visit(std::get<1>(adam.betas()), &S::beta2, 0);
    visit(adam.amsgrad(), &S::amsgrad, 0);
  };
  if (auto* adam = dynamic_cast<torch::optim::AdamOptions*>(&options)) {
    visit_adam(*adam, 0);
  } else if (auto* adamw = dynamic_cast<torch::optim::AdamWOptions*>(&options)) {
    visit_adam(*adamw, 0.01);
  } else if (auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(&options)) {
    visit(sgd->weight_decay(), &S::weight_decay, 0);
    visit(sgd->momentum(), &S::momentum, 0);
    visit(sgd->dampening(), &S::dampening, 0);
    visit(sgd->nesterov(), &S::nesterov, 0);
  } else if (auto* adadelta = dynamic_cast<AdadeltaOptions*>(&options)) {
    visit(adadelta->weight_decay(), &S::weight_decay, 0);
    visit(adadelta->rho(), &S::rho, 0);
    visit(adadelta->eps(), &S::eps, 1e-6);
  }
}

template <typename Value>
Value setting_of(const OptimizerSettings& settings, Value OptimizerSettings::*member, double) {
  return settings.*member;
}
double setting_of(const OptimizerSettings& settings, std::optional<double> OptimizerSettings::*member,
                  double standard) {
  return (settings.*member).value_or(standard);
}

template <typename Kind, typename Options>
std::unique_ptr<Optimizer> make_kind(const OptimizerSettings& settings,
                                     const std::vector<OptimizerParamGroup>& groups) {
  Options options(settings.lr);
  for_each_setting(options, [&](auto& value, auto member, double standard) {
    value = setting_of(settings, member, standard);
  });
  return std::make_unique<ddprun::Optimizer<Kind>>(groups, options);
}

std::string module_of(const std::string& parameter) {
  const auto dot = parameter.rfind('.');
  return dot == std::string::npos ? "" : parameter.substr(0, dot);
}

std::string layer_of(const std::string& parameter) {
  for (std::size_t begin = 0, end = 0; (end = parameter.find('.', begin)) != std::string::npos;
       begin = end + 1)
    if (parameter.find_first_not_of("0123456789", begin) == end) return parameter.substr(0, end);
  return parameter.substr(0, parameter.find('.'));
}

}  // namespace

Tensor FusedSgd::step(LossClosure closure) {
  const auto loss = loss_of(closure);
  const torch::NoGradGuard no_grad;
  // A momentum left at 0 by a held first step counts as none, except for dampening.
  const bool dampens = std::ranges::any_of(param_groups(), [](const auto& group) {
    return static_cast<const torch::optim::SGDOptions&>(group.options()).dampening() != 0;
  });
  const bool fit = all_fit(*this) && !(dampens && held_);
  for (std::size_t i = 0; fit && i < param_groups().size(); ++i)
    sgd_step(*this, param_groups()[i], rate(i), held_);
  if (!fit && !is_held()) SGD::step();
  return loss;
}

template <typename Plain, typename Options, typename State>
void FusedAdamOf<Plain, Options, State>::settle(Optimizer* holder) {
  settle_counts<State>(holder != nullptr ? *holder : *this, counts_);
}

template <typename Plain, typename Options, typename State>
Tensor FusedAdamOf<Plain, Options, State>::step(Optimizer::LossClosure closure) {
  const auto loss = loss_of(closure);
  const torch::NoGradGuard no_grad;
  const bool fit = all_fit(*this);
  auto* counts = counts_for_step(fit);
  const auto kernel = [](const auto&... arguments) {
    if constexpr (std::is_same_v<Plain, torch::optim::Adam>)
      at::_fused_adam_(arguments...);
    else
      at::_fused_adamw_(arguments...);
  };
  for (std::size_t i = 0; fit && i < this->param_groups().size(); ++i)
    adam_step<Options, State>(kernel, *this, this->param_groups()[i], rate(i), counts, held_);
  if (!fit && !is_held()) Plain::step();
  return loss;
}

template class FusedAdamOf<torch::optim::Adam, torch::optim::AdamOptions, torch::optim::AdamParamState>;
template class FusedAdamOf<torch::optim::AdamW, torch::optim::AdamWOptions, torch::optim::AdamWParamState>;

Adadelta::Adadelta(const std::vector<torch::optim::OptimizerParamGroup>& groups, AdadeltaOptions defaults)
    : Optimizer(groups, std::make_unique<AdadeltaOptions>(defaults)) {
  TORCH_CHECK(defaults.lr() >= 0, "Adadelta: expected a learning rate of 0 or more, got ", defaults.lr());
  TORCH_CHECK(defaults.rho() >= 0 && defaults.rho() <= 1, "Adadelta: expected rho in [0, 1], got ",
              defaults.rho());
  TORCH_CHECK(defaults.eps() >= 0, "Adadelta: expected an eps of 0 or more, got ", defaults.eps());
  TORCH_CHECK(defaults.weight_decay() >= 0, "Adadelta: expected a weight decay of 0 or more, got ",
              defaults.weight_decay());
}

Adadelta::Adadelta(std::vector<Tensor> parameters, AdadeltaOptions defaults)
    : Adadelta({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

Tensor Adadelta::step(LossClosure closure) {
  const auto loss = loss_of(closure);
  const torch::NoGradGuard no_grad;
  auto* counts = counts_for_step(/*can_be_on_device=*/true);
  for (std::size_t i = 0; i < param_groups().size(); ++i)
    adadelta_step(*this, param_groups()[i], rate(i), counts, held_);
  return loss;
}

void Adadelta::settle(Optimizer* holder) {
  settle_counts<AdadeltaParamState>(holder != nullptr ? *holder : *this, counts_);
}

DeviceSteps* HeldBack::counts_for_step(bool can_be_on_device) {
  if (can_be_on_device && (held_ || !rates_.empty())) return &counts_;
  settle();
  counts_.clear();
  return nullptr;
}

bool HeldBack::is_held() const {
  if (!rates_.empty())
    throw std::runtime_error(
        "learning rates on the device: expected gradients that the fused kernels can use");
  return held_ && held_->item<float>() != 0;
}

std::vector<Tensor> parameters_of(Optimizer& optimizer) {
  Tensors all;
  for (const auto& group : optimizer.param_groups())
    all.insert(all.end(), group.params().begin(), group.params().end());
  return all;
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerSettings& settings,
                                          const std::vector<OptimizerParamGroup>& groups) {
  switch (settings.kind) {
    case OptimizerKind::kAdam:
      return make_kind<FusedAdam, torch::optim::AdamOptions>(settings, groups);
    case OptimizerKind::kAdamW:
      return make_kind<FusedAdamW, torch::optim::AdamWOptions>(settings, groups);
    case OptimizerKind::kAdadelta:
      return make_kind<Adadelta, AdadeltaOptions>(settings, groups);
    case OptimizerKind::kSgd:
      break;
  }
  return make_kind<FusedSgd, torch::optim::SGDOptions>(settings, groups);
}

void change_settings(Optimizer& optimizer, const OptimizerSettings& from, const OptimizerSettings& to) {
  for (auto& group : optimizer.param_groups())
    for_each_setting(group.options(), [&](auto& value, auto member, double standard) {
      const auto before = setting_of(from, member, standard), after = setting_of(to, member, standard);
      if (before != after && value == before) value = after;
    });
}

std::vector<ParameterGroup> group_parameters(const torch::nn::Module& module,
                                             const GroupingOptions& options) {
  const auto parameters = ddp::replicated_state(module, {}).parameters;
  std::set<std::string> with_matrix;
  for (const auto& [name, tensor] : parameters)
    if (tensor.dim() > 1) with_matrix.insert(module_of(name));
  std::vector<ParameterGroup> groups;
  std::string layer;
  double factor = 1;
  for (std::size_t i = parameters.size(); i-- > 0;) {
    const auto& name = parameters[i].name;
    const auto its_layer = options.layer_decay == 1 ? "" : layer_of(name);
    if (groups.empty() || its_layer != layer) {
      if (!groups.empty()) factor *= options.layer_decay;
      layer = its_layer;
      groups.insert(groups.end(), {{{}, factor, std::nullopt},
                                   {{}, factor, options.norm_weight_decay},
                                   {{}, factor, options.bias_weight_decay}});
    }
    const bool norm = options.norm_weight_decay && !with_matrix.contains(module_of(name));
    const bool bias = options.bias_weight_decay && !norm && ("." + name).ends_with(".bias");
    auto& names = groups[groups.size() - (norm ? 2 : bias ? 1 : 3)].names;
    names.insert(names.begin(), name);
  }
  std::erase_if(groups, [](const auto& group) { return group.names.empty(); });
  return groups;
}

std::vector<torch::optim::OptimizerParamGroup> optimizer_groups(const torch::nn::Module& module,
                                                                const std::vector<ParameterGroup>& groups,
                                                                const OptimizerSettings& settings) {
  const auto all = ddp::replicated_state(module, {}).parameters;
  std::map<std::string, torch::Tensor> left;
  for (const auto& [name, tensor] : all) left.emplace(name, tensor);
  std::vector<torch::optim::OptimizerParamGroup> result;
  for (const auto& group : groups) {
    std::vector<torch::Tensor> tensors;
    for (const auto& name : group.names) {
      const auto found = left.extract(name);
      if (found.empty())
        throw std::invalid_argument("parameter groups: expected parameters of the module, each once, got '" +
                                    name + "'");
      tensors.push_back(found.mapped());
    }
    if (tensors.empty()) continue;
    auto own = settings;
    own.lr *= group.lr_factor;
    if (group.weight_decay) own.weight_decay = group.weight_decay;
    const auto like = make_optimizer(own, {torch::optim::OptimizerParamGroup(tensors)});
    result.emplace_back(tensors, like->param_groups()[0].options().clone());
  }
  std::vector<torch::Tensor> others;
  for (const auto& [name, tensor] : all)
    if (left.contains(name)) others.push_back(tensor);
  if (!others.empty()) result.insert(result.begin(), torch::optim::OptimizerParamGroup(others));
  return result;
}

}  // namespace ddprun::train
