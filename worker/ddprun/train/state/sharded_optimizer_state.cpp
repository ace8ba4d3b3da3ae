#include <ddprun/train/state/shard_index.h>

#include <ATen/core/jit_type.h>
#include <torch/nn/module.h>

#include <algorithm>

#include <ddprun/common/errors.h>
#include <ddprun/serialize/dict_reader.h>
#include <ddprun/sharding/fully_sharded.h>
#include <ddprun/train/state/optimizer_state.h>

namespace ddprun::train {
namespace {

using c10::IValue;
using c10::impl::GenericDict;
constexpr const char* kStep = "step";  // the one number among an optimizer's tensors

/// Tensors by key, and how many steps were taken; both in the shards' order.
struct ShardState {
  std::map<std::string, std::vector<torch::Tensor>> of_shards;
  std::vector<IValue> steps;
};

ShardState collect(const GenericDict& state, std::size_t shards) {
  ShardState result{{}, std::vector<IValue>(shards)};
  for (const auto& of_shard : state) {
    const auto shard = static_cast<std::size_t>(of_shard.key().toInt());
    for (const auto& item : of_shard.value().toGenericDict()) {
      const auto key = item.key().toStringRef();
      if (key == kStep) {
        result.steps.at(shard) = item.value();
        continue;
      }
      auto& all = result.of_shards[key];
      all.resize(shards);
      all.at(shard) = item.value().toTensor();
    }
  }
  return result;
}

double number_of(const IValue& step) {
  return DictReader(make_state({{kStep, step}}), "optimizer").number(kStep);
}

/// Parameters that share a shard have taken as many steps as the one that took most.
void take_larger(IValue& step, const IValue& other) {
  if (step.isNone() || (!other.isNone() && number_of(other) > number_of(step))) step = other;
}

/// By parameter.
struct WholeState {
  std::map<std::string, std::map<std::string, torch::Tensor>> tensors;  ///< by key
  std::map<std::string, IValue> steps;
  IValue group;
};

/// throws  std::invalid_argument unless the value has the layout of optimizer_state_dict() over the module
WholeState collect_whole(const IValue& value, const torch::nn::Module& module) {
  const DictReader root(value, "optimizer");
  const auto groups = root.list("param_groups");
  if (groups.size() != 1) root.fail("expected one parameter group, as fully sharded training has");
  const DictReader group(groups[0], "optimizer: parameter group");
  const auto indices = group.list("params");
  const auto parameters = module.named_parameters();
  if (indices.size() != parameters.size())
    root.fail("expected " + std::to_string(parameters.size()) + " parameters, got " +
              std::to_string(indices.size()));
  WholeState whole{{}, {}, groups[0]};
  const auto states = root.dict("state");
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto owner = "parameter " + std::to_string(i);
    if (!indices[i].isInt()) root.fail(owner + ": expected an integer in 'params'");
    const auto found = states.find(indices[i]);
    if (found == states.end()) continue;
    const DictReader entry(found->value(), "optimizer: " + owner);
    for (const auto& key : entry.names())
      if (key == kStep)
        whole.steps[parameters[i].key()] = entry.at(key);
      else if (entry.at(key).isTensor())
        whole.tensors[key][parameters[i].key()] = entry.tensor(key);
  }
  return whole;
}

/// The numbers of the units whose shards the optimizer has.
std::vector<std::size_t> trainable_units(const ddp::FullyShardedDataParallel& sharded) {
  std::vector<std::size_t> result;
  const auto units = sharded.units();
  for (std::size_t unit = 0; unit < units.size(); ++unit)
    if (units[unit].shard.requires_grad()) result.push_back(unit);
  return result;
}

/// A parameter that no step has used has no state, but shares a shard with others that have one.
void add_unused(std::map<std::string, torch::Tensor>& by_name,
                const std::vector<ddp::FullyShardedDataParallel::Unit>& units) {
  for (const auto& unit : units) {
    const auto used = std::ranges::find_if(
        unit.parameters, [&](const auto& parameter) { return by_name.contains(parameter.name); });
    if (used == unit.parameters.end()) continue;
    const auto options = by_name.at(used->name).options();
    for (const auto& parameter : unit.parameters)
      by_name.try_emplace(parameter.name, torch::zeros(parameter.tensor.sizes(), options));
  }
}

/// "param_groups": the group, for parameters 0 to count - 1.
c10::impl::GenericList with_parameters(const IValue& group, std::size_t count) {
  auto indices = make_list();
  for (std::size_t index = 0; index < count; ++index) indices.push_back(static_cast<std::int64_t>(index));
  auto copy = group.toGenericDict().copy();
  copy.insert_or_assign("params", indices);
  return make_list({copy});
}

void load(torch::optim::Optimizer& optimizer, const ShardState& shards, const IValue& group,
          const std::filesystem::path& source) {
  GenericDict state(c10::IntType::get(), c10::AnyType::get());
  for (std::size_t i = 0; i < shards.steps.size(); ++i) {
    auto entry = make_state();
    for (const auto& [key, tensors] : shards.of_shards)
      if (tensors.at(i).defined()) entry.insert(key, tensors[i]);
    if (entry.empty()) continue;
    if (!shards.steps[i].isNone()) entry.insert(kStep, shards.steps[i]);
    state.insert(static_cast<std::int64_t>(i), entry);
  }
  load_optimizer_state(
      optimizer,
      make_state({{"param_groups", with_parameters(group, shards.steps.size())}, {"state", state}}), source);
}

}  // namespace

