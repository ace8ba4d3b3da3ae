#include <ddprun/ddp/nan_check.h>

#include <cmath>
#include <utility>

#include <torch/nn/module.h>

#include <ddprun/group/collectives.h>

namespace ddprun::ddp {
namespace {

/// One parameter's counts since the last check.
struct Found {
  double nans = 0, infinities = 0;
  torch::Tensor on_device;  ///< the same for a GPU's gradients, to be read later
};

torch::Tensor count(const torch::Tensor& gradient) {
  return torch::stack({gradient.isnan().sum(), gradient.isinf().sum()}).to(torch::kFloat64);
}

void add(Found& found, const double* counts) {
  found.nans += counts[0];
  found.infinities += counts[1];
}

void look_at(Found& found, const torch::Tensor& incoming) {
  const torch::NoGradGuard no_grad;
  const auto gradient = incoming.is_sparse() ? incoming._values() : incoming;
  if (!gradient.is_cpu()) {
    const auto counts = count(gradient);
    found.on_device = found.on_device.defined() ? found.on_device + counts : counts;
    return;
  }
  // One cheap pass settles most cases: the sum is finite unless a value is not or, rarely, it overflows.
  if (!std::isfinite(gradient.sum().item<double>())) add(found, count(gradient).const_data_ptr<double>());
}

}  // namespace

struct NanCheck::Parameter {
  std::string name;
  torch::Tensor tensor;
  unsigned hook = 0;
  Found found = {};
};

NanCheck::NanCheck(const torch::nn::Module& module, const ProcessGroup& group) : group_(group) {
  for (const auto& item : module.named_parameters())
    if (item.value().requires_grad()) parameters_.push_back({item.key(), item.value()});
  // The parameter's hook runs before its gradient is accumulated; DistributedDataParallel reads the
  // accumulated one.
  for (auto& parameter : parameters_)
    parameter.hook = parameter.tensor.register_hook(
        [&parameter](const torch::Tensor& gradient) { look_at(parameter.found, gradient); });
}

NanCheck::~NanCheck() {
  for (auto& parameter : parameters_) parameter.tensor.remove_hook(parameter.hook);
}

void NanCheck::check() {
  std::vector<torch::Tensor> on_device;
  for (const auto& parameter : parameters_)
    if (parameter.found.on_device.defined()) on_device.push_back(parameter.found.on_device);
  const auto counts = on_device.empty() ? torch::Tensor() : torch::cat(on_device).cpu();  // the only copy
  const auto* next = on_device.empty() ? nullptr : counts.const_data_ptr<double>();
  std::string own;  // this rank's first bad parameter
  for (auto& parameter : parameters_) {
    Found found = std::exchange(parameter.found, {});
    if (found.on_device.defined()) add(found, std::exchange(next, next + 2));
    if (found.nans + found.infinities == 0 || !own.empty()) continue;
    const auto number = [](double value) { return std::to_string(std::llround(value)); };
    own = parameter.name + " on rank " + std::to_string(group_.rank()) + ": " + number(found.nans) +
          " NaN and " + number(found.infinities) + " infinite of " +
          std::to_string(parameter.tensor.numel()) + " values";
  }

  std::string text;
  for (const auto& bad : all_gather(group_, own))
    if (!bad.empty()) text += (text.empty() ? "gradient of " : "; of ") + bad;
  if (!text.empty()) throw NonFiniteGradient(text);
}

}  // namespace ddprun::ddp
