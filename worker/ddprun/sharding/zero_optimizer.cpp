#include <ddprun/sharding/zero_optimizer.h>

#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <stdexcept>
#include <tuple>

#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <ddprun/common/errors.h>
#include <ddprun/group/collectives.h>

namespace ddprun::ddp {
namespace {

using torch::Tensor;
using torch::optim::OptimizerParamGroup;

std::vector<int> owners_of(const ZeroOptimizer::Groups& groups, int ranks) {
  std::vector<std::vector<std::int64_t>> sizes;
  std::set<const void*> seen;
  for (const auto& group : groups) {
    sizes.emplace_back();
    for (const auto& parameter : group.params()) {
      sizes.back().push_back(parameter.numel());
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second)
        throw std::invalid_argument("ZeroOptimizer: expected every parameter once, got a duplicate");
    }
  }
  if (seen.empty()) throw std::invalid_argument("ZeroOptimizer: expected parameters, got none");
  return partition_parameters(sizes, ranks);
}

ZeroOptimizer::Groups part_of(const ZeroOptimizer::Groups& groups, const std::vector<int>& owners, int rank) {
  ZeroOptimizer::Groups result;
  auto owner = owners.begin();
  for (const auto& group : groups) {
    std::vector<Tensor> parameters;
    for (const auto& parameter : group.params())
      if (*owner++ == rank) parameters.push_back(parameter);
    auto& part = result.emplace_back(std::move(parameters));
    if (group.has_options()) part.set_options(group.options().clone());
  }
  return result;
}

/// A parameter's elements in a flat buffer, where each starts at a cache line, like separate memory.
std::int64_t padded_numel(const Tensor& parameter) {
  const auto line = 64 / static_cast<std::int64_t>(parameter.element_size());
  return (parameter.numel() + line - 1) / line * line;
}

/// A tensor's parameter, name, dtype and sizes.
using Description = std::tuple<std::size_t, std::string, int, std::vector<std::int64_t>>;

}  // namespace

std::vector<int> partition_parameters(const std::vector<std::vector<std::int64_t>>& group_sizes, int ranks) {
  std::vector<std::int64_t> load(static_cast<std::size_t>(ranks), 0);
  std::vector<int> owners;
  for (const auto& sizes : group_sizes) {
    std::vector<std::size_t> order(sizes.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return sizes[a] > sizes[b]; });
    const auto begin = owners.size();
    owners.resize(begin + sizes.size());
    for (const auto i : order) {
      const auto least = std::min_element(load.begin(), load.end());
      *least += sizes[i];
      owners[begin + i] = static_cast<int>(least - load.begin());
    }
  }
  return owners;
}

ZeroOptimizer::ZeroOptimizer(Groups groups, const Factory& make_optimizer, const ProcessGroup& group)
    : Optimizer(Groups{}, nullptr), group_(group), owners_(owners_of(groups, group.size())) {
  local_ = make_optimizer(part_of(groups, owners_, group.rank()));
  ensure(local_ != nullptr && local_->param_groups().size() == groups.size(),
         "the factory makes an optimizer of the groups that it is given");
  defaults_ = local_->defaults().clone();
  for (const auto& each : groups) add_param_group(each);
  state_.swap(local_->state());
  flatten_parameters();
}

void ZeroOptimizer::flatten_parameters() {
  if (group_.size() == 1) return;
  torch::NoGradGuard no_grad;
  std::size_t index = 0;
  for (const auto& group : param_groups_)
    for (const auto& parameter : group.params()) {
      const int owner = owners_[index++];
      if (!parameter.requires_grad()) continue;
      auto part = std::find_if(parts_.begin(), parts_.end(), [&](const Part& each) {
        const auto& first = each.parameters[0].first;
        return each.owner == owner && first.scalar_type() == parameter.scalar_type() &&
               first.device() == parameter.device();
      });
      if (part == parts_.end()) part = parts_.insert(part, {owner, {}, {}});
      part->parameters.emplace_back(parameter, nullptr);
    }
  for (auto& part : parts_) {
    std::int64_t size = 0;
    for (const auto& [parameter, place] : part.parameters) size += padded_numel(parameter);
    part.flat = torch::zeros({size}, part.parameters[0].first.options().requires_grad(false));
    std::int64_t offset = 0;
    for (auto& [parameter, place] : part.parameters) {
      const auto dense =
          parameter.is_non_overlapping_and_dense() ? parameter.detach() : parameter.detach().contiguous();
      const auto view = part.flat.as_strided(dense.sizes(), dense.strides(), offset);
      view.copy_(dense);
      parameter.set_data(view);
      place = parameter.data_ptr();
      offset += padded_numel(parameter);
    }
  }
}

