#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include <ATen/core/ivalue.h>

#include "worker/ddp/distributed_data_parallel.h"
#include "worker/ddp/fully_sharded.h"
#include "worker/ddp/nan_check.h"
#include "worker/train/parallel_options.h"
#include "worker/train/task.h"

namespace ddprun::train {

/// A task's module and optimizer, as the ranks of a group train them together: data-parallel or fully
/// sharded, the optimizer's state whole on every rank or shared out. All ranks call the same in the same
/// order.
class ParallelModel {
 public:
  /// Moves the module to the group's device. The task and the group must outlive it.
  /// throws  std::invalid_argument if the ranks' modules differ
  ParallelModel(const Task& task, const ddp::ProcessGroup& group, const ParallelOptions& options);

  /// The forward pass of a training step on that many samples.
  StepResult forward(const data::Batch& batch);
  void backward(const StepResult& result);  ///< throws  ddp::NonFiniteGradient if gradients are checked
  void zero_grad();
  void step();

  /// A forward pass without gradients. Where is_sharded() every rank must make as many.
  StepResult evaluate(const data::Batch& batch);

  /// To be kept while ranks have different numbers of steps, if they may; else nullopt.
  std::optional<ddp::Join> join();

  bool is_sharded() const { return std::holds_alternative<ddp::FullyShardedDataParallel>(engine_); }

  /// Rank 0's buffers on every rank.
  void synchronize_buffers();

  double learning_rate() const;

  /// What a checkpoint holds of the two, as one rank alone would have it: state_dicts. On rank 0; the other
  /// ranks' are None.
  struct State {
    c10::IValue model, optimizer;
  };
  State state();

  /// Empty where nothing is reduced in buckets.
  ddp::DistributedDataParallel::Statistics statistics() const;

 private:
  using Engine = std::variant<ddp::DistributedDataParallel, ddp::FullyShardedDataParallel>;
  static Engine make_engine(const Task& task, const ddp::ProcessGroup& group, const ParallelOptions& options);

  const Task& task_;
  const ddp::ProcessGroup& group_;
  const ParallelOptions options_;
  Engine engine_;
  std::unique_ptr<ddp::NanCheck> nan_check_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace ddprun::train
