// Convolutions of small images as products of matrices.
#include <ddprun/train/model/small_convolutions.h>

#include <torch/nn/functional/conv.h>
#include <torch/types.h>

#include <string>
#include <vector>

#include <ddprun/common/files.h>
#include <ddprun/train/model/cpu_abilities.h>
#include "tests/support/catch.h"

using namespace ddprun;

namespace {

struct Shape {
  std::int64_t in, out, side, kernel, stride, padding;
};

/// The result of a convolution of the same random numbers, then the gradients of input, weight and bias.
std::vector<torch::Tensor> computed(const Shape& shape, torch::Dtype dtype) {
  torch::manual_seed(1);
  const auto leaf = [&](std::vector<std::int64_t> sizes) {
    auto values = torch::randn(sizes).to(torch::kBFloat16).to(dtype);
    if (values.dim() == 4) values = values.contiguous(at::MemoryFormat::ChannelsLast);
    return values.requires_grad_();
  };
  const auto input = leaf({3, shape.in, shape.side, shape.side});
  const auto weight = leaf({shape.out, shape.in, shape.kernel, shape.kernel}), bias = leaf({shape.out});
  const auto result = torch::conv2d(input, weight, bias, shape.stride, shape.padding);
  result.backward(torch::randn(result.sizes()).to(torch::kBFloat16).to(dtype));
  return {result.detach(), input.grad(), weight.grad(), bias.grad()};
}

double distance(const torch::Tensor& a, const torch::Tensor& b) {
  return ((a.to(torch::kFloat64) - b).norm() / b.norm()).item<double>();
}

}  // namespace

TEST_CASE("what the CPU is fast at is what the kernel says", "[small_convolutions]") {
  const auto abilities = train::cpu_abilities();
  const auto cpuinfo = read_file("/proc/cpuinfo");
  for (const std::string name : {"avx2", "avx512f", "avx512_bf16", "amx_bf16"})
    CHECK(abilities.contains(name) == (cpuinfo.find(" " + name) != std::string::npos));
}

TEST_CASE("small convolutions as products of matrices are as exact as oneDNN's", "[small_convolutions]") {
  const std::vector<Shape> shapes = {{512, 512, 4, 3, 1, 1}, {512, 512, 1, 3, 1, 1}, {256, 512, 7, 3, 2, 1},
                                     {256, 512, 8, 1, 2, 0}, {64, 64, 8, 3, 1, 1},   {512, 16, 5, 5, 1, 2},
                                     {16, 512, 6, 2, 1, 0},  {512, 512, 3, 3, 1, 2}, {3, 8, 16, 7, 2, 3},
                                     {8, 8, 20, 3, 1, 1}};
  std::vector<std::vector<torch::Tensor>> before;
  for (const auto& shape : shapes) before.push_back(computed(shape, torch::kBFloat16));
  train::compute_small_convolutions_as_products();
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    CAPTURE(i);
    const auto exact = computed(shapes[i], torch::kFloat64), now = computed(shapes[i], torch::kBFloat16);
    for (std::size_t part = 0; part < now.size(); ++part) {
      CAPTURE(part);
      CHECK(now[part].sizes() == exact[part].sizes());
      CHECK(distance(now[part], exact[part]) < 1.5 * distance(before[i][part], exact[part]) + 1e-6);
      CHECK(distance(now[part], exact[part]) < 8e-3);  // bfloat16 rounds by up to 1/256
    }
    CHECK(now[0].is_contiguous(at::MemoryFormat::ChannelsLast));
    const bool same = torch::equal(now[2], before[i][2]);
    if (i == 0) CHECK_FALSE(same);
    if (i + 1 == shapes.size()) CHECK(same);  // 20 x 20: as before
  }
}
