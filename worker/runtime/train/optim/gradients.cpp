#include <ddprun/train/optim/gradients.h>

#include <ATen/core/Dict.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <c10/util/ScopeExit.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <ddprun/serialize/dict_reader.h>
#include <ddprun/train/optim/optimizer.h>

namespace ddprun::train {
namespace {

/// The gradients by type; the values of sparse ones.
std::map<at::ScalarType, std::vector<at::Tensor>> gradients_of(torch::optim::Optimizer& optimizer) {
  std::map<at::ScalarType, std::vector<at::Tensor>> result;
  for (const auto& group : optimizer.param_groups())
    for (const auto& parameter : group.params()) {
      const auto& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      if (gradient.scalar_type() == at::kHalf)
        throw std::invalid_argument("gradient scaler: expected float32 gradients, got float16");
      result[gradient.scalar_type()].push_back(gradient.is_sparse() ? gradient._values() : gradient);
    }
  return result;
}

}  // namespace

GradScaler::GradScaler(at::Device device, const Options& options) : options_(options) {
  if (!options.enabled) return;
  if (options.growth_factor <= 1)
    throw std::invalid_argument("gradient scaler: expected a growth factor above 1, got " +
                                std::to_string(options.growth_factor));
  if (options.backoff_factor >= 1)
    throw std::invalid_argument("gradient scaler: expected a backoff factor below 1, got " +
                                std::to_string(options.backoff_factor));
  scale_ = torch::full({}, options.init_scale, torch::dtype(torch::kFloat32).device(device));
  growth_tracker_ = torch::zeros({}, torch::dtype(torch::kInt32).device(device));
  found_inf_ = torch::zeros({}, torch::dtype(torch::kFloat32).device(device));
  skipped_on_device_ = torch::zeros_like(found_inf_);
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const { return options_.enabled ? loss * scale_ : loss; }

void GradScaler::unscale(torch::optim::Optimizer& optimizer, const Reduce& reduce) {
  if (!options_.enabled) return;
  if (stage_ != Stage::kReady)
    throw std::logic_error("gradient scaler: unscale() called twice before update()");
  const torch::NoGradGuard no_grad;
  const auto inverse = scale_.to(torch::kFloat64).reciprocal().to(torch::kFloat32);
  found_inf_.zero_();
  for (const auto& [type, gradients] : gradients_of(optimizer))
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf_, inverse);
  if (reduce) {
    reduce(found_inf_);
    found_inf_.clamp_max_(1);  // the optimizers' kernels require exactly 1
  }
  stage_ = Stage::kUnscaled;
}

void GradScaler::before_step(torch::optim::Optimizer& optimizer, const Reduce& reduce) {
  if (stage_ == Stage::kStepped)
    throw std::logic_error("gradient scaler: step() called twice before update()");
  if (stage_ == Stage::kReady) unscale(optimizer, reduce);
  stage_ = Stage::kStepped;
}

bool GradScaler::step(torch::optim::Optimizer& optimizer, const Reduce& reduce) {
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  before_step(optimizer, reduce);
  const bool finite = found_inf_.item<float>() == 0;
  if (finite)
    optimizer.step();
  else
    ++skipped_steps_;
  return finite;
}

const at::Tensor& GradScaler::step_on_device(torch::optim::Optimizer& optimizer, HeldBack& held,
                                             const Reduce& reduce) {
  before_step(optimizer, reduce);
  held.hold(found_inf_);
  const auto release = c10::make_scope_exit([&held] { held.hold({}); });
  optimizer.step();
  skipped_on_device_ += found_inf_;
  return found_inf_;
}

std::int64_t GradScaler::skipped_steps() const {
  return skipped_steps_ + (options_.enabled ? std::llround(skipped_on_device_.item<float>()) : 0);
}

void GradScaler::update() {
  if (!options_.enabled) return;
  if (stage_ == Stage::kReady)
    throw std::logic_error("gradient scaler: update() without unscale() or step()");
  const torch::NoGradGuard no_grad;
  at::_amp_update_scale_(scale_, growth_tracker_, found_inf_, options_.growth_factor, options_.backoff_factor,
                         options_.growth_interval);
  stage_ = Stage::kReady;
}

double GradScaler::get_scale() const { return options_.enabled ? scale_.item<double>() : 1; }

c10::impl::GenericDict GradScaler::state_dict() const {
  auto state = make_state();
  if (!options_.enabled) return state;
  state.insert("scale", get_scale());
  state.insert("growth_factor", options_.growth_factor);
  state.insert("backoff_factor", options_.backoff_factor);
  state.insert("growth_interval", options_.growth_interval);
  state.insert("_growth_tracker", static_cast<std::int64_t>(growth_tracker_.item<int>()));
  return state;
}

void GradScaler::load_state_dict(const c10::impl::GenericDict& state) {
  if (!options_.enabled) return;
  const DictReader reader(state, "the gradient scaler");
  const auto scale = reader.number("scale");
  const auto growth_factor = reader.number("growth_factor");
  const auto backoff_factor = reader.number("backoff_factor");
  const auto growth_interval = reader.integer("growth_interval");
  const auto tracker = reader.integer("_growth_tracker");
  scale_.fill_(scale);
  growth_tracker_.fill_(tracker);
  options_.growth_factor = growth_factor;
  options_.backoff_factor = backoff_factor;
  options_.growth_interval = growth_interval;
}

namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

/// The gradients, grouped by device and type.
std::vector<Tensors> gradients_of(const Tensors& parameters) {
  std::vector<Tensors> groups;
  for (const auto& parameter : parameters) {
    const auto& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const Tensors& group) {
      return group[0].device() == gradient.device() && group[0].scalar_type() == gradient.scalar_type();
    });
    (same != groups.end() ? *same : groups.emplace_back()).push_back(gradient);
  }
  return groups;
}

