#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include <ddprun/group/process_group.h>

namespace torch::nn {
class Module;
}

namespace ddprun::ddp {

/// A gradient that is no number, on some rank.
class NonFiniteGradient : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Finds the rank and the parameter whose gradient holds NaN or infinity.
///
/// Looks at each gradient as backward computes it, before it is added to the parameter's and averaged over
/// the ranks: afterwards every rank would have it. Every micro-batch of an accumulation is looked at.
///
///   NanCheck nan_check(*model, group);  // before or after DistributedDataParallel is made
///   loss.backward();
///   nan_check.check();                  // before optimizer.step()
///
/// Costs one pass over the gradients and a small all-reduce a step; with CUDA no synchronisation before
/// check().
class NanCheck {
 public:
  /// The module must outlive it.
  NanCheck(const torch::nn::Module& module, const ProcessGroup& group);
  ~NanCheck();
  NanCheck(const NanCheck&) = delete;
  NanCheck& operator=(const NanCheck&) = delete;

  /// Every rank calls it after its backward, and every rank learns the same.
  /// throws  NonFiniteGradient, on all ranks, naming for each rank that has one the first such parameter (in
  ///         the module's order) and how many of its values are NaN and infinite
  void check();

 private:
  struct Hooks;
  const ProcessGroup group_;
  std::unique_ptr<Hooks> hooks_;
};

}  // namespace ddprun::ddp
