#include "worker/ddp/collectives.h"

#include <utility>

#include <torch/types.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

namespace ddprun::ddp {

std::vector<double> all_reduce_sum(const ProcessGroup& group, std::vector<double> values) {
  std::vector<torch::Tensor> tensors = {
      torch::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, torch::kFloat64)};
  group.handle()->allreduce(tensors)->wait();
  return values;
}

void broadcast_from(const ProcessGroup& group, const std::vector<at::Tensor>& tensors, int source) {
  constexpr std::size_t kBufferBytes = 250 << 20;  // as PyTorch's DistributedDataParallel
  if (!tensors.empty()) c10d::broadcast_coalesced(group.handle(), tensors, kBufferBytes, source);
}

void broadcast_from_rank_0(const ProcessGroup& group, const std::vector<at::Tensor>& tensors) {
  broadcast_from(group, tensors, 0);
}

}  // namespace ddprun::ddp
