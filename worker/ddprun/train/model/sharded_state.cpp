#include <ddprun/train/model/sharded_state.h>

#include <ATen/core/Dict.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/serialize/dict_reader.h>
#include <ddprun/train/model/parallel_model.h>
#include <ddprun/train/state/shard_index.h>
#include <ddprun/train/state/state_dict_file.h>

namespace ddprun::train {

/// bf16-mixed gathers and reduces in bfloat16, 16-mixed gathers in float16 and reduces in float32, where sums
/// of scaled gradients do not overflow. Autocast computes as without sharding, on the gathered values: it
/// makes no copy of a weight, which autograd would keep.
ddp::FullyShardedDataParallel::Options sharding_options(const Run& run) {
  ddp::FullyShardedDataParallel::Options sharding{.initialise = run.task.initialise};
  if (run.in_memory.state)
    sharding.initialise = [](const std::string&, at::Tensor&) {};  // the shards will be loaded
  const auto precision = run.options.precision.precision;
  if (precision == Precision::kBf16Mixed)
    sharding.mixed_precision = {.param_dtype = at::kBFloat16, .norms = false};
  if (precision == Precision::k16Mixed)
    sharding.mixed_precision = {.param_dtype = at::kHalf, .reduce_dtype = at::kFloat, .norms = false};
  return sharding;
}

Ema::NamedTensors named_shards(const ddp::FullyShardedDataParallel& fsdp) {
  Ema::NamedTensors shards;
  for (const auto& unit : fsdp.units())
    shards.emplace_back("shard " + std::to_string(shards.size()), unit.shard);
  return shards;
}

Shards save_shards(TrainingState& state, const ddp::FullyShardedDataParallel& fsdp,
                   const torch::nn::Module& module, torch::optim::Optimizer& optimizer, const Ema* ema) {
  const auto units = fsdp.units();
  Shards shards{make_shard_index(module, units), {}};
  for (std::size_t unit = 0; unit < units.size(); ++unit) shards.add("model", unit, units[unit].shard);
  state.optimizer = add_optimizer_pieces(optimizer, fsdp, module, shards);
  auto buffers = make_state();
  for (const auto& item : module.named_buffers()) buffers.insert(item.key(), item.value());
  state.model = buffers;
  if (ema == nullptr) return shards;
  auto averages = ema->state_dict();
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    const auto key = "module.shard " + std::to_string(unit);
    shards.add("ema", unit, averages.at(key).toTensor());
    (void)averages.erase(key);
  }
  state.ema = averages;
  return shards;
}

std::function<void()> read_shard_weights(const TrainingState& state, const std::filesystem::path& source,
                                         const ddp::FullyShardedDataParallel& fsdp, torch::nn::Module& module,
                                         int rank, const std::string& key) {
  ShardReader reader(source, state.shards);
  const auto others = key == "ema" ? named_tensors(state.ema, "module.") : named_tensors(state.model);
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // to, from
  for (const auto& item : module.named_buffers()) {
    const auto found = std::find_if(others.begin(), others.end(),
                                    [&](const auto& other) { return other.first == item.key(); });
    if (found == others.end() || found->second.sizes() != item.value().sizes())
      throw IoError(source, "its tensors do not fit the model: " + item.key() + " is missing or misshapen");
    copies.emplace_back(item.value(), found->second);
  }
  for (const auto& unit : fsdp.units()) copies.emplace_back(unit.shard, reader.shard(key, unit, rank));
  return [copies = std::move(copies)] {
    const torch::NoGradGuard no_grad;
    for (const auto& [to, from] : copies) to.copy_(from);
  };
}

void load_shards(const TrainingState& state, const std::filesystem::path& source,
                 const ddp::FullyShardedDataParallel& fsdp, torch::nn::Module& module, int rank,
                 torch::optim::Optimizer& optimizer, Ema* ema) {
  read_shard_weights(state, source, fsdp, module, rank, "model")();
  ShardReader reader(source, state.shards);
  load_optimizer_pieces(optimizer, fsdp, rank, state.optimizer, reader, source);
  if (ema == nullptr || !state.ema.isGenericDict()) return;
  auto averages = state.ema.toGenericDict().copy();
  std::size_t number = 0;
  for (const auto& unit : fsdp.units())
    averages.insert("module.shard " + std::to_string(number++), reader.shard("ema", unit, rank));
  ema->load_state_dict(averages);
}

void load_averages_of_shards(Ema& ema, const c10::IValue& state, const ddp::FullyShardedDataParallel& fsdp) {
  auto own = state.toGenericDict().copy();
  std::map<std::string, at::Tensor> whole;
  for (const auto& [name, tensor] : named_tensors(state, "module.")) whole[name] = tensor;
  const auto shares = fsdp.share_out(whole);
  std::size_t trainable = 0;
  for (const auto& [name, shard] : named_shards(fsdp)) {
    const bool frozen = !shard.requires_grad();  // equal to its average
    own.insert("module." + name, frozen ? shard : shares[trainable++]);
  }
  ema.load_state_dict(own);
}

void forget_parameters(torch::nn::Module& module) {
  for (auto& parameter : module.parameters()) {
    parameter.mutable_grad().reset();
    parameter.unsafeGetTensorImpl()->shallow_copy_from(
        at::empty_strided(parameter.sizes(), parameter.strides(), parameter.options().device(at::kMeta))
            .getIntrusivePtr());
  }
}

}  // namespace ddprun::train
