#include <ddprun/train/model/parallel_model.h>

#include <ATen/core/Dict.h>
#include <ATen/core/jit_type.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <ddprun/common/errors.h>
#include <ddprun/ddp/comm_hooks.h>
#include <ddprun/ddp/sync_batch_norm.h>
#include <ddprun/group/collectives.h>
#include <ddprun/sharding/zero_optimizer.h>
#include <ddprun/train/state/optimizer_state.h>
#include <ddprun/train/state/powersgd_checkpoint.h>
#include <ddprun/train/state/sharded_optimizer_state.h>
#include <ddprun/train/state/state_dict_file.h>

namespace ddprun::train {
namespace {

constexpr const char* kPowerSgd = "PowerSGD";

std::unique_ptr<torch::optim::Optimizer> make_optimizer_over(std::vector<torch::Tensor> parameters,
                                                             const OptimizerSettings& settings,
                                                             const ddp::ProcessGroup& group, bool zero1) {
  std::vector<torch::optim::OptimizerParamGroup> groups = {
      torch::optim::OptimizerParamGroup(std::move(parameters))};
  if (!zero1 || group.size() == 1) return make_optimizer(settings, groups);
  return std::make_unique<ddp::ZeroOptimizer>(
      std::move(groups),
      [settings](std::vector<torch::optim::OptimizerParamGroup> part) {
        return make_optimizer(settings, part);
      },
      group);
}

/// With memory of their own: the parameters' is freed again.
c10::impl::GenericDict copied(const c10::impl::GenericDict& tensors) {
  c10::impl::GenericDict copies(c10::StringType::get(), c10::AnyType::get());
  for (const auto& item : tensors) copies.insert(item.key(), item.value().toTensor().clone());
  return copies;
}

StateDict named_tensors(const c10::IValue& dict, const std::string& prefix = "") {
  StateDict named;
  for (const auto& item : dict.toGenericDict())
    if (const auto& name = item.key().toStringRef(); name.starts_with(prefix))
      named.emplace_back(name.substr(prefix.size()), item.value().toTensor());
  return named;
}

}  // namespace

StateDict weights_to_evaluate(const TrainingState& state) {
  return state.ema.isGenericDict() ? named_tensors(state.ema, "module.") : named_tensors(state.model);
}

ddp::CommHook ParallelModel::make_hook() {
  if (options_.comm_hook != "powersgd") return ddp::make_comm_hook(options_.comm_hook, group_);
  power_sgd_ = std::make_shared<ddp::PowerSgd>(
      group_, ddp::PowerSgd::Options{.start_iteration = options_.powersgd_start});
  return ddp::powersgd_hook(power_sgd_);
}

ParallelModel::Engine ParallelModel::make_engine() {
  auto& module = *task_.module;
  module.to(group_.device());
  if (precision_.channels_last) to_channels_last(module);
  if (options_.sync_batch_norm) ddp::convert_sync_batchnorm(module, group_);
  if (options_.fsdp) return ddp::FullyShardedDataParallel(module, group_);
  ddp::DistributedDataParallel::Options ddp_options;
  ddp_options.bucket_bytes = options_.bucket_mb << 20;
  // A task whose graph is the same in every step may leave parameters unused in all of them.
  ddp_options.find_unused_parameters = options_.find_unused || (task_.static_graph && options_.join);
  ddp_options.static_graph =
      options_.static_graph || (task_.static_graph && !options_.find_unused && !options_.join);
  ddp_options.gradient_as_bucket_view = options_.bucket_view;
  ddp::DistributedDataParallel ddp(module, group_, ddp_options);
  if (auto hook = make_hook()) ddp.register_comm_hook(std::move(hook));
  return ddp;
}

Optimization ParallelModel::make_optimization(const TrainerOptions& options, const RunLength& length,
                                              MonitorMode mode) {
  auto settings = options.optim.optimizer;
  if (options.optim.scale_lr) settings.lr = scaled_lr(settings.lr, group_.size());
  auto* sharded = std::get_if<ddp::FullyShardedDataParallel>(&engine_);
  Optimization::Parts parts;
  parts.optimizer = make_optimizer_over(sharded ? sharded->shards() : task_.module->parameters(), settings,
                                        group_, options_.zero1);
  if (options.optim.ema > 0)
    parts.ema = std::make_unique<Ema>(*task_.module, Ema::Options{.decay = options.optim.ema});
  if (sharded && group_.size() > 1)
    parts.sum_over_ranks = [this](at::Tensor& value) {
      value.fill_(ddp::all_reduce_sum(group_, {value.item<double>()})[0]);
    };
  return Optimization(std::move(parts), options.optim, precision_.precision, group_.device(),
                      schedule_options(options.optim, settings.lr, length, mode));
}

ParallelModel::ParallelModel(const Task& task, const ddp::ProcessGroup& group, const TrainerOptions& options,
                             const RunLength& length, MonitorMode mode)
    : task_(task),
      group_(group),
      options_(options.parallel),
      precision_(options.precision),
      engine_(make_engine()),
      nan_check_(options.parallel.nan_check ? std::make_unique<ddp::NanCheck>(*task.module, group) : nullptr),
      optimization_(make_optimization(options, length, mode)) {}

data::Batch ParallelModel::to_device(const data::Batch& batch) const {
  auto here = batch.mapped(
      [&](const at::Tensor& tensor) { return tensor.to(group_.device(), /*non_blocking=*/true); });
  if (precision_.channels_last) here.input = channels_last(here.input);
  return here;
}

StepResult ParallelModel::forward(const data::Batch& batch) {
  const AutocastScope precision(precision_.precision, group_.device().type());
  const auto compute = [&] { return task_.step(batch); };
  if (auto* sharded = std::get_if<ddp::FullyShardedDataParallel>(&engine_)) return sharded->forward(compute);
  // Where ranks may have batches of different sizes, every sample is to count alike.
  const auto samples = options_.join ? std::optional(batch.size()) : std::nullopt;
  return std::get<ddp::DistributedDataParallel>(engine_).forward(compute, samples);
}

ParallelModel::Pass ParallelModel::pass(const data::Batch& batch, bool last, std::int64_t accumulate) {
  const auto here = to_device(batch);
  const auto both = [&] {
    auto result = forward(here);
    const auto mean = result.losses.mean();
    const auto loss = accumulate > 1 ? mean / static_cast<double>(accumulate) : mean;
    optimization_->scaled(loss).backward();
    return Pass{std::move(result), mean.detach()};
  };
  if (!last)
    return std::visit(
        [&](auto& engine) {
          const auto adding_up = engine.no_sync();
          return both();
        },
        engine_);
  auto pass = both();
  if (nan_check_) nan_check_->check();
  return pass;
}

void ParallelModel::zero_grad() {
  if (auto* ddp = std::get_if<ddp::DistributedDataParallel>(&engine_))
    ddp->zero_grad();
  else
    optimization_->optimizer().zero_grad();
}

StepResult ParallelModel::evaluate(const data::Batch& batch) {
  const torch::NoGradGuard no_grad;
  const AutocastScope precision(precision_.precision, group_.device().type());
  const auto here = to_device(batch);
  if (auto* sharded = std::get_if<ddp::FullyShardedDataParallel>(&engine_))
    return sharded->forward([&] { return task_.step(here); });
  return task_.step(here);
}

std::optional<ddp::Join> ParallelModel::join() {
  if (!options_.join) return std::nullopt;
  return std::optional<ddp::Join>(std::in_place, std::get<ddp::DistributedDataParallel>(engine_),
                                  ddp::JoinOptions{});
}

void ParallelModel::synchronize_buffers() {
  std::visit([](auto& engine) { engine.synchronize_buffers(); }, engine_);
}

void ParallelModel::save(TrainingState& state) {
  auto& optimizer = optimization_->optimizer();
  if (auto* sharded = std::get_if<ddp::FullyShardedDataParallel>(&engine_)) {
    {
      const auto whole = sharded->full_parameters();
      if (group_.rank() == 0) state.model = copied(state_dict(*task_.module));
    }
    state.optimizer = sharded_optimizer_state_dict(optimizer, *sharded, *task_.module, group_.rank());
  } else {
    if (group_.rank() == 0) state.model = state_dict(*task_.module);
    if (group_.rank() == 0 || options_.zero1) state.optimizer = optimizer_state_dict(optimizer);
  }
  state.model_config = task_.model_config;
  state.lr_schedule = optimization_->schedule_state();
  state.scaler = optimization_->scaler_state();
  if (const auto* ema = optimization_->ema()) state.ema = ema->state_dict();
  if (power_sgd_) state.callbacks[kPowerSgd] = gather_powersgd_state(*power_sgd_, *task_.module, group_);
}

void ParallelModel::load_module(const StateDict& weights, const std::filesystem::path& source) {
  if (auto* sharded = std::get_if<ddp::FullyShardedDataParallel>(&engine_)) {
    const auto whole = sharded->full_parameters();
    load_weights(*task_.module, weights, source);
  } else {
    load_weights(*task_.module, weights, source);
  }
}

void ParallelModel::load(const TrainingState& state, const std::filesystem::path& source) {
  load_module(named_tensors(state.model), source);
  if (const auto kept = state.callbacks.find(kPowerSgd); power_sgd_ && kept != state.callbacks.end())
    load_powersgd_state(*power_sgd_, *task_.module, group_, kept->second, source);
  auto& optimizer = optimization_->optimizer();
  if (auto* sharded = std::get_if<ddp::FullyShardedDataParallel>(&engine_))
    load_sharded_optimizer_state(optimizer, *sharded, *task_.module, state.optimizer, source);
  else
    load_optimizer_state(optimizer, state.optimizer, source);
  try {
    optimization_->load_schedule_state(state.lr_schedule);
    optimization_->load_scaler_state(state.scaler);
    if (auto* ema = optimization_->ema(); ema != nullptr && state.ema.isGenericDict())
      ema->load_state_dict(state.ema.toGenericDict());
  } catch (const std::invalid_argument& error) {
    throw IoError(source, error.what());
  }
}

void ParallelModel::load_weights_of_rank_0(const TrainingState& state, const std::filesystem::path& source) {
  const c10::NoGradGuard no_grad;
  const auto take = [&] {
    if (group_.rank() == 0) load_weights(*task_.module, weights_to_evaluate(state), source);
    auto tensors = task_.module->parameters();
    for (const auto& buffer : task_.module->buffers()) tensors.push_back(buffer);
    ddp::broadcast_from_rank_0(group_, tensors);
  };
  if (auto* sharded = std::get_if<ddp::FullyShardedDataParallel>(&engine_)) {
    const auto whole = sharded->full_parameters();
    take();
  } else {
    take();
  }
}

ddp::DistributedDataParallel::Statistics ParallelModel::statistics() const {
  const auto* ddp = std::get_if<ddp::DistributedDataParallel>(&engine_);
  return ddp ? ddp->statistics() : ddp::DistributedDataParallel::Statistics{};
}

}  // namespace ddprun::train
