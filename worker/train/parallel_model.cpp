#include "worker/train/parallel_model.h"

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

namespace ddprun::train {
namespace {

ddp::DistributedDataParallel::Options ddp_options(const ParallelOptions& options) {
  ddp::DistributedDataParallel::Options result;
  result.bucket_bytes = options.bucket_mb << 20;
  return result;
}

}  // namespace

ParallelModel::ParallelModel(const Task& task, const ddp::ProcessGroup& group, const ParallelOptions& options)
    : ddp_(*task.module, group, ddp_options(options)),
      optimizer_(task.make_optimizer(task.module->parameters())) {}

}  // namespace ddprun::train