void ZeroOptimizer::check_unchanged() const {
  std::size_t count = 0, trainable = 0, flat = 0;
  for (const auto& group : param_groups_) {
    count += group.params().size();
    for (const auto& parameter : group.params()) trainable += parameter.requires_grad() ? 1 : 0;
  }
  if (count != owners_.size() || param_groups_.size() != local_->param_groups().size())
    throw std::invalid_argument("ZeroOptimizer: a parameter was added; make a new optimizer instead");
  if (group_.size() == 1) return;
  for (const auto& part : parts_)
    for (const auto& [parameter, place] : part.parameters) {
      if (parameter.data_ptr() != place)
        throw std::invalid_argument(
            "ZeroOptimizer: a parameter's memory was replaced; move the model to its device and type first");
      flat += parameter.requires_grad() ? 1 : 0;
    }
  if (flat != trainable)
    throw std::invalid_argument(
        "ZeroOptimizer: a parameter was made trainable later; do that before making the optimizer");
}

void ZeroOptimizer::step_own_part() {
  for (std::size_t i = 0; i < param_groups_.size(); ++i)
    local_->param_groups()[i].set_options(param_groups_[i].options().clone());
  state_.swap(local_->state());
  const auto take_back = c10::make_scope_exit([this] { state_.swap(local_->state()); });
  local_->step();
}

void ZeroOptimizer::broadcast_parameters() {
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  for (const auto& part : parts_) {
    c10d::BroadcastOptions options;
    options.rootRank = part.owner;
    std::vector<Tensor> tensors = {part.flat};
    works.push_back(group_.handle()->broadcast(tensors, options));
  }
  for (const auto& work : works) work->wait();
}

Tensor ZeroOptimizer::step(LossClosure closure) {
  Tensor loss;
  if (closure != nullptr) {
    torch::AutoGradMode enable_grad(true);
    loss = closure();
  }
  torch::NoGradGuard no_grad;
  check_unchanged();
  step_own_part();
  broadcast_parameters();
  return loss;
}

std::vector<ZeroOptimizer::NamedTensors> ZeroOptimizer::gather_to_rank_0(
    const std::vector<NamedTensors>& own) const {
  std::vector<Description> tensors_here;
  for (std::size_t i = 0; i < own.size(); ++i)
    for (const auto& [name, tensor] : own[i])
      tensors_here.emplace_back(i, name, static_cast<int>(tensor.scalar_type()), tensor.sizes().vec());
  const auto descriptions = all_gather(group_, nlohmann::json(tensors_here).dump());
  std::vector<NamedTensors> all(owners_.size());
  if (group_.rank() != 0) {
    for (const auto& tensors : own)
      for (const auto& [name, tensor] : tensors) {
        // Over the CPU, where state dicts are, whatever the parameters' device.
        std::vector<Tensor> sent = {tensor.detach().cpu().contiguous()};
        group_.handle()->send(sent, /*dstRank=*/0, /*tag=*/0)->wait();
      }
    return all;
  }
  for (std::size_t i = 0; i < own.size(); ++i)
    for (const auto& [name, tensor] : own[i]) all[i].emplace_back(name, tensor.detach().cpu());
  for (int source = 1; source < group_.size(); ++source)
    for (const auto& [parameter, name, dtype, sizes] :
         nlohmann::json::parse(descriptions[static_cast<std::size_t>(source)])
             .get<std::vector<Description>>()) {
      std::vector<Tensor> tensors = {torch::empty(sizes, static_cast<torch::Dtype>(dtype))};
      group_.handle()->recv(tensors, source, /*tag=*/0)->wait();
      all.at(parameter).emplace_back(name, tensors[0]);
    }
  return all;
}

}  // namespace ddprun::ddp
