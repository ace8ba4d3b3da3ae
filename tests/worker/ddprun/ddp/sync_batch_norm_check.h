#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <torch/nn/modules/batchnorm.h>
#include <torch/types.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <ddprun/common/errors.h>
#include <ddprun/ddp/sync_batch_norm.h>
#include <ddprun/group/process_group.h>

// SyncBatchNorm against BatchNorm, on any device.
namespace ddprun::test::sync_batch_norm {

using ddp::ProcessGroup;
using ddp::SyncBatchNorm;
using torch::Tensor;

/// What is compared, and with whom: counts[r] samples on rank r; the rest of the input's shape is [3, ...].
struct Case {
  std::vector<std::int64_t> counts;
  std::vector<std::int64_t> after_channels = {5, 4};
  torch::Dtype dtype = torch::kFloat64;
  torch::Dtype parameters = torch::kFloat64;
  double tolerance = 1e-12;
  bool channels_last = false;
  torch::nn::BatchNormOptions options{3};
  torch::Device device = torch::kCPU;
};

/// The same on whoever calls it.
template <typename Norm>
Norm make_norm(const Case& c) {
  torch::manual_seed(1);
  Norm norm(c.options);
  torch::NoGradGuard no_grad;
  if (c.options.affine()) {
    norm->weight.uniform_(0.5, 2);
    norm->bias.uniform_(-1, 1);
  }
  norm->to(c.device, c.parameters);
  return norm;
}

inline void check_close(const Tensor& found, const Tensor& expected, double tolerance,
                        const std::string& what) {
  ensure(found.defined() == expected.defined(), (what + " is defined or not, as expected").c_str());
  if (!found.defined()) return;
  ensure(found.sizes() == expected.sizes(), (what + " has the shape expected").c_str());
  if (found.numel() == 0) return;
  const double difference =
      (found.to(torch::kFloat64) - expected.to(torch::kFloat64)).abs().max().item<double>() /
      std::max(1.0, expected.to(torch::kFloat64).abs().max().item<double>());
  ensure(difference <= tolerance, (what + " differs by " + std::to_string(difference)).c_str());
}

inline Tensor input_of(const Case& c, std::int64_t samples) {
  std::vector<std::int64_t> shape = {samples, 3};
  shape.insert(shape.end(), c.after_channels.begin(), c.after_channels.end());
  auto x = (torch::randn(shape, torch::kFloat64) * 3 + 2).to(c.device, c.dtype);
  if (c.channels_last)
    x = x.contiguous(x.dim() == 5 ? torch::MemoryFormat::ChannelsLast3d : torch::MemoryFormat::ChannelsLast);
  return x;
}

inline Tensor sum_over_ranks(const ProcessGroup& group, const Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  std::vector<Tensor> tensors = {tensor.to(torch::kFloat64)};
  group.handle()->allreduce(tensors)->wait();
  return tensors[0];
}

/// On each rank: three training steps and one in eval mode on this rank's part, against torch's BatchNorm on
/// the union in double precision. Throws what differs.
template <typename BatchNorm>
void check_equals_union(const ProcessGroup& group, const Case& c) {
  auto norm = make_norm<SyncBatchNorm>(c);
  ensure(ddp::convert_sync_batchnorm(*norm, group) == 1, "one layer is converted");
  auto reference = make_norm<BatchNorm>(c);
  reference->to(torch::kFloat64);

  const auto rank = static_cast<std::size_t>(group.rank());
  std::int64_t begin = 0, total = 0;
  for (std::size_t r = 0; r < c.counts.size(); ++r) {
    if (r < rank) begin += c.counts[r];
    total += c.counts[r];
  }
  const auto part = [&](const Tensor& all) { return all.slice(0, begin, begin + c.counts[rank]); };
  torch::manual_seed(2);
  for (int step = 0; step < 4; ++step) {
    if (step == 3) {
      norm->eval();
      reference->eval();
    }
    const auto all = input_of(c, total), dy_all = input_of(c, total);
    auto mine = part(all).detach().clone(torch::MemoryFormat::Preserve).requires_grad_();
    auto all_64 = all.to(torch::kFloat64).detach().requires_grad_();
    norm->zero_grad();
    reference->zero_grad();
    const auto y = norm->forward(mine);
    // In eval mode without running statistics a batch is normalised by its own, on each rank.
    const bool own = step == 3 && !c.options.track_running_stats();
    const auto expected = own ? torch::cat({reference->forward(all_64.slice(0, 0, c.counts[0])),
                                            reference->forward(all_64.slice(0, c.counts[0], total))})
                              : reference->forward(all_64);
    ensure(y.scalar_type() == c.dtype, "the output has the input's type");
    if (y.numel() > 0) ensure(y.strides() == mine.strides(), "the output has the input's memory format");
    check_close(y, part(expected), c.tolerance, "the output");
    y.backward(part(dy_all));
    expected.backward(dy_all.to(torch::kFloat64));
    check_close(mine.grad(), part(all_64.grad()), c.tolerance, "the input's gradient");
    if (c.options.affine()) {
      check_close(sum_over_ranks(group, norm->weight.grad()), reference->weight.grad(), c.tolerance,
                  "weight's gradient");
      check_close(sum_over_ranks(group, norm->bias.grad()), reference->bias.grad(), c.tolerance,
                  "bias's gradient");
    }
    check_close(norm->running_mean, reference->running_mean, c.tolerance, "running_mean");
    check_close(norm->running_var, reference->running_var, c.tolerance, "running_var");
    check_close(norm->num_batches_tracked, reference->num_batches_tracked, 0, "num_batches_tracked");
  }
}

}  // namespace ddprun::test::sync_batch_norm
