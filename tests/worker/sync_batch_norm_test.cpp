#include "worker/ddp/sync_batch_norm.h"

#include <torch/cuda.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <stdexcept>
#include <string>

#include "common/errors.h"
#include "tests/support/catch.h"
#include "tests/support/run_ranks.h"
#include "worker/ddp/collectives.h"
#include "worker/ddp/distributed_data_parallel.h"

using namespace ddprun;
using ddp::ProcessGroup;
using ddp::SyncBatchNorm;
using torch::Tensor;

namespace {

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

void check_close(const Tensor& found, const Tensor& expected, double tolerance, const std::string& what) {
  ensure(found.defined() == expected.defined(), (what + " is defined or not, as expected").c_str());
  if (!found.defined()) return;
  ensure(found.sizes() == expected.sizes(), (what + " has the shape expected").c_str());
  if (found.numel() == 0) return;
  const double difference =
      (found.to(torch::kFloat64) - expected.to(torch::kFloat64)).abs().max().item<double>() /
      std::max(1.0, expected.to(torch::kFloat64).abs().max().item<double>());
  ensure(difference <= tolerance, (what + " differs by " + std::to_string(difference)).c_str());
}

Tensor input_of(const Case& c, std::int64_t samples) {
  std::vector<std::int64_t> shape = {samples, 3};
  shape.insert(shape.end(), c.after_channels.begin(), c.after_channels.end());
  auto x = (torch::randn(shape, torch::kFloat64) * 3 + 2).to(c.device, c.dtype);
  if (c.channels_last)
    x = x.contiguous(x.dim() == 5 ? torch::MemoryFormat::ChannelsLast3d : torch::MemoryFormat::ChannelsLast);
  return x;
}

Tensor sum_over_ranks(const ProcessGroup& group, const Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  std::vector<Tensor> tensors = {tensor.to(torch::kFloat64)};
  group.handle()->allreduce(tensors)->wait();
  return tensors[0];
}

/// Three training steps and one in eval mode on this rank's part, against torch's BatchNorm on the union in
/// double precision.
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

template <typename BatchNorm>
void check_ranks(const Case& c) {
  test::run_ranks(static_cast<int>(c.counts.size()),
                  [&](const ProcessGroup& group) { check_equals_union<BatchNorm>(group, c); });
}

}  // namespace

TEST_CASE("SyncBatchNorm of N ranks equals BatchNorm of one on the union batch", "[sync_batch_norm]") {
  SECTION("even batches") {
    check_ranks<torch::nn::BatchNorm2d>({{4, 4}});
    check_ranks<torch::nn::BatchNorm2d>({{2, 2, 2}});
  }
  SECTION("uneven batches, of one sample, empty on a rank") {
    check_ranks<torch::nn::BatchNorm2d>({{5, 2}});
    check_ranks<torch::nn::BatchNorm2d>({{0, 1, 6}});
    check_ranks<torch::nn::BatchNorm2d>({{3, 0}});
  }
  SECTION("one value a channel on each rank") { check_ranks<torch::nn::BatchNorm1d>({{1, 1}, {}}); }
  SECTION("[N, C], [N, C, L] and [N, C, D, H, W]") {
    check_ranks<torch::nn::BatchNorm1d>({{4, 3}, {}});
    check_ranks<torch::nn::BatchNorm1d>({{4, 3}, {7}});
    check_ranks<torch::nn::BatchNorm3d>({{2, 3}, {2, 3, 4}});
  }
}

TEST_CASE("SyncBatchNorm's options are BatchNorm's", "[sync_batch_norm]") {
  Case c{{3, 5}};
  SECTION("cumulative average") { c.options.momentum(std::nullopt); }
  SECTION("another momentum and eps") { c.options.momentum(0.3).eps(0.5); }
  SECTION("without parameters") { c.options.affine(false); }
  SECTION("without running statistics") { c.options.track_running_stats(false); }
  SECTION("without both") { c.options.affine(false).track_running_stats(false); }
  check_ranks<torch::nn::BatchNorm2d>(c);
}

