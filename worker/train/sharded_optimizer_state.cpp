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

}  // namespace ddprun::train
