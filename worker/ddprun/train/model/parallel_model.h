#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include <ddprun/ddp/checks.h>
#include <ddprun/ddp/comm_hooks.h>
#include <ddprun/ddp/distributed_data_parallel.h>
#include <ddprun/sharding/fully_sharded.h>
#include <ddprun/train/model/run.h>
#include <ddprun/train/optim/optimization.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/shard_index.h>
#include <ddprun/train/state/state_dict_file.h>

namespace ddprun::ddp {
class StepGraph;
}

namespace ddprun::train {

/// A task's module and optimizer, trained jointly by the ranks of a group: replicated or fully sharded, the
/// optimizer state whole on every rank or sharded, in the chosen precision. All ranks make the same calls in
/// the same order.
class ParallelModel {
 public:
  /// Moves the module to the group's device. The run must outlive it.
  /// throws  std::invalid_argument if the ranks' modules differ
  explicit ParallelModel(const Run& run);
  ~ParallelModel();

  struct Pass {
    BatchResult result;
    at::Tensor loss;  ///< the mean of the batch's losses, without gradient
  };
  /// Forward and backward pass of one batch; after the last batch of an optimizer step, also that step. Only
  /// the last reduces gradients over ranks; earlier ones add up locally. With a CUDA graph the result is
  /// valid until the next batch. throws  ddp::NonFiniteGradient if gradients are checked
  Pass train(const data::Batch& batch, bool last);
  void zero_grad();
  /// An optimizer step with the gradients that are there (ddp::Join::finish()).
  void step() { optimization_.optimizer_step(); }
  void end_epoch(std::optional<double> metric) { optimization_.end_epoch(metric); }

  /// A forward pass without gradients. If is_sharded(), all ranks must run equally many.
  BatchResult evaluate(const data::Batch& batch);

  /// Calls it while the module holds the averaged weights, if there are any.
  template <typename Call>
  auto with_averages(Call call) {
    if (optimization_.ema() == nullptr) return call();
    const auto averages = optimization_.ema()->swap_in();
    return call();
  }

  /// With --join: keep it while ranks may have different numbers of batches. Otherwise nullopt.
  std::optional<ddp::Join> join();
  bool is_sharded() const { return fsdp_.has_value(); }

  /// As ddp::check_replicas(), after that step.
  void check_replicas(std::int64_t step);

  /// Copies rank 0's buffers to every rank.
  void synchronize_buffers();

  double learning_rate() const { return optimization_.learning_rate(); }
  const Optimization& optimization() const { return optimization_; }

  /// Fills in the model's part of a checkpoint as a single rank would have it: on rank 0; None on the others.
  /// Leaves out parameters that several ranks share: they are in the returned shards.
  std::optional<Shards> save(TrainingState& state);
  /// The same on this rank, whichever it is, without the others; not if keeps_parts().
  void save_alone(TrainingState& state) { save_own(state, /*here=*/true); }
  /// Fills in this rank's part, for load_part() on this rank with the same number of ranks.
  void save_part(TrainingState& state);
  void load_part(const TrainingState& state);
  /// The inverse, on every rank. throws  IoError naming source and what does not fit
  void load(const TrainingState& state, const std::filesystem::path& source);
  /// Loads a checkpoint's weights, or their averages if there are any, on every rank, for evaluation. Unless
  /// it is sharded, only rank 0 reads it.
  ///
  /// returns  on every rank, why it cannot be used, and the weights are as before; empty: they are loaded
  /// throws   IoError if a disk does not give it
  std::string load_weights_of(const std::filesystem::path& checkpoint);
  /// The module's whole state_dict: on rank 0; None on the others.
  c10::IValue whole_weights();

  /// Empty unless gradients are reduced in buckets.
  ddp::DistributedDataParallel::Statistics statistics() const;

 private:
  /// here  also on this rank, if the state is not sharded
  std::optional<Shards> save_own(TrainingState& state, bool here);
  void complete(TrainingState& state);
  void share_module();
  std::vector<torch::Tensor> parameters() const;
  bool has_shards() const;  ///< this rank has only a part of the parameters
  template <typename Use>
  void with_whole_parameters(const Use& use);
  c10::impl::GenericDict own_model() const;
  Optimization make_optimization();
  ddp::CommHook make_hook();
  void load_whole(const TrainingState& state, const std::filesystem::path& source);
  void load_power_sgd(const TrainingState& state, const std::filesystem::path& source);
  void load_schedule(const TrainingState& state, const std::filesystem::path& source);
  void resume_schedule(const TrainingState& state);
  LrScheduleOptions schedule() const;
  std::unique_ptr<ddp::StepGraph> make_graph() const;
  data::Batch to_device(const data::Batch& batch) const;
  Pass forward_backward(const data::Batch& here, bool last);

  const Run& run_;
  std::unique_ptr<ddp::StepGraph> graph_;     // null: none
  std::shared_ptr<ddp::PowerSgd> power_sgd_;  // null unless PowerSGD compresses the gradients
  // One of them shares the module among the ranks.
  std::optional<ddp::DistributedDataParallel> ddp_;
  std::optional<ddp::FullyShardedDataParallel> fsdp_;
  std::int64_t steps_meant_;  // RunLength's
  std::unique_ptr<ddp::NanCheck> nan_check_;
  std::vector<double> lr_factors_;  // of the groups
  Optimization optimization_;
};

/// The tensors of a state_dict whose names begin with the prefix, which is dropped.
StateDict named_tensors(const c10::IValue& dict, const std::string& prefix = "");

/// A state's averaged weights if it has them, else the model's: the ones to evaluate and export.
StateDict weights_to_evaluate(const TrainingState& state);

}  // namespace ddprun::train