TEST_CASE("SyncBatchNorm takes every floating type and channels_last", "[sync_batch_norm]") {
  Case c{{3, 5}};
  SECTION("channels_last") { c.channels_last = true; }
  SECTION("channels_last in three dimensions") {
    c.channels_last = true;
    c.after_channels = {2, 3, 4};
  }
  SECTION("float") {
    c.dtype = c.parameters = torch::kFloat32;
    c.tolerance = 2e-6;
  }
  SECTION("bfloat16 with float parameters") {
    c.dtype = torch::kBFloat16;
    c.parameters = torch::kFloat32;
    c.tolerance = 8e-3;
  }
  SECTION("half with float parameters") {
    c.dtype = torch::kHalf;
    c.parameters = torch::kFloat32;
    c.tolerance = 1e-3;
  }
  SECTION("bfloat16 throughout") {
    c.dtype = c.parameters = torch::kBFloat16;
    c.tolerance = 3e-2;
  }
  if (c.after_channels.size() == 3) {
    check_ranks<torch::nn::BatchNorm3d>(c);
  } else {
    check_ranks<torch::nn::BatchNorm2d>(c);
  }
}

TEST_CASE("a network with SyncBatchNorm under DDP trains as on one rank", "[sync_batch_norm]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    const auto make = [] {
      torch::manual_seed(5);
      torch::nn::Sequential net(torch::nn::Linear(6, 8), SyncBatchNorm(8), torch::nn::Linear(8, 8),
                                SyncBatchNorm(8), torch::nn::Linear(8, 1));
      net->to(torch::kFloat64);
      return net;
    };
    auto net = make(), reference = make();
    ensure(ddp::convert_sync_batchnorm(*net, group) == 2, "both layers are converted");
    ddp::DistributedDataParallel ddp(*net, group);
    const auto all = torch::randn({10, 6}, torch::kFloat64);
    auto loss = ddp.forward(
        [&] { return net->forward(all.slice(0, group.rank() * 5, group.rank() * 5 + 5)).square().mean(); });
    loss.backward();
    reference->forward(all).square().mean().backward();
    for (const auto& item : net->named_parameters())
      check_close(item.value().grad(), reference->named_parameters()[item.key()].grad(), 1e-12, item.key());
    for (const auto& item : net->named_buffers())
      check_close(item.value(), reference->named_buffers()[item.key()], 1e-12, item.key());
  });
}

TEST_CASE("SyncBatchNorm that was not converted is torch::batch_norm, bit for bit", "[sync_batch_norm]") {
  torch::NoGradGuard no_grad;  // ranks may be forked after this test
  const Case c{{}, {5, 4}, torch::kFloat32, torch::kFloat32};
  auto norm = make_norm<SyncBatchNorm>(c);
  auto reference = make_norm<torch::nn::BatchNorm2d>(c);
  for (const bool training : {true, false}) {
    norm->train(training);
    reference->train(training);
    const auto x = input_of(c, 4);
    CHECK(norm->forward(x).equal(reference->forward(x)));
  }
  CHECK(norm->named_parameters().keys() == reference->named_parameters().keys());
  REQUIRE(norm->named_buffers().keys() == reference->named_buffers().keys());
  for (const auto& item : norm->named_buffers())
    CHECK(item.value().equal(reference->named_buffers()[item.key()]));
}

TEST_CASE("SyncBatchNorm refuses what has no statistics, on every rank", "[sync_batch_norm]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    const auto refused = [](const auto& call, const std::string& expected) {
      try {
        call();
      } catch (const std::invalid_argument& error) {
        ensure(std::string(error.what()).find(expected) != std::string::npos, error.what());
        return;
      }
      ensure(false, ("refused: " + expected).c_str());
    };
    SyncBatchNorm norm(3);
    ddp::convert_sync_batchnorm(*norm, group);
    refused(
        [&] {
          norm->forward(torch::ones({4, 2, 5, 5}));
        },
        "3 channels in the second, got shape [4, 2, 5, 5]");
    refused([&] { norm->forward(torch::ones({3})); }, "got shape [3]");
    refused([&] { norm->forward(torch::ones({group.rank(), 3})); }, "over all ranks when training, got 1");
    refused([&] { norm->forward(torch::ones({0, 3, 2})); }, "over all ranks when training, got 0");
    const auto x = torch::randn({2, 3}).requires_grad_();
    const auto y = norm->forward(x).square().sum();
    refused([&] { y.backward({}, std::nullopt, /*create_graph=*/true); }, "second derivative");
  });
}

TEST_CASE("SyncBatchNorm on CUDA equals BatchNorm on the union batch", "[sync_batch_norm][gpu]") {
  if (!torch::cuda::is_available()) test::skip("no CUDA device, or LibTorch's CUDA library is not loaded");
  for (const auto& counts : std::vector<std::vector<std::int64_t>>{{4, 4}, {5, 2}, {0, 3}}) {
    Case c{counts};
    c.device = torch::kCUDA;
    c.tolerance = 1e-10;
    check_ranks<torch::nn::BatchNorm2d>(c);
  }
}
