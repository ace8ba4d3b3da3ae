#include "worker/train/sharded_optimizer_state.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <map>
#include <string>
#include <vector>

#include "worker/ddp/fully_sharded.h"
#include "worker/train/optimizer_state.h"

namespace ddprun::train {
namespace {

using c10::impl::GenericDict;

/// What the optimizer keeps: of the shards by key, in their order; and the scalars, the same for all shards.
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
  c10::impl::GenericList indices(c10::AnyType::get());
  std::int64_t index = 0;
  for (const auto& parameter : module.named_parameters()) {
    GenericDict entry(c10::StringType::get(), c10::AnyType::get());
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
  const auto root = state_dict.toGenericDict();
  const auto whole = root.at("state").toGenericDict();
  std::map<std::string, std::map<std::string, torch::Tensor>> by_key;  // then by parameter
  std::map<std::string, torch::Tensor> scalars;
  std::int64_t index = 0;
  for (const auto& parameter : module.named_parameters()) {
    if (const auto entry = whole.find(index++); entry != whole.end())
      for (const auto& item : entry->value().toGenericDict()) {
        const auto key = item.key().toStringRef();
        const auto tensor = item.value().toTensor();
        if (tensor.dim() == 0)
          scalars[key] = tensor;
        else
          by_key[key][parameter.key()] = tensor;
      }
  }
  const auto shards = static_cast<std::int64_t>(sharded.shards().size());
  std::map<std::string, std::vector<torch::Tensor>> parts;
  for (const auto& [key, by_name] : by_key) parts[key] = sharded.share_out(by_name);

  GenericDict state(c10::IntType::get(), c10::AnyType::get());
  c10::impl::GenericList indices(c10::AnyType::get());
  for (std::int64_t shard = 0; shard < shards; ++shard) {
    GenericDict entry(c10::StringType::get(), c10::AnyType::get());
    for (const auto& [key, of_shards] : parts)
      if (const auto& part = of_shards[static_cast<std::size_t>(shard)]; part.defined()) entry.insert(key, part);
    if (!entry.empty()) {
      for (const auto& [key, scalar] : scalars) entry.insert(key, scalar);
      state.insert(shard, entry);
    }
    indices.push_back(shard);
  }
  auto group = root.at("param_groups").toList().get(0).toGenericDict().copy();
  group.insert_or_assign("params", indices);
  c10::impl::GenericList groups(c10::AnyType::get());
  groups.push_back(group);
  GenericDict local(c10::StringType::get(), c10::AnyType::get());
  local.insert("state", state);
  local.insert("param_groups", groups);
  load_optimizer_state(optimizer, local, source);
}

}  // namespace ddprun::train
