// Modules made on the meta device, and given memory shard by shard.
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <functional>
#include <map>

#include <ddprun/common/errors.h>
#include <ddprun/sharding/fully_sharded.h>
#include <ddprun/sharding/meta_device.h>
#include "tests/support/catch.h"
#include "tests/support/counted_memory.h"
#include "tests/support/run_ranks.h"

using namespace ddprun;
using ddp::FullyShardedDataParallel;
using ddp::ProcessGroup;

namespace {

torch::nn::Sequential make_model(std::int64_t width, int layers) {
  torch::nn::Sequential model;
  for (int i = 0; i < layers; ++i) {
    model->push_back(torch::nn::Linear(width, width));
    model->push_back(torch::nn::BatchNorm1d(width));
  }
  return model;
}

/// Depends on the name alone.
void initialise(const std::string& name, at::Tensor& tensor) {
  if (!tensor.is_floating_point()) return void(tensor.zero_());
  auto generator = at::detail::createCPUGenerator(std::hash<std::string>()(name));
  tensor.uniform_(0.1, 0.3, generator);
}

std::vector<double> losses_of(torch::nn::Sequential model, const ProcessGroup& group,
                              const FullyShardedDataParallel::Options& options) {
  FullyShardedDataParallel fsdp(*model, group, options);
  torch::optim::SGD optimizer(fsdp.shards(), torch::optim::SGDOptions(0.1));
  std::vector<double> losses;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const auto x = torch::full({4, 12}, 0.1 * (step + group.rank())) + torch::arange(48).view({4, 12}) / 48.0;
    auto loss = fsdp.forward([&] { return model->forward(x); }).square().mean();
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

}  // namespace

TEST_CASE("a module made on the meta device trains as one made with memory", "[fully_sharded]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    const auto made = [] {
      const ddp::MetaDevice meta;
      return make_model(12, 3);
    }();
    for (const auto& tensor : made->parameters()) ensure(tensor.is_meta(), "no parameter has memory");
    ensure(torch::ones({2}).is_cpu(), "and what comes after it does");
    auto with_memory = make_model(12, 3);
    {
      const torch::NoGradGuard no_grad;
      for (auto& item : with_memory->named_parameters()) initialise(item.key(), item.value());
      for (auto& item : with_memory->named_buffers()) initialise(item.key(), item.value());
    }
    FullyShardedDataParallel::Options options{.unit_bytes = 1 << 9};
    const auto expected = losses_of(with_memory, group, options);
    options.initialise = initialise;
    ensure(losses_of(made, group, options) == expected, "bit for bit");
  });
}

TEST_CASE("a model larger than a rank's memory can be made: a rank holds its shards and a unit",
          "[fully_sharded]") {
  constexpr std::int64_t kWidth = 512, kLayers = 16, kLayerBytes = kWidth * kWidth * 4;
  test::run_ranks(2, [](const ProcessGroup& group) {
    test::count_tensor_memory();
    auto model = [] {
      const ddp::MetaDevice meta;
      return make_model(kWidth, kLayers);
    }();
    const FullyShardedDataParallel fsdp(*model, group,
                                        {.unit_bytes = kLayerBytes + (16 << 10), .initialise = initialise});
    const auto peak = static_cast<std::int64_t>(test::take_peak_tensor_bytes());
    ensure(peak < kLayers * kLayerBytes / 2 + 3 * kLayerBytes, "half of all, and a unit with its copies");
    ensure(peak > kLayers * kLayerBytes / 2, "and what it has is counted");
  });
}

TEST_CASE("a module on the meta device needs values", "[fully_sharded]") {
  const auto without = [](const ProcessGroup& group) {
    auto model = [] {
      const ddp::MetaDevice meta;
      return torch::nn::Linear(3, 2);
    }();
    const FullyShardedDataParallel fsdp(*model, group);
  };
  CHECK_THROWS_WITH(test::run_ranks(2, without),
                    test::ContainsSubstring("weight is on the meta device; expected Options::initialise"));
}
