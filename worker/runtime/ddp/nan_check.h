#pragma once

#include <stdexcept>
#include <vector>

#include <ddprun/group/process_group.h>

namespace torch::nn {
class Module;
}

namespace ddprun::ddp {

/// A gradient is NaN or infinite on some rank.
class NonFiniteGradient : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Finds the rank and the parameter whose gradient holds NaN or infinity.
///
/// Checks each gradient as backward computes it, also in micro-batches, before it is accumulated and
/// averaged, which would spread the value to every rank.
///
///   NanCheck nan_check(*model, group);  // before or after DistributedDataParallel is made
///   loss.backward();
///   nan_check.check();                  // before optimizer.step()
///
/// Costs one pass over the gradients and a small all-reduce per step; check() copies once from a GPU.
class NanCheck {
 public:
  /// The module must outlive it.
  NanCheck(const torch::nn::Module& module, const ProcessGroup& group);
  ~NanCheck();
  NanCheck(const NanCheck&) = delete;
  NanCheck& operator=(const NanCheck&) = delete;

  /// Every rank calls it after its backward.
  /// throws  NonFiniteGradient, on all ranks, naming for each affected rank the first such parameter (in the
  ///         module's order) and its numbers of NaN and infinite values
  void check();

 private:
  struct Parameter;
  const ProcessGroup group_;
  std::vector<Parameter> parameters_;  // the hooks point into it
};

}  // namespace ddprun::ddp
