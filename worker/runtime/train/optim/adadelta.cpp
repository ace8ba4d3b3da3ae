#include <ddprun/train/optim/adadelta.h>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>

#include <utility>

namespace ddprun::train {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

struct Inputs {
  Tensors parameters, gradients, square_avgs, acc_deltas;
};

AdadeltaParamState& state_of(torch::optim::Optimizer& optimizer, const Tensor& parameter) {
  auto& slot = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (slot == nullptr) {
    auto state = std::make_unique<AdadeltaParamState>();
    state->square_avg(torch::zeros_like(parameter.detach()));
    state->acc_delta(torch::zeros_like(parameter.detach()));
    slot = std::move(state);
  }
  return static_cast<AdadeltaParamState&>(*slot);
}

Inputs inputs_of(torch::optim::Optimizer& optimizer, const torch::optim::OptimizerParamGroup& group) {
  Inputs in;
  for (const auto& parameter : group.params()) {
    const auto& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    TORCH_CHECK(!gradient.is_sparse(), "Adadelta: expected dense gradients, got a sparse one");
    auto& state = state_of(optimizer, parameter);
    state.step(state.step() + 1);
    in.parameters.push_back(parameter);
    in.gradients.push_back(gradient);
    in.square_avgs.push_back(state.square_avg());
    in.acc_deltas.push_back(state.acc_delta());
  }
  return in;
}

//   s <- rho s + (1 - rho) g^2;  d = g sqrt(a + eps) / sqrt(s + eps);  a <- rho a + (1 - rho) d^2;  p <- p -
//   lr d
void update(Inputs in, const AdadeltaOptions& options) {
  const double rho = options.rho();
  if (options.weight_decay() != 0)
    in.gradients = at::_foreach_add(in.gradients, in.parameters, options.weight_decay());
  at::_foreach_mul_(in.square_avgs, rho);
  at::_foreach_addcmul_(in.square_avgs, in.gradients, in.gradients, 1 - rho);
  const auto roots = at::_foreach_add(in.square_avgs, options.eps());
  at::_foreach_sqrt_(roots);
  const auto deltas = at::_foreach_add(in.acc_deltas, options.eps());
  at::_foreach_sqrt_(deltas);
  at::_foreach_div_(deltas, roots);
  at::_foreach_mul_(deltas, in.gradients);
  at::_foreach_mul_(in.acc_deltas, rho);
  at::_foreach_addcmul_(in.acc_deltas, deltas, deltas, 1 - rho);
  at::_foreach_add_(in.parameters, deltas, -options.lr());
}

}  // namespace

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
  Tensor loss;
  if (closure != nullptr) {
    const torch::AutoGradMode enable_grad(true);
    loss = closure();
  }
  const torch::NoGradGuard no_grad;
  for (auto& group : param_groups())
    if (auto in = inputs_of(*this, group); !in.parameters.empty())
      update(std::move(in), static_cast<const AdadeltaOptions&>(group.options()));
  return loss;
}

}  // namespace ddprun::train
