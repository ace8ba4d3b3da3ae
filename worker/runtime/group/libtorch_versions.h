#pragma once

// The differences between the minor releases of LibTorch that the library supports, 2.11 to 2.15. Everything
// else is the same source; c10d::Reducer's constructor only gains parameters with defaults (2.12, 2.15).

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace ddprun::ddp {

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
