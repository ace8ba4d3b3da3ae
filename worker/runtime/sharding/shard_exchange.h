#pragma once

#include <ATen/core/Tensor.h>

#include <c10/util/intrusive_ptr.h>

#include <ddprun/group/process_group.h>

namespace c10d {
class Work;
}

namespace ddprun::ddp {

// CPU tensors travel in point-to-point messages, all ranks to all ranks: Gloo's own all-gather copies through
// a second buffer of the full size, and its reduce-scatter is an all-reduce of a copy. Messages carry the
// tag, so that ranks that exchange different tensors wait, and never mix them up. Tensors elsewhere use the
// backend's collectives.

/// An all-gather under way.
class AllGather {
 public:
  AllGather() = default;
  /// full   1-D, world size * shard's elements; rank r's shard comes to place r
  /// shard  1-D, of one size everywhere; must stay as it is until wait()
  AllGather(const ProcessGroup& group, at::Tensor full, at::Tensor shard, int tag);
  /// The full tensor.
  at::Tensor wait();

 private:
  at::Tensor full_, shard_;
  c10::intrusive_ptr<c10d::Work> work_;
};

/// A reduce-scatter (sum) under way.
class ReduceScatter {
 public:
  ReduceScatter() = default;
  /// full  1-D, of one size everywhere, a multiple of the world size; must stay as it is until wait()
  ReduceScatter(const ProcessGroup& group, at::Tensor full, int tag);
  /// This rank's part of the sum, as a tensor of its own. The same on every run: summed in the ranks' order.
  at::Tensor wait();

 private:
  int rank_ = 0;
  at::Tensor full_, received_;
  c10::intrusive_ptr<c10d::Work> work_;
};

}  // namespace ddprun::ddp
