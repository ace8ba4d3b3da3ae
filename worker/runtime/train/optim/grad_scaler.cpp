#include <ddprun/train/optim/grad_scaler.h>

#include <ATen/core/Dict.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <c10/util/ScopeExit.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

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

}  // namespace ddprun::train
