#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include <ATen/core/ivalue.h>

#include <ddprun/ddp/distributed_data_parallel.h>
#include <ddprun/ddp/nan_check.h>
#include <ddprun/ddp/powersgd_hook.h>
#include <ddprun/sharding/fully_sharded.h>
#include <ddprun/train/model/task.h>
#include <ddprun/train/optim/optimization.h>
#include <ddprun/train/optim/options.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/state_dict_file.h>

namespace ddprun::train {

/// A task's module and optimizer, as the ranks of a group train them together: data-parallel or fully
/// sharded, the optimizer's state whole on every rank or shared out, in the precision asked for. All ranks
/// call the same in the same order.
class ParallelModel {
 public:
  /// Moves the module to the group's device. The task and the group must outlive it.
  /// throws  std::invalid_argument if the ranks' modules differ
  ParallelModel(const Task& task, const ddp::ProcessGroup& group, const TrainerOptions& options,
                const RunLength& length, MonitorMode mode);

  struct Pass {
    StepResult result;
    at::Tensor loss;  ///< the mean of its losses, without gradient
  };
  /// Forward and backward pass of the last batch of an optimizer step, or of one before it, whose gradients
  /// are only added up on this rank.
  /// accumulate  batches of an optimizer step: the loss is divided by them
  /// throws      ddp::NonFiniteGradient if gradients are checked
  Pass pass(const data::Batch& batch, bool last, std::int64_t accumulate);
  void zero_grad();
  void step() { optimization_->step(); }
  void end_epoch(std::optional<double> metric) { optimization_->end_epoch(metric); }

  /// A forward pass without gradients. Where is_sharded() every rank must make as many.
  StepResult evaluate(const data::Batch& batch);

  /// Calls it while the module has the averaged weights, if there are any.
  template <typename Call>
  auto with_averages(Call call) {
    if (optimization_->ema() == nullptr) return call();
    const auto averages = optimization_->ema()->swap_in();
    return call();
  }

  /// To be kept while ranks have different numbers of steps, if they may; else nullopt.
  std::optional<ddp::Join> join();

  bool is_sharded() const { return std::holds_alternative<ddp::FullyShardedDataParallel>(engine_); }

  /// Rank 0's buffers on every rank.
  void synchronize_buffers();

  double learning_rate() const { return optimization_->learning_rate(); }
  const Optimization& optimization() const { return *optimization_; }

  /// Fills in what a checkpoint holds of these, as one rank alone would have it. On rank 0; the other ranks'
  /// are None.
  void save(TrainingState& state);
  /// The inverse, on every rank. throws  IoError naming source and what does not fit
  void load(const TrainingState& state, const std::filesystem::path& source);
  /// Only the weights, or their averages if there are any: to be evaluated. Rank 0's state counts.
  void load_weights_of_rank_0(const TrainingState& state, const std::filesystem::path& source);

  /// Empty where nothing is reduced in buckets.
  ddp::DistributedDataParallel::Statistics statistics() const;

 private:
  using Engine = std::variant<ddp::DistributedDataParallel, ddp::FullyShardedDataParallel>;
  Engine make_engine();
  ddp::CommHook make_hook();
  Optimization make_optimization(const TrainerOptions& options, const RunLength& length, MonitorMode mode);
  data::Batch to_device(const data::Batch& batch) const;
  StepResult forward(const data::Batch& batch);
  void load_module(const StateDict& weights, const std::filesystem::path& source);

  const Task& task_;
  const ddp::ProcessGroup& group_;
  const ParallelOptions options_;
  const PrecisionOptions precision_;
  std::shared_ptr<ddp::PowerSgd> power_sgd_;  // null unless gradients travel so
  Engine engine_;
  std::unique_ptr<ddp::NanCheck> nan_check_;
  std::optional<Optimization> optimization_;
};

/// A state's averaged weights where it has them, else the model's: what is evaluated and handed on.
StateDict weights_to_evaluate(const TrainingState& state);

}  // namespace ddprun::train
