#include <ddprun/train/state/sharded_optimizer_state.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/serialize/dict_reader.h>
#include <ddprun/sharding/fully_sharded.h>
#include <ddprun/train/state/optimizer_state.h>

namespace ddprun::train {
namespace {

using c10::impl::GenericDict;

/// Tensors by key, in the shards' order; scalars are the same for all shards.
struct ShardState {
  std::map<std::string, std::vector<torch::Tensor>> of_shards;
  std::map<std::string, torch::Tensor> scalars;
};

ShardState collect(const GenericDict& state, std::size_t shards) {
  ShardState result;
  for (const auto& of_shard : state)
    for (const auto& item : of_shard.value().toGenericDict()) {
      const auto key = item.key().toStringRef();
      const auto tensor = item.value().toTensor();
      if (tensor.dim() == 0) {
        result.scalars[key] = tensor;
      } else {
        auto& all = result.of_shards[key];
        all.resize(shards);
        all[static_cast<std::size_t>(of_shard.key().toInt())] = tensor;
      }
    }
  return result;
}

/// Tensors by key and parameter; scalars are the same for all parameters.
struct WholeState {
  std::map<std::string, std::map<std::string, torch::Tensor>> tensors;
  GenericDict scalars, group;
};

/// throws  std::invalid_argument unless the value has the layout of optimizer_state_dict() over the module
WholeState collect_whole(const c10::IValue& value, const torch::nn::Module& module) {
  const DictReader root(value, "optimizer");
  const auto groups = root.list("param_groups");
  if (groups.size() != 1) root.fail("expected one parameter group, as fully sharded training has");
  const DictReader group(groups[0], "optimizer: parameter group");
  const auto indices = group.list("params");
  const auto parameters = module.named_parameters();
  if (indices.size() != parameters.size())
    root.fail("expected " + std::to_string(parameters.size()) + " parameters, got " +
              std::to_string(indices.size()));
  WholeState whole{{}, make_state(), groups[0].toGenericDict()};
  const auto states = root.dict("state");
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto owner = "parameter " + std::to_string(i);
    if (!indices[i].isInt()) root.fail(owner + ": expected an integer in 'params'");
    const auto found = states.find(indices[i]);
    if (found == states.end()) continue;
    if (!found->value().isGenericDict()) root.fail("expected a dict for " + owner);
    for (const auto& item : found->value().toGenericDict()) {
      if (!item.key().isString()) root.fail(owner + ": expected names as keys, got " + item.key().tagKind());
      const auto& key = item.key().toStringRef();
      if (item.value().isTensor() && item.value().toTensor().dim() > 0)
        whole.tensors[key][parameters[i].key()] = item.value().toTensor();
      else
        whole.scalars.insert_or_assign(key, item.value());
    }
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

/// {"param_groups": [the group, for parameters 0 to count - 1]}
GenericDict with_parameters(const GenericDict& group, std::int64_t count) {
  auto indices = make_list();
  for (std::int64_t index = 0; index < count; ++index) indices.push_back(index);
  auto copy = group.copy();
  copy.insert_or_assign("params", indices);
  return make_state({{"param_groups", make_list({copy})}});
}

/// Loads the shards' tensors, by key, and the scalars into an optimizer over `count` shards.
void load(torch::optim::Optimizer& optimizer,
          const std::map<std::string, std::vector<torch::Tensor>>& tensors, const GenericDict& scalars,
          const GenericDict& group, std::size_t count, const std::filesystem::path& source) {
  GenericDict state(c10::IntType::get(), c10::AnyType::get());
  for (std::size_t i = 0; i < count; ++i) {
    auto entry = make_state();
    for (const auto& [key, of_shards] : tensors)
      if (of_shards.at(i).defined()) entry.insert(key, of_shards[i]);
    if (!entry.empty() || tensors.empty())
      for (const auto& scalar : scalars) entry.insert(scalar.key(), scalar.value());
    if (!entry.empty()) state.insert(static_cast<std::int64_t>(i), entry);
  }
  auto root = with_parameters(group, static_cast<std::int64_t>(count));
  root.insert("state", state);
  load_optimizer_state(optimizer, root, source);
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

  GenericDict state(c10::IntType::get(), c10::AnyType::get());
  auto indices = make_list();
  std::int64_t index = 0;
  for (const auto& parameter : module.named_parameters()) {
    auto entry = make_state();
    for (const auto& [key, by_name] : whole)
      if (const auto found = by_name.find(parameter.key()); found != by_name.end())
        entry.insert(key, found->second);
    if (!entry.empty()) {
      for (const auto& [key, scalar] : local.scalars) entry.insert(key, scalar);
      state.insert(index, entry);
    }
    indices.push_back(index++);
  }
  root.insert_or_assign("state", state);
  root.at("param_groups").toList().get(0).toGenericDict().insert_or_assign("params", indices);
  return root;
}

void load_sharded_optimizer_state(torch::optim::Optimizer& optimizer,
                                  const ddp::FullyShardedDataParallel& sharded,
                                  const torch::nn::Module& module, const c10::IValue& state_dict,
                                  const std::filesystem::path& source) {
  std::optional<WholeState> whole;
  std::map<std::string, std::vector<torch::Tensor>> of_shards;
  std::string where;
  try {
    whole = collect_whole(state_dict, module);
    for (const auto& [key, by_name] : whole->tensors) {
      where = "optimizer: '" + key + "': ";
      of_shards[key] = sharded.share_out(by_name);
    }
  } catch (const std::invalid_argument& error) {
    throw IoError(source, where + error.what());
  }
  load(optimizer, of_shards, whole->scalars, whole->group, sharded.shards().size(), source);
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
  auto scalars = make_state();
  for (const auto& [key, scalar] : local.scalars) scalars.insert(key, scalar);
  auto root = with_parameters(state.at("param_groups").toList().get(0).toGenericDict(),
                              static_cast<std::int64_t>(module.named_parameters().size()));
  root.insert("scalars", scalars);
  return root;
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
  std::map<std::string, std::vector<torch::Tensor>> tensors;
  for (const auto& key : reader.index().optimizer_keys())
    for (const auto unit : trainable) tensors[key].push_back(reader.shard(key, units[unit], rank));
  load(optimizer, tensors, from.dict("scalars"), groups[0].toGenericDict(), trainable.size(), source);
} catch (const std::invalid_argument& error) {
  throw IoError(source, error.what());
}

}  // namespace ddprun::train
