#pragma once

#include <c10/util/intrusive_ptr.h>

#include <string>
#include <vector>

#include <ddprun/group/process_group.h>

namespace at {
class Tensor;
}
namespace c10d {
class Work;
}

namespace ddprun::ddp {

// Every rank of the group calls these, in the same order. In a group of one they return at once. If a rank is
// missing they throw c10::Error, or Gloo's error, after the group's timeout.

/// Element-wise over all ranks, the same on every rank. Every rank passes the same number of values.
std::vector<double> all_reduce_sum(const ProcessGroup& group, std::vector<double> values);
std::vector<double> all_reduce_max(const ProcessGroup& group, std::vector<double> values);
std::vector<double> all_reduce_min(const ProcessGroup& group, std::vector<double> values);

/// True on every rank if it is true on any.
bool any_rank_true(const ProcessGroup& group, bool value);

/// Every rank's value, by rank, on every rank.
std::vector<double> all_gather(const ProcessGroup& group, double value);

/// Every rank's text, by rank, on every rank: any bytes, of any lengths.
std::vector<std::string> all_gather(const ProcessGroup& group, const std::string& text);

/// Copies that rank's tensors into every rank's, in place. Shapes and types must be the same everywhere.
void broadcast_from(const ProcessGroup& group, const std::vector<at::Tensor>& tensors, int source);

/// broadcast_from() rank 0.
void broadcast_from_rank_0(const ProcessGroup& group, const std::vector<at::Tensor>& tensors);

/// Rank 0's text, on every rank; what the others pass is ignored.
std::string broadcast_from_rank_0(const ProcessGroup& group, const std::string& text);

// The differences between the minor releases of LibTorch that the library supports, 2.11 to 2.15. Everything
// else is the same source; c10d::Reducer's constructor only gains parameters with defaults (2.12, 2.15).

/// Every rank's input, one after the other: c10d's own name since 2.13, where _allgather_base is deprecated.
template <class Group>  // a template: only the branch that LibTorch has is compiled
c10::intrusive_ptr<c10d::Work> all_gather_single(Group& group, at::Tensor& gathered, at::Tensor& input) {
  if constexpr (requires { group.all_gather_single(gathered, input); })
    return group.all_gather_single(gathered, input);
  else
    return group._allgather_base(gathered, input);
}

/// This rank's share of the sum of all ranks' inputs; likewise for _reduce_scatter_base.
template <class Group>
c10::intrusive_ptr<c10d::Work> reduce_scatter_single(Group& group, at::Tensor& share, at::Tensor& input) {
  if constexpr (requires { group.reduce_scatter_single(share, input); })
    return group.reduce_scatter_single(share, input);
  else
    return group._reduce_scatter_base(share, input);
}

}  // namespace ddprun::ddp
