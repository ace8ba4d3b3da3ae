#pragma once

#include <memory>
#include <utility>

#include "worker/ddp/distributed_data_parallel.h"
#include "worker/train/parallel_options.h"
#include "worker/train/task.h"

namespace ddprun::train {

/// A task's module and optimizer, as the ranks of a group train them together.
class ParallelModel {
 public:
  /// Every rank makes one. throws  std::invalid_argument if the ranks' modules differ
  ParallelModel(const Task& task, const ddp::ProcessGroup& group, const ParallelOptions& options);

  /// Runs compute() as a step's forward pass and returns its result.
  template <typename Compute>
  auto forward(Compute&& compute) {
    return ddp_.forward(std::forward<Compute>(compute));
  }

  void zero_grad() { optimizer_->zero_grad(); }
  void step() { optimizer_->step(); }

  torch::optim::Optimizer& optimizer() { return *optimizer_; }

  /// Rank 0's buffers on every rank.
  void synchronize_buffers() { ddp_.synchronize_buffers(); }

 private:
  ddp::DistributedDataParallel ddp_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace ddprun::train
