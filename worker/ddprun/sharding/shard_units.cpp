#include <ddprun/sharding/shard_units.h>

#include <ATen/ops/empty_like.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <set>
#include <sstream>
#include <stdexcept>
#include <tuple>
#include <utility>

#include <ddprun/ddp/model_tensors.h>
#include <ddprun/flight/flight_analysis.h>
#include <ddprun/group/collectives.h>

namespace ddprun::ddp {
namespace {

constexpr std::int64_t kAlignBytes = 64;

std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

struct UnitMembers {
  std::vector<std::size_t> parameters;
  std::int64_t bytes = 0;
};

PlannedUnit lay_out(const std::vector<ParameterFacts>& parameters, const UnitMembers& group, int world_size) {
  PlannedUnit unit;
  std::int64_t end = 0;
  for (const std::size_t index : group.parameters) {
    const auto& parameter = parameters[index];
    const std::int64_t align = std::max<std::int64_t>(1, kAlignBytes / parameter.element_bytes);
    unit.parts.push_back({index, round_up(end, align)});
    end = unit.parts.back().offset + parameter.numel;
  }
  unit.shard_numel = std::max<std::int64_t>(1, round_up(end, world_size) / world_size);
  unit.numel = unit.shard_numel * world_size;
  unit.name = parameters[group.parameters.front()].name;
  if (group.parameters.size() > 1) unit.name += " to " + parameters[group.parameters.back()].name;
  return unit;
}

/// Tensors that overlap would be separated.
void check_no_overlap(const std::vector<NamedTensor>& parameters) {
  std::vector<std::tuple<const char*, const char*, const std::string*>> ranges;
  for (const auto& [name, tensor] : parameters) {
    if (tensor.numel() == 0 || tensor.is_meta()) continue;
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

constexpr const char* kUncast = " uncast";  // ends the kind of parameters that mixed precision does not cast

std::vector<ParameterFacts> facts_of(const std::vector<NamedTensor>& parameters, bool cast_norms) {
  std::vector<ParameterFacts> result;
  std::set<std::string> with_matrix;
  for (const auto& [name, tensor] : parameters) {
    const auto dot = name.rfind('.');
    result.push_back(
        {.name = name,
         .module = dot == std::string::npos ? "" : name.substr(0, dot),
         .kind = c10::str(tensor.dtype(), ' ', tensor.device(), tensor.requires_grad() ? "" : " frozen"),
         .numel = tensor.numel(),
         .element_bytes = static_cast<std::int64_t>(tensor.element_size())});
    if (tensor.dim() > 1) with_matrix.insert(result.back().module);
  }
  for (auto& facts : result)
    if (!cast_norms && !with_matrix.contains(facts.module)) facts.kind += kUncast;
  return result;
}

/// Asks, for each parameter, for the smallest requested module that contains it.
void ask_for_units(const std::vector<torch::nn::Module*>& asked_units,
                   const std::vector<NamedTensor>& parameters, std::vector<ParameterFacts>& facts) {
  std::vector<std::size_t> size_of(parameters.size(), std::numeric_limits<std::size_t>::max());
  for (std::size_t unit = 0; unit < asked_units.size(); ++unit) {
    if (asked_units[unit] == nullptr)
      throw std::invalid_argument(
          c10::str("FullyShardedDataParallel: unit ", unit, ": expected a module, got nullptr"));
    const auto inside = asked_units[unit]->parameters();
    for (const auto& tensor : inside) {
      const auto found = std::find_if(parameters.begin(), parameters.end(),
                                      [&](const NamedTensor& named) { return named.tensor.is_same(tensor); });
      if (found == parameters.end())
        throw std::invalid_argument(c10::str("FullyShardedDataParallel: unit ", unit, " (",
                                             asked_units[unit]->name(), ") is not a part of the module"));
      const auto index = static_cast<std::size_t>(found - parameters.begin());
      if (inside.size() >= size_of[index]) continue;
      size_of[index] = inside.size();
      facts[index].asked_unit = unit;
    }
  }
}

void check_initialise(const FullyShardedDataParallel::Options& options, const std::string& name) {
  if (!options.initialise)
    throw std::invalid_argument("FullyShardedDataParallel: " + name +
                                " is on the meta device; set Options::initialise");
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
  const auto by_rank = all_gather(group, std::to_string(std::hash<std::string>()(text.str())));
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

std::vector<PlannedUnit> plan_units(const std::vector<ParameterFacts>& parameters, std::int64_t unit_bytes,
                                    int world_size) {
  using Key = std::pair<std::optional<std::size_t>, std::string>;  // the requested unit, and the kind
  std::vector<UnitMembers> units;                                  // in the order of their first parameters
  std::map<Key, std::size_t> open;                                 // the last unit for each key
  for (std::size_t begin = 0; begin < parameters.size();) {
    std::map<Key, UnitMembers> of_module;
    std::size_t end = begin;
    for (; end < parameters.size() && parameters[end].module == parameters[begin].module; ++end) {
      auto& group = of_module[{parameters[end].asked_unit, parameters[end].kind}];
      group.parameters.push_back(end);
      group.bytes += parameters[end].numel * parameters[end].element_bytes;
    }
    for (const auto& [key, group] : of_module) {
      const auto [entry, is_new] = open.try_emplace(key, 0);
      const bool full = !key.first && !is_new && units[entry->second].bytes + group.bytes > unit_bytes;
      if (is_new || full) {
        entry->second = units.size();
        units.emplace_back();
      }
      UnitMembers& unit = units[entry->second];
      unit.parameters.insert(unit.parameters.end(), group.parameters.begin(), group.parameters.end());
      unit.bytes += group.bytes;
    }
    begin = end;
  }
  std::vector<PlannedUnit> result;
  for (const auto& unit : units) result.push_back(lay_out(parameters, unit, world_size));
  return result;
}

std::vector<FlatParameter> make_units(torch::nn::Module& module, const ProcessGroup& group,
                                      const FullyShardedDataParallel::Options& options) {
  const auto state = replicated_state(module, {});
  const auto& parameters = state.parameters;
  if (!state.has_trainable())
    throw std::invalid_argument(
        "FullyShardedDataParallel: expected a module with a parameter that requires a gradient");
  check_same_module(group, state);
  check_no_overlap(parameters);
  for (const auto& [name, buffer] : state.buffers)
    if (buffer.is_meta()) {
      check_initialise(options, name);
      auto values = at::empty_like(buffer, buffer.options().device(group.device()));
      options.initialise(name, values);
      buffer.unsafeGetTensorImpl()->shallow_copy_from(values.getIntrusivePtr());
    }
  auto facts = facts_of(parameters, options.mixed_precision.norms);
  ask_for_units(options.units, parameters, facts);
  // A GPU's connections need longer messages, and it computes longer before it needs the next one.
  const std::int64_t usual = group.device().is_cpu() ? 4 << 20 : 64 << 20;
  const auto plan = plan_units(facts, options.unit_bytes > 0 ? options.unit_bytes : usual, group.size());
  check_same_plan(group, parameters, plan);
  std::vector<FlatParameter> result;
  for (const auto& unit : plan) {
    std::vector<at::Tensor> tensors;
    std::vector<std::string> names;
    for (const auto& part : unit.parts) {
      if (parameters[part.parameter].tensor.is_meta())
        check_initialise(options, parameters[part.parameter].name);
      tensors.push_back(parameters[part.parameter].tensor);
      names.push_back(parameters[part.parameter].name);
    }
    const int tag = static_cast<int>(2 * result.size());  // and the next tag, for gradients
    const bool cast = !facts[unit.parts[0].parameter].kind.ends_with(kUncast);
    result.emplace_back(unit, std::move(tensors), std::move(names), group, tag,
                        cast ? options.mixed_precision : FullyShardedDataParallel::MixedPrecision{},
                        options.initialise);
  }
  return result;
}

}  // namespace ddprun::ddp
