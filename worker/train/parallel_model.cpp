#include "worker/train/parallel_model.h"

#include <ATen/core/Dict.h>
#include <ATen/core/jit_type.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "worker/ddp/comm_hooks.h"
#include "worker/ddp/zero_optimizer.h"
#include "worker/train/optimizer_state.h"
#include "worker/train/sharded_optimizer_state.h"
#include "worker/train/state_dict_file.h"

namespace ddprun::train {
namespace {

data::Batch to_device(const data::Batch& batch, at::Device device) {
  return {batch.input.to(device), batch.target.to(device)};
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Task& task, const ddp::ProcessGroup& group,
                                                        std::vector<torch::Tensor> parameters, bool zero1) {
  std::vector<torch::optim::OptimizerParamGroup> groups = {
      torch::optim::OptimizerParamGroup(std::move(parameters))};
  if (!zero1 || group.size() == 1) return task.make_optimizer(std::move(groups));
  return std::make_unique<ddp::ZeroOptimizer>(std::move(groups), task.make_optimizer, group);
}

/// With memory of their own: the parameters' is freed again.
c10::impl::GenericDict copied(const c10::impl::GenericDict& tensors) {
  c10::impl::GenericDict copies(c10::StringType::get(), c10::AnyType::get());
  for (const auto& item : tensors) copies.insert(item.key(), item.value().toTensor().clone());
  return copies;
}

}  // namespace

ParallelModel::Engine ParallelModel::make_engine(const Task& task, const ddp::ProcessGroup& group,
                                                 const ParallelOptions& options) {
  task.module->to(group.device());
  if (options.fsdp) return ddp::FullyShardedDataParallel(*task.module, group);
  ddp::DistributedDataParallel::Options ddp_options;
  ddp_options.bucket_bytes = options.bucket_mb << 20;
  ddp_options.find_unused_parameters = options.find_unused;
  ddp_options.static_graph = options.static_graph;
  ddp_options.gradient_as_bucket_view = options.bucket_view;
  ddp::DistributedDataParallel ddp(*task.module, group, ddp_options);
  if (auto hook = ddp::make_comm_hook(options.comm_hook, group)) ddp.register_comm_hook(std::move(hook));
  return ddp;
}

ParallelModel::ParallelModel(const Task& task, const ddp::ProcessGroup& group, const ParallelOptions& options)
    : task_(task),
      group_(group),
      options_(options),
      engine_(make_engine(task, group, options)),
      nan_check_(options.nan_check ? std::make_unique<ddp::NanCheck>(*task.module, group) : nullptr) {
  auto* sharded = std::get_if<ddp::FullyShardedDataParallel>(&engine_);
  optimizer_ =
      make_optimizer(task, group, sharded ? sharded->shards() : task.module->parameters(), options.zero1);
}

StepResult ParallelModel::forward(const data::Batch& batch) {
  const auto here = to_device(batch, group_.device());
  const auto compute = [&] { return task_.step(here); };
  if (auto* sharded = std::get_if<ddp::FullyShardedDataParallel>(&engine_)) return sharded->forward(compute);
  // Where ranks may have batches of different sizes, every sample is to count alike.
  const auto samples = options_.join ? std::optional(batch.size()) : std::nullopt;
  return std::get<ddp::DistributedDataParallel>(engine_).forward(compute, samples);
}

void ParallelModel::backward(const StepResult& result) {
  result.losses.mean().backward();
  if (nan_check_) nan_check_->check();
}

void ParallelModel::zero_grad() {
  if (auto* ddp = std::get_if<ddp::DistributedDataParallel>(&engine_))
    ddp->zero_grad();
  else
    optimizer_->zero_grad();
}

void ParallelModel::step() { optimizer_->step(); }

StepResult ParallelModel::evaluate(const data::Batch& batch) {
  const torch::NoGradGuard no_grad;
  const auto here = to_device(batch, group_.device());
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

double ParallelModel::learning_rate() const { return optimizer_->param_groups().front().options().get_lr(); }

ParallelModel::State ParallelModel::state() {
  State state;
  if (auto* sharded = std::get_if<ddp::FullyShardedDataParallel>(&engine_)) {
    const auto whole = sharded->full_parameters();
    if (group_.rank() == 0) state.model = copied(state_dict(*task_.module));
    state.optimizer = sharded_optimizer_state_dict(*optimizer_, *sharded, *task_.module, group_.rank());
  } else {
    if (group_.rank() == 0) state.model = state_dict(*task_.module);
    if (group_.rank() == 0 || options_.zero1) state.optimizer = optimizer_state_dict(*optimizer_);
  }
  return state;
}

ddp::DistributedDataParallel::Statistics ParallelModel::statistics() const {
  const auto* ddp = std::get_if<ddp::DistributedDataParallel>(&engine_);
  return ddp ? ddp->statistics() : ddp::DistributedDataParallel::Statistics{};
}

}  // namespace ddprun::train
