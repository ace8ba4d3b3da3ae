#pragma once

#include <stdexcept>

namespace ddprun::ddp {

class DistributedDataParallel;

/// Thrown on every rank when one has no more input and JoinOptions::throw_on_early_termination is set.
class UnevenInputs : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct JoinOptions {
  /// True: gradients are divided by the number of all ranks, so that every sample counts alike. False: by the
  /// number of ranks that still have input.
  bool divide_by_initial_world_size = true;
  /// Throws UnevenInputs on every rank as soon as one has no more input: for modules with collectives of
  /// their own, such as SyncBatchNorm, which nobody could take part in for it.
  bool throw_on_early_termination = false;
};

/// Training while ranks have different numbers of batches; made by DistributedDataParallel::join(). The
/// counterpart of torch.distributed.algorithms.Join.
///
///   auto join = ddp.join({});
///   while (auto batch = loader.next()) { forward, backward, step }
///   join.finish();
///
/// All ranks make it, and all call finish(), once each. Destroyed without it, as when an exception unwinds,
/// it only ends this rank's part.
class [[nodiscard]] Join {
 public:
  Join(DistributedDataParallel& ddp, const JoinOptions& options);
  Join(const Join&) = delete;
  ~Join();

  /// This rank has no more input. Takes part in the other ranks' steps, with gradients of zero, until none
  /// has; then gives every rank the parameters and buffers of one that made the most steps (of these, the
  /// highest), since this one made fewer.
  /// throws  UnevenInputs; c10::Error; std::invalid_argument, on this rank alone, if it has had no input at
  ///         all with DistributedDataParallel::Options::static_graph: the others wait until their timeout
  void finish();

 private:
  DistributedDataParallel& ddp_;
  bool ended_ = false;
};

}  // namespace ddprun::ddp
