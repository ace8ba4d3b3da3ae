#include <ddprun/sharding/shard_units.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <tuple>
#include <utility>

#include <ddprun/ddp/replicated_state.h>
#include <ddprun/flight/missing_ranks.h>
#include <ddprun/group/collectives.h>
#include <ddprun/sharding/shard_plan.h>

namespace ddprun::ddp {
namespace {

/// Tensors that overlap would be separated.
void check_no_overlap(const std::vector<NamedTensor>& parameters) {
  std::vector<std::tuple<const char*, const char*, const std::string*>> ranges;
  for (const auto& [name, tensor] : parameters) {
    if (tensor.numel() == 0) continue;
    const auto* begin = static_cast<const char*>(tensor.const_data_ptr());
    std::int64_t last = 0;
    for (std::int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
    ranges.emplace_back(begin, begin + (last + 1) * tensor.element_size(), &name);
  }
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i)
    if (std::get<0>(ranges[i]) < std::get<1>(ranges[i - 1]))
      throw std::invalid_argument("FullyShardedDataParallel: parameters " + *std::get<2>(ranges[i - 1]) +
                                  " and " + *std::get<2>(ranges[i]) +
                                  " overlap in memory; expected the same tensor, or separate ones");
}

/// For each parameter, the smallest requested module that contains it.
std::vector<std::optional<std::size_t>> assign_asked(const std::vector<NamedTensor>& parameters,
                                                     const std::vector<torch::nn::Module*>& asked_units) {
  std::vector<std::optional<std::size_t>> result(parameters.size());
  std::vector<std::size_t> size_of(parameters.size(), std::numeric_limits<std::size_t>::max());
  for (std::size_t unit = 0; unit < asked_units.size(); ++unit) {
    if (asked_units[unit] == nullptr)
      throw std::invalid_argument("FullyShardedDataParallel: unit " + std::to_string(unit) +
                                  ": expected a module, got nullptr");
    const auto inside = asked_units[unit]->parameters();
    for (const auto& tensor : inside) {
      const auto found = std::find_if(parameters.begin(), parameters.end(),
                                      [&](const NamedTensor& named) { return named.tensor.is_same(tensor); });
      if (found == parameters.end())
        throw std::invalid_argument("FullyShardedDataParallel: unit " + std::to_string(unit) + " (" +
                                    asked_units[unit]->name() + ") is not a part of the module");
      const auto index = static_cast<std::size_t>(found - parameters.begin());
      if (inside.size() < size_of[index]) {
        size_of[index] = inside.size();
        result[index] = unit;
      }
    }
  }
  return result;
}

std::vector<ParameterFacts> facts_of(const std::vector<NamedTensor>& parameters,
                                     const std::vector<std::optional<std::size_t>>& asked) {
  std::vector<ParameterFacts> result;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, tensor] = parameters[i];
    const auto dot = name.rfind('.');
    std::ostringstream kind;
    kind << tensor.dtype() << ' ' << tensor.device() << (tensor.requires_grad() ? "" : " frozen");
    result.push_back({name, dot == std::string::npos ? "" : name.substr(0, dot), kind.str(), tensor.numel(),
                      static_cast<std::int64_t>(tensor.element_size()), asked[i]});
  }
  return result;
}

/// A rank with another layout would misread the other ranks' parameters.
void check_same_plan(const ProcessGroup& group, const std::vector<NamedTensor>& parameters,
                     const std::vector<PlannedUnit>& plan) {
  std::ostringstream text;
  for (const auto& unit : plan) {
    text << unit.numel << ':';
    for (const auto& part : unit.parts)
      text << part.parameter << '@' << part.offset << parameters[part.parameter].tensor.strides() << ' ';
  }
  constexpr std::size_t kExactInDouble = std::size_t{1} << 53;
  const auto by_rank =
      all_gather(group, static_cast<double>(std::hash<std::string>()(text.str()) % kExactInDouble));
  std::vector<int> ranks;
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank)
    if (by_rank[rank] != by_rank[0]) ranks.push_back(static_cast<int>(rank));
  if (!ranks.empty())
    throw std::invalid_argument(
        "FullyShardedDataParallel: the units, or the parameters' layout in memory, differ between ranks: "
        "rank 0's are not those of " +
        describe_ranks(ranks) + "; expected the same options and module everywhere");
}

}  // namespace

ShardUnits make_units(torch::nn::Module& module, const ProcessGroup& group, std::int64_t unit_bytes,
                      const std::vector<torch::nn::Module*>& asked_units) {
  const auto state = replicated_state(module, {});
  const auto& parameters = state.parameters;
  if (state.trainable().empty())
    throw std::invalid_argument(
        "FullyShardedDataParallel: expected a module with a parameter that requires a gradient");
  check_same_module(group, state);
  check_no_overlap(parameters);
  const auto plan =
      plan_units(facts_of(parameters, assign_asked(parameters, asked_units)), unit_bytes, group.size());
  check_same_plan(group, parameters, plan);
  ShardUnits result;
  for (const auto& unit : plan) {
    std::vector<at::Tensor> tensors;
    auto& names = result.names.emplace_back();
    for (const auto& part : unit.parts) {
      tensors.push_back(parameters[part.parameter].tensor);
      names.push_back(parameters[part.parameter].name);
    }
    const int tag = static_cast<int>(2 * result.units.size());  // and the next, for gradients
    result.units.emplace_back(unit, std::move(tensors), group, tag);
  }
  return result;
}

std::vector<at::Tensor> tensors_by_name(const std::vector<at::Tensor>& parameters,
                                        const std::vector<std::string>& names,
                                        const std::map<std::string, at::Tensor>& by_name) {
  std::vector<at::Tensor> result;
  std::string missing;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto found = by_name.find(names[i]);
    if (found == by_name.end()) {
      missing = names[i];
      continue;
    }
    if (found->second.sizes() != parameters[i].sizes()) {
      std::ostringstream message;
      message << "share_out: expected " << names[i] << ' ' << parameters[i].sizes() << ", got "
              << found->second.sizes();
      throw std::invalid_argument(message.str());
    }
    result.push_back(found->second);
  }
  if (!result.empty() && !missing.empty())
    throw std::invalid_argument("share_out: expected a tensor for " + missing +
                                " too, which is in a unit with " + names.front() + " to " + names.back());
  return result;
}

}  // namespace ddprun::ddp
