#pragma once

#include <functional>
#include <stdexcept>

namespace ddprun::ddp {

class DistributedDataParallel;

/// Thrown on every rank when one runs out of input and JoinOptions::throw_on_early_termination is set.
class UnevenInputs : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct JoinOptions {
  /// Divide gradients by the number of all ranks, so that every sample counts the same; if false, by the
  /// number of ranks that still have input.
  bool divide_by_initial_world_size = true;
  /// Throw UnevenInputs on every rank as soon as one runs out of input: for modules with other collectives,
  /// such as SyncBatchNorm, in which that rank could not take part.
  bool throw_on_early_termination = false;
};

/// Training where ranks have different numbers of batches; see DistributedDataParallel::join(). The
/// counterpart of torch.distributed.algorithms.Join.
///
///   auto join = ddp.join({});
///   while (auto batch = loader.next()) { forward, backward, step }
///   join.finish();
///
/// Every rank creates one and calls finish() once. Destroyed without it, as when an exception unwinds, it
/// only ends this rank's part.
class [[nodiscard]] Join {
 public:
  Join(DistributedDataParallel& ddp, const JoinOptions& options);
  Join(const Join&) = delete;
  ~Join();

  /// This rank has no more input. Takes part in the other ranks' steps with zero gradients until no rank has
  /// input; then copies the parameters and buffers of the rank with the most steps (the highest, if several)
  /// to every rank.
  ///
  /// after_step  called after each of those steps that reduces gradients, with these as this rank's own: if
  /// it
  ///             takes the optimizer's step too, optimizer, averages and schedule stay the same on all ranks.
  ///             Null: gradients stay as they are
  /// throws  UnevenInputs; c10::Error; std::invalid_argument, on this rank only, if it never had input, with
  ///         DistributedDataParallel::Options::static_graph
  void finish(const std::function<void()>& after_step = {});

 private:
  DistributedDataParallel& ddp_;
  bool ended_ = false;
};

}  // namespace ddprun::ddp