c10::IValue sharded_optimizer_state_dict(torch::optim::Optimizer& optimizer,
                                         const ddp::FullyShardedDataParallel& sharded,
                                         const torch::nn::Module& module, int rank) {
  const auto root = optimizer_state_dict(optimizer).toGenericDict();
  const auto local = collect(root.at("state").toGenericDict(), sharded.shards().size());
  std::map<std::string, std::map<std::string, torch::Tensor>> whole;
  for (const auto& [key, per_shard] : local.of_shards) whole[key] = sharded.consolidate(per_shard);
  if (rank != 0) return {};

  std::map<std::string, IValue> steps;
  const auto units = sharded.units();
  const auto trainable = trainable_units(sharded);
  for (std::size_t i = 0; i < trainable.size(); ++i)
    for (const auto& parameter : units[trainable[i]].parameters) steps[parameter.name] = local.steps[i];
  GenericDict state(c10::IntType::get(), c10::AnyType::get());
  std::int64_t index = 0;
  for (const auto& parameter : module.named_parameters()) {
    auto entry = make_state();
    for (const auto& [key, by_name] : whole)
      if (const auto found = by_name.find(parameter.key()); found != by_name.end())
        entry.insert(key, found->second);
    if (!entry.empty()) {
      if (const auto& step = steps[parameter.key()]; !step.isNone()) entry.insert(kStep, step);
      state.insert(index, entry);
    }
    ++index;
  }
  const auto group = root.at("param_groups").toList().get(0);
  return make_state(
      {{"state", state}, {"param_groups", with_parameters(group, static_cast<std::size_t>(index))}});
}

void load_sharded_optimizer_state(torch::optim::Optimizer& optimizer,
                                  const ddp::FullyShardedDataParallel& sharded,
                                  const torch::nn::Module& module, const c10::IValue& state_dict,
                                  const std::filesystem::path& source) {
  std::string where;
  try {
    auto whole = collect_whole(state_dict, module);
    const auto units = sharded.units();
    ShardState shards;
    for (const auto unit : trainable_units(sharded)) {
      auto& step = shards.steps.emplace_back();
      for (const auto& parameter : units[unit].parameters)
        if (const auto found = whole.steps.find(parameter.name); found != whole.steps.end())
          take_larger(step, found->second);
    }
    for (auto& [key, by_name] : whole.tensors) {
      where = "optimizer: '" + key + "': ";
      add_unused(by_name, units);
      shards.of_shards[key] = sharded.share_out(by_name);
    }
    where.clear();
    load(optimizer, shards, whole.group, source);
  } catch (const std::invalid_argument& error) {
    throw IoError(source, where + error.what());
  }
}

c10::IValue add_optimizer_pieces(torch::optim::Optimizer& optimizer,
                                 const ddp::FullyShardedDataParallel& sharded,
                                 const torch::nn::Module& module, Shards& shards) {
  const auto state = optimizer_state_dict(optimizer).toGenericDict();
  const auto units = trainable_units(sharded);
  const auto local = collect(state.at("state").toGenericDict(), units.size());
  for (const auto& [key, of_shards] : local.of_shards)
    for (std::size_t i = 0; i < units.size(); ++i)
      if (of_shards[i].defined()) shards.add(key, units[i], of_shards[i]);
  auto scalars = make_state(), steps = make_state();
  IValue most;
  for (std::size_t i = 0; i < units.size(); ++i) {
    take_larger(most, local.steps[i]);
    for (const auto& parameter : shards.index.units[units[i]].parameters)
      if (!local.steps[i].isNone()) steps.insert(parameter.name, local.steps[i]);
  }
  if (!most.isNone()) scalars.insert(kStep, most);
  const auto groups =
      with_parameters(state.at("param_groups").toList().get(0), module.named_parameters().size());
  return make_state({{"param_groups", groups}, {"scalars", scalars}, {"steps", steps}});
}

void load_optimizer_pieces(torch::optim::Optimizer& optimizer, const ddp::FullyShardedDataParallel& sharded,
                           int rank, const c10::IValue& state, ShardReader& reader,
                           const std::filesystem::path& source) try {
  const DictReader from(state, "optimizer");
  const auto groups = from.list("param_groups");
  if (groups.size() != 1 || !groups[0].isGenericDict())
    from.fail("expected one parameter group, as fully sharded training has");
  const auto units = sharded.units();
  const auto trainable = trainable_units(sharded);
  ShardState shards;
  for (const auto unit : trainable) {
    auto& step = shards.steps.emplace_back();
    for (const auto& parameter : units[unit].parameters) take_larger(step, step_of(from, parameter.name));
  }
  for (const auto& key : reader.index().optimizer_keys())
    for (const auto unit : trainable) shards.of_shards[key].push_back(reader.shard(key, units[unit], rank));
  load(optimizer, shards, groups[0], source);
} catch (const std::invalid_argument& error) {
  throw IoError(source, error.what());
}

}  // namespace ddprun::train
