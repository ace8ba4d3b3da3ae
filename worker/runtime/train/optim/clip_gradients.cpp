#include <ddprun/train/optim/clip_gradients.h>

#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

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
