#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ddprun/group/process_group.h>

namespace ddprun::ddp {

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
