#pragma once

#include <vector>

#include "worker/ddp/process_group.h"

namespace at {
class Tensor;
}

namespace ddprun::ddp {

/// Element-wise sum over all ranks, the same on every rank. Every rank passes as many values.
std::vector<double> all_reduce_sum(const ProcessGroup& group, std::vector<double> values);

/// That rank's values in every rank's tensors, in place. Shapes and types must be the same everywhere.
void broadcast_from(const ProcessGroup& group, const std::vector<at::Tensor>& tensors, int source);

/// Rank 0's values in every rank's tensors, in place. Shapes and types must be the same everywhere.
void broadcast_from_rank_0(const ProcessGroup& group, const std::vector<at::Tensor>& tensors);

}  // namespace ddprun::ddp
