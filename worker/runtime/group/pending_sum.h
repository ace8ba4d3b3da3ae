#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/TensorBody.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <ddprun/group/process_group.h>

namespace ddprun::ddp {

/// An element-wise sum over all ranks, on its way while other things are done. Every rank passes as many
/// values; they travel as doubles on the device.
class PendingSum {
 public:
  PendingSum(const ProcessGroup& group, c10::Device device, const std::vector<double>& values);
  std::vector<double> wait() const;
  const c10::intrusive_ptr<c10d::Work>& work() const { return work_; }

 private:
  std::vector<at::Tensor> values_;
  c10::intrusive_ptr<c10d::Work> work_;
};

/// The largest of the ranks' values.
std::int64_t all_reduce_max(const ProcessGroup& group, c10::Device device, std::int64_t value);

}  // namespace ddprun::ddp
