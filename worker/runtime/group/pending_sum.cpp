#include <ddprun/group/pending_sum.h>

#include <torch/types.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace ddprun::ddp {

PendingSum::PendingSum(const ProcessGroup& group, c10::Device device, const std::vector<double>& values)
    : values_{torch::tensor(values, torch::kFloat64).to(device)}, work_(group.handle()->allreduce(values_)) {}

std::vector<double> PendingSum::wait() const {
  work_->wait();
  const auto values = values_[0].cpu();
  return {values.data_ptr<double>(), values.data_ptr<double>() + values.numel()};
}

std::int64_t all_reduce_max(const ProcessGroup& group, c10::Device device, std::int64_t value) {
  std::vector<torch::Tensor> tensors = {torch::tensor({value}).to(device)};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  group.handle()->allreduce(tensors, options)->wait();
  return tensors[0].item<std::int64_t>();
}

}  // namespace ddprun::ddp
