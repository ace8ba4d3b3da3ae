#include <ddprun/train/optim/gradients.h>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "tests/support/catch.h"

using namespace ddprun;
using train::AutocastScope;
using train::Precision;
namespace nn = torch::nn;

TEST_CASE("the precision of float32's matrix products is the process's", "[precision]") {
  for (const char* matmul : {"medium", "high", "highest"}) {
    train::set_matmul_precision(matmul, std::string(matmul) == "high");
    const auto precision = at::globalContext().float32MatmulPrecision();
    CHECK((precision == at::Float32MatmulPrecision::HIGHEST) == (std::string(matmul) == "highest"));
    CHECK((precision == at::Float32MatmulPrecision::HIGH) == (std::string(matmul) == "high"));
    CHECK(at::globalContext().benchmarkCuDNN() == (std::string(matmul) == "high"));
  }
  CHECK_THROWS_WITH(train::set_matmul_precision("low", false),
                    "set_matmul_precision: expected highest, high or medium, got 'low'");
}

TEST_CASE("matrix products are of the scope's type, gradients of the weights'", "[precision]") {
  nn::Linear layer(4, 3);
  const auto input = torch::randn({2, 4});
  const auto type_in = [&](Precision precision) {
    const AutocastScope scope(precision, at::kCPU);
    return layer->forward(input).scalar_type();
  };
  CHECK(type_in(Precision::k32) == torch::kFloat32);
  CHECK(type_in(Precision::kBf16Mixed) == torch::kBFloat16);
  CHECK(type_in(Precision::k16Mixed) == torch::kFloat16);
  CHECK(layer->forward(input).scalar_type() == torch::kFloat32);

  torch::Tensor loss;
  {
    const AutocastScope scope(Precision::kBf16Mixed, at::kCPU);
    loss = layer->forward(input).sum();
  }
  loss.backward();
  CHECK(layer->weight.grad().scalar_type() == torch::kFloat32);
}

TEST_CASE("scopes may lie in one another, and leave what was before", "[precision]") {
  nn::Linear layer(4, 3);
  const auto input = torch::randn({2, 4});
  {
    const AutocastScope outer(Precision::kBf16Mixed, at::kCPU);
    {
      const AutocastScope inner(Precision::k16Mixed, at::kCPU);
      CHECK(at::autocast::get_autocast_dtype(at::kCPU) == torch::kFloat16);
    }
    CHECK(layer->forward(input).scalar_type() == torch::kBFloat16);
  }
  CHECK_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

TEST_CASE("weights that changed between two scopes are cast anew", "[precision]") {
  nn::Linear layer(nn::LinearOptions(1, 1).bias(false));
  const auto output = [&] {
    const AutocastScope scope(Precision::kBf16Mixed, at::kCPU);
    return layer->forward(torch::ones({1, 1})).item<double>();
  };
  for (const double value : {1.0, 2.0}) {
    {
      const torch::NoGradGuard no_grad;
      layer->weight.fill_(value);
    }
    CHECK(output() == value);
  }
}

TEST_CASE("channels last moves the 4-D weights and keeps everything's values", "[precision]") {
  nn::Sequential module(nn::Conv2d(3, 4, 3), nn::BatchNorm2d(4));
  const auto input = torch::randn({2, 3, 8, 8});
  const auto before = module->forward(input);
  train::to_channels_last(*module);
  const auto weight = module->parameters()[0];
  CHECK(weight.is_contiguous(torch::MemoryFormat::ChannelsLast));
  CHECK(weight.requires_grad());
  CHECK(weight.is_leaf());
  const auto moved = train::channels_last(input);
  CHECK(moved.is_contiguous(torch::MemoryFormat::ChannelsLast));
  const auto after = module->forward(moved);
  CHECK(after.is_contiguous(torch::MemoryFormat::ChannelsLast));
  CHECK(torch::allclose(before, after, 1e-5, 1e-5));
  const auto flat = torch::ones({2, 3});
  CHECK(train::channels_last(flat).is_same(flat));
}
