#include <ddprun/sharding/fully_sharded.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include <ddprun/sharding/fully_sharded_engine.h>

namespace ddprun::ddp {

FullyShardedDataParallel::FullyShardedDataParallel(torch::nn::Module& module, const ProcessGroup& group,
                                                   const Options& options)
    : engine_(std::make_unique<Engine>(module, group, options)) {}
FullyShardedDataParallel::FullyShardedDataParallel(torch::nn::Module& module, const ProcessGroup& group)
    : FullyShardedDataParallel(module, group, Options{}) {}
FullyShardedDataParallel::FullyShardedDataParallel(FullyShardedDataParallel&&) noexcept = default;
FullyShardedDataParallel::~FullyShardedDataParallel() = default;

void FullyShardedDataParallel::before_forward() { engine_->before_forward(); }

void FullyShardedDataParallel::after_forward() {
  if (torch::GradMode::is_enabled()) return;
  const std::lock_guard lock(engine_->mutex);
  const Unobserved unobserved;
  engine_->free_all();
}

std::vector<at::Tensor> FullyShardedDataParallel::shards() const {
  std::vector<at::Tensor> result;
  for (const auto& unit : engine_->units)
    if (unit.shard().requires_grad()) result.push_back(unit.shard());
  return result;
}

double FullyShardedDataParallel::clip_grad_norm(double max_norm) {
  const torch::NoGradGuard no_grad;
  double squares = 0;
  for (const auto& shard : shards())
    if (shard.grad().defined()) squares += std::pow(shard.grad().norm().item<double>(), 2);
  const double norm = std::sqrt(all_reduce_sum(engine_->group, {squares})[0]);
  const double scale = max_norm / (norm + 1e-6);
  if (!(scale >= 1))  // true of NaN too, which then shows
    for (const auto& shard : shards())
      if (shard.grad().defined()) shard.grad().mul_(scale);
  return norm;
}

FullyShardedDataParallel::NoSync::NoSync(FullyShardedDataParallel& owner)
    : owner_(owner), previous_(std::exchange(owner.engine_->synchronize, false)) {}
FullyShardedDataParallel::NoSync::~NoSync() { owner_.engine_->synchronize = previous_; }

FullyShardedDataParallel::FullParameters::FullParameters(FullyShardedDataParallel& owner) : owner_(owner) {
  Engine& engine = *owner.engine_;
  const std::lock_guard lock(engine.mutex);
  const Unobserved unobserved;
  ++engine.full_scopes;
  for (std::size_t unit = 0; unit < engine.units.size(); ++unit) {
    engine.units[unit].start_gather();
    engine.units[unit].finish_gather();
    ++engine.pins[unit];
  }
}

FullyShardedDataParallel::FullParameters::~FullParameters() {
  Engine& engine = *owner_.engine_;
  const std::lock_guard lock(engine.mutex);
  const Unobserved unobserved;
  --engine.full_scopes;
  for (std::size_t unit = 0; unit < engine.units.size(); ++unit)
    if (--engine.pins[unit] == 0) engine.free(unit, /*keep=*/true);
}

std::map<std::string, at::Tensor> FullyShardedDataParallel::consolidate(
    const std::vector<at::Tensor>& per_shard) const {
  const torch::NoGradGuard no_grad;
  if (const auto count = shards().size(); per_shard.size() != count)
    throw std::invalid_argument("consolidate: expected a tensor for each of " + std::to_string(count) +
                                " shards, got " + std::to_string(per_shard.size()));
  std::map<std::string, at::Tensor> result;
  std::size_t next = 0;
  for (std::size_t i = 0; i < engine_->units.size(); ++i) {
    const FlatParameter& unit = engine_->units[i];
    if (!unit.shard().requires_grad()) continue;
    const at::Tensor& shard = per_shard[next++];
    if (!shard.defined()) continue;
    const auto tensors = unit.unpack(unit.gather(shard));
    for (std::size_t k = 0; k < tensors.size(); ++k) result[engine_->names[i][k]] = tensors[k];
  }
  return result;
}

std::vector<at::Tensor> FullyShardedDataParallel::share_out(
    const std::map<std::string, at::Tensor>& by_name) const {
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> result;
  for (std::size_t i = 0; i < engine_->units.size(); ++i) {
    const FlatParameter& unit = engine_->units[i];
    if (!unit.shard().requires_grad()) continue;
    const auto tensors = tensors_by_name(unit.parameters(), engine_->names[i], by_name);
    result.push_back(tensors.empty() ? at::Tensor() : unit.pack_shard(tensors));
  }
  return result;
}

void FullyShardedDataParallel::synchronize_buffers() {
  const torch::NoGradGuard no_grad;
  engine_->synchronize_buffers();
}

std::int64_t FullyShardedDataParallel::largest_unit_numel() const {
  std::int64_t largest = 0;
  for (const auto& unit : engine_->units)
    largest = std::max(largest, unit.shard().numel() * engine_->group.size());
  return largest;
}

std::size_t FullyShardedDataParallel::unit_count() const { return engine_->units.size(); }

}  // namespace ddprun::ddp
