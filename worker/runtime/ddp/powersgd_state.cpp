#include <algorithm>
#include <sstream>
#include <stdexcept>

#include <torch/nn/module.h>

#include <ddprun/ddp/powersgd_hook.h>
#include <ddprun/ddp/powersgd_round.h>

namespace ddprun::ddp {
namespace {

std::string text(torch::IntArrayRef shape) {
  std::ostringstream out;
  out << shape;
  return out.str();
}

/// A copy of the entry, of the parameter's type and on its device.
torch::Tensor fitting(const std::string& what, const torch::Tensor& entry, torch::IntArrayRef shape,
                      const torch::Tensor& parameter) {
  if (entry.sizes() != shape)
    throw std::invalid_argument("PowerSgd: " + what + ": expected the shape " + text(shape) + ", got " +
                                text(entry.sizes()));
  return entry.detach().to(parameter.options(), /*non_blocking=*/false, /*copy=*/true);
}

}  // namespace

PowerSgd::State PowerSgd::state(const torch::nn::Module& module) const {
  State state;
  state.iteration = iteration_;
  std::ostringstream random;
  random << random_;
  state.random_state = random.str();
  for (const auto& item : module.named_parameters()) {
    const auto found = memory_.find(item.value().unsafeGetTensorImpl());
    if (found == memory_.end()) continue;
    if (found->second->error.defined()) state.errors[item.key()] = found->second->error.clone();
    if (found->second->q.defined()) state.qs[item.key()] = found->second->q.clone();
  }
  return state;
}

void PowerSgd::load_state(const torch::nn::Module& module, const State& state) {
  const auto parameters = module.named_parameters();
  const auto find = [&](const std::string& name) {
    const auto* parameter = parameters.find(name);
    if (parameter == nullptr)
      throw std::invalid_argument("PowerSgd: the state has " + name +
                                  ", which is no parameter of the module");
    return *parameter;
  };
  decltype(memory_) memory;
  const auto memory_of = [&](const torch::Tensor& parameter) -> PowerSgdMemory& {
    auto& entry = memory[parameter.unsafeGetTensorImpl()];
    if (!entry) entry = std::make_shared<PowerSgdMemory>();
    return *entry;
  };
  for (const auto& [name, error] : state.errors) {
    const auto parameter = find(name);
    memory_of(parameter).error = fitting("error of " + name, error, parameter.sizes(), parameter);
  }
  for (const auto& [name, q] : state.qs) {
    const auto parameter = find(name);
    const std::int64_t rows = parameter.dim() == 0 ? 1 : parameter.size(0);
    const std::int64_t columns = parameter.numel() / std::max<std::int64_t>(rows, 1);
    memory_of(parameter).q =
        fitting("q of " + name, q, {columns, std::min({rows, columns, options_.rank})}, parameter);
  }
  std::mt19937 random;
  std::istringstream random_state(state.random_state);
  if (!(random_state >> random))
    throw std::invalid_argument("PowerSgd: random_state: expected what state() gave");
  memory_ = std::move(memory);
  random_ = random;
  iteration_ = state.iteration;
}

}  // namespace ddprun::ddp
