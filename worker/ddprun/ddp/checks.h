#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

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

/// What must be equal on all ranks, bit for bit, is not. Thrown on the ranks that it names.
class ReplicasDiffer : public std::runtime_error {
 public:
  ReplicasDiffer(const std::string& message, std::vector<int> differing)
      : std::runtime_error(message), ranks(std::move(differing)) {}

  std::vector<int> ranks;  ///< in the group, ascending
};

/// A sum over the tensors' bits, in their order: a single flipped bit always changes it. Reads each tensor
/// once, where it is, and waits for a GPU once.
std::uint64_t checksum(const std::vector<at::Tensor>& tensors);

/// The ranks whose text is not the most frequent one, ascending; all ranks if several texts are.
std::vector<int> odd_ones_out(const std::vector<std::string>& of_ranks);

/// Finds a rank whose core, memory or driver computes wrong numbers: replicas go through the same operations
/// on the same numbers, so their tensors are equal bit for bit. Every rank calls it, between two steps, with
/// its parameters and optimizer state (train::replicated_tensors()); not with what ranks have parts of.
///
/// step    for the message
/// throws  ReplicasDiffer on the ranks that it names; on the others it waits for their end, and throws
///         c10::Error once their connections close
void check_replicas(const ProcessGroup& group, const std::vector<at::Tensor>& tensors, std::int64_t step);

}  // namespace ddprun::ddp
