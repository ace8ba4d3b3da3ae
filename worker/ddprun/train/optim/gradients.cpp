#include <ddprun/train/optim/gradients.h>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <c10/util/ScopeExit.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include <ddprun/serialize/dict_reader.h>

namespace ddprun::train {
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

/// Of all of its parameters; the values of sparse ones.
std::vector<Tensors> gradients_of(torch::optim::Optimizer& optimizer) {
  auto groups = gradients_of(parameters_of(optimizer));
  for (auto& group : groups) {
    if (group[0].scalar_type() == at::kHalf)
      throw std::invalid_argument("gradient scaler: expected float32 gradients, got float16");
    for (auto& gradient : group)
      if (gradient.is_sparse()) gradient = gradient._values();
  }
  return groups;
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

void GradScaler::unscale(torch::optim::Optimizer& optimizer, const Reduce& reduce) {
  if (!options_.enabled) return;
  if (stage_ != Stage::kReady)
    throw std::logic_error("gradient scaler: unscale() called twice before update()");
  const torch::NoGradGuard no_grad;
  const auto inverse = scale_.to(torch::kFloat64).reciprocal().to(torch::kFloat32);
  found_inf_.zero_();
  for (const auto& gradients : gradients_of(optimizer))
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

c10::impl::GenericDict GradScaler::state_dict() const {
  if (!options_.enabled) return make_state();
  return make_state({{"scale", get_scale()},
                     {"growth_factor", options_.growth_factor},
                     {"backoff_factor", options_.backoff_factor},
                     {"growth_interval", options_.growth_interval},
                     {"_growth_tracker", static_cast<std::int64_t>(growth_tracker_.item<int>())}});
}

void GradScaler::load_state_dict(const c10::impl::GenericDict& state) {
  if (!options_.enabled) return;
  const DictReader reader(state, "the gradient scaler");
  const auto scale = reader.number("scale");
  auto options = options_;
  options.growth_factor = reader.number("growth_factor");
  options.backoff_factor = reader.number("backoff_factor");
  options.growth_interval = reader.integer("growth_interval");
  growth_tracker_.fill_(reader.integer("_growth_tracker"));
  scale_.fill_(scale);
  options_ = options;
}

Tensor clip_grad_norm(const Tensors& parameters, double max_norm, const ClipNormOptions& options) {
  const torch::NoGradGuard no_grad;
  const auto groups = gradients_of(parameters);
  // A rank without gradients also takes part in the reduction.
  const auto device = !groups.empty()      ? groups[0][0].device()
                      : parameters.empty() ? at::Device(at::kCPU)
                                           : parameters[0].device();
  Tensors norms;
  for (const auto& group : groups)
    for (const auto& norm : at::_foreach_norm(group, options.norm_type)) norms.push_back(norm.to(device));
  auto norm = norms.empty() ? torch::zeros({}, torch::dtype(torch::kFloat32).device(device))
                            : at::linalg_vector_norm(torch::stack(norms), options.norm_type);
  if (options.reduce) {
    const bool infinite = std::isinf(options.norm_type);
    if (!infinite) norm = norm.pow(options.norm_type);
    options.reduce(norm);
    if (!infinite) norm = norm.pow(1 / options.norm_type);
  }
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

namespace autocast = at::autocast;

void set_matmul_precision(const std::string& matmul, bool cudnn_benchmark) {
  if (matmul != "highest" && matmul != "high" && matmul != "medium")
    throw std::invalid_argument("set_matmul_precision: expected highest, high or medium, got '" + matmul +
                                "'");
  at::globalContext().setFloat32MatmulPrecision(matmul);
  at::globalContext().setBenchmarkCuDNN(cudnn_benchmark);
}

AutocastScope::AutocastScope(Precision precision, c10::DeviceType device)
    : device_(device), active_(precision != Precision::k32) {
  if (!active_) return;
  was_caching_ = autocast::is_autocast_cache_enabled();
  was_enabled_ = autocast::is_autocast_enabled(device);
  previous_type_ = autocast::get_autocast_dtype(device);
  autocast::set_autocast_enabled(device, true);
  autocast::set_autocast_dtype(device, precision == Precision::kBf16Mixed ? at::kBFloat16 : at::kHalf);
  autocast::increment_nesting();
  autocast::set_autocast_cache_enabled(true);
}

AutocastScope::~AutocastScope() {
  if (!active_) return;
  if (autocast::decrement_nesting() == 0) autocast::clear_cache();
  autocast::set_autocast_enabled(device_, was_enabled_);
  autocast::set_autocast_dtype(device_, previous_type_);
  autocast::set_autocast_cache_enabled(was_caching_);
}

void to_channels_last(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (const auto& tensors : {module.parameters(), module.buffers()})
    for (const auto& tensor : tensors)
      if (tensor.dim() == 4) tensor.set_data(channels_last(tensor.detach()));
}

}  // namespace ddprun::train
