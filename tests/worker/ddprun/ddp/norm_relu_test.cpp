// Batch norm, an addition and ReLU in one pass each way.
#include <ddprun/ddp/norm_relu.h>

#include <ddprun/ddp/sync_batch_norm.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/catch.h"

using namespace ddprun;

namespace {

struct Case {
  std::int64_t batch, channels, side;
  bool adds;
  double mean = 0;       // of the input
  double momentum = .1;  // 0: the average of all batches
};

/// Two steps with the same random numbers: the result, the gradients of input, residual, weight and bias, and
/// the running statistics.
std::vector<torch::Tensor> computed(const Case& wanted, torch::Dtype dtype, bool reference = false) {
  torch::manual_seed(1);
  const std::vector<std::int64_t> sizes = {wanted.batch, wanted.channels, wanted.side, wanted.side};
  const auto leaf = [&](double mean) {
    auto values = (torch::randn(sizes) + mean).to(torch::kBFloat16).to(dtype);
    return values.contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
  };
  torch::nn::BatchNormOptions options(wanted.channels);
  if (wanted.momentum == 0) options.momentum(std::nullopt);
  ddp::SyncBatchNorm norm(options);
  {
    const torch::NoGradGuard no_grad;
    norm->weight.normal_();
    norm->bias.normal_();
  }
  if (reference) norm->to(torch::kFloat64);
  std::vector<torch::Tensor> all;
  for (int step = 0; step < 2; ++step) {
    const auto input = leaf(wanted.mean), residual = leaf(0);
    const auto added = [&] { return residual; };
    const auto result = wanted.adds ? norm->forward_relu(input, added) : norm->forward_relu(input);
    result.backward(torch::randn(sizes).to(torch::kBFloat16).to(dtype));
    all = {result.detach(),   input.grad(),       norm->weight.grad(),
           norm->bias.grad(), norm->running_mean, norm->running_var};
    if (wanted.adds) all.push_back(residual.grad());
    CHECK(norm->num_batches_tracked.item<int>() == step + 1);
  }
  return all;
}

double distance(const torch::Tensor& a, const torch::Tensor& b) {
  return ((a.to(torch::kFloat64) - b).norm() / b.norm()).item<double>();
}

}  // namespace

TEST_CASE("batch norm with ReLU in one pass is as exact as the three operations", "[norm_relu]") {
  const std::vector<Case> cases = {{16, 64, 14, true},       {16, 64, 14, false, 3}, {3, 512, 1, true},
                                   {200, 5, 7, true, -2, 0}, {1, 1, 2, false},       {7, 33, 20, false, 30}};
  std::vector<std::vector<torch::Tensor>> before;
  for (const auto& each : cases) before.push_back(computed(each, torch::kBFloat16));
  const auto in_float = computed(cases[0], torch::kFloat32);
  ddp::fuse_norm_relu();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto exact = computed(cases[i], torch::kFloat64, /*reference=*/true),
               now = computed(cases[i], torch::kBFloat16);
    REQUIRE(now.size() == exact.size());
    for (std::size_t part = 0; part < now.size(); ++part) {
      CAPTURE(i, part);
      CHECK(now[part].sizes() == exact[part].sizes());
      CHECK(distance(now[part], exact[part]) < 1.1 * distance(before[i][part], exact[part]) + 1e-5);
    }
    CHECK(now[0].is_contiguous(at::MemoryFormat::ChannelsLast));
    CHECK(now[0].scalar_type() == torch::kBFloat16);
    if (i == 0) CHECK_FALSE(torch::equal(now[0], before[i][0]));
  }
  const auto still = computed(cases[0], torch::kFloat32);  // as before
  for (std::size_t part = 0; part < still.size(); ++part) CHECK(torch::equal(still[part], in_float[part]));
}

TEST_CASE("one pass keeps NaN, and without training nothing changes", "[norm_relu]") {
  ddp::fuse_norm_relu();
  ddp::SyncBatchNorm norm(torch::nn::BatchNormOptions(4));
  auto input = torch::randn({2, 4, 3, 3}).to(torch::kBFloat16).contiguous(at::MemoryFormat::ChannelsLast);
  input[0][2][1][1] = std::numeric_limits<float>::quiet_NaN();
  const auto result = norm->forward_relu(input);
  CHECK(result.isnan().any().item<bool>());
  CHECK_FALSE(result.select(1, 0).isnan().any().item<bool>());
  CHECK(norm->running_mean.isnan().sum().item<int>() == 1);
  norm->eval();
  const auto running = norm->running_var.clone();
  CHECK(torch::equal(norm->forward_relu(input).nan_to_num(), norm->forward(input).relu().nan_to_num()));
  CHECK(torch::equal(norm->running_var.nan_to_num(), running.nan_to_num()));
}