Tensor norm_of(const std::vector<Tensors>& groups, const at::Device& device, double norm_type) {
  Tensors norms;
  for (const auto& group : groups)
    for (const auto& norm : at::_foreach_norm(group, norm_type)) norms.push_back(norm.to(device));
  if (norms.empty()) return torch::zeros({}, torch::dtype(torch::kFloat32).device(device));
  return at::linalg_vector_norm(torch::stack(norms), norm_type);
}

Tensor reduced(Tensor norm, const ClipNormOptions& options) {
  if (!options.reduce) return norm;
  const bool infinite = std::isinf(options.norm_type);
  auto power = infinite ? norm : norm.pow(options.norm_type);
  options.reduce(power);
  return infinite ? power : power.pow(1 / options.norm_type);
}

}  // namespace

Tensor clip_grad_norm(const Tensors& parameters, double max_norm, const ClipNormOptions& options) {
  const torch::NoGradGuard no_grad;
  const auto groups = gradients_of(parameters);
  // A rank without gradients also takes part in the reduction.
  const auto device = !groups.empty()      ? groups[0][0].device()
                      : parameters.empty() ? at::Device(at::kCPU)
                                           : parameters[0].device();
  const auto norm = reduced(norm_of(groups, device, options.norm_type), options);
  if (options.error_if_nonfinite && !std::isfinite(norm.item<double>()))
    throw std::runtime_error(c10::str("gradient norm: expected a finite value, got ", norm.item<double>()));
  const auto scale = (max_norm / (norm + 1e-6)).clamp_max(1.0);
  for (const auto& group : groups) at::_foreach_mul_(group, scale.to(group[0].device()));
  return norm;
}

void clip_grad_value(const Tensors& parameters, double limit) {
  const torch::NoGradGuard no_grad;
  for (const auto& group : gradients_of(parameters)) {
    at::_foreach_clamp_min_(group, -limit);
    at::_foreach_clamp_max_(group, limit);
  }
}

}  // namespace ddprun::train
