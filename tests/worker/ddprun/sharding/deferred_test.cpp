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
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/data/dataset.h>
#include <ddprun/sharding/fully_sharded.h>
#include <ddprun/sharding/meta_device.h>
#include <ddprun/train/model/parallel_model.h>
#include <ddprun/train/model/run.h>
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

/// Of all ways to set values: in place, by factories, from other tensors, in parts, drawn from a generator of
/// one's own.
struct MixedImpl : torch::nn::Module {
  explicit MixedImpl(std::int64_t width) {
    linear = register_module("linear", torch::nn::Linear(width, width));
    torch::nn::init::orthogonal_(linear->weight);
    norm = register_module("norm", torch::nn::BatchNorm1d(width));
    table = register_parameter("table", torch::randn({width, 4}) * 0.02);
    auto joined = torch::cat({torch::rand({2, width}), torch::full({1, width}, 3.0)});
    const torch::NoGradGuard no_grad;
    joined.slice(0, 0, 1).normal_();
    stacked = register_parameter("stacked", joined);
    grid = register_buffer("grid", torch::arange(width) + torch::ones({width}));
    auto generator = at::detail::createCPUGenerator(9);
    own = register_parameter("own", torch::empty({width}).uniform_(0, 1, generator));
    own_too = register_parameter("own_too", torch::empty({width}).uniform_(0, 1, generator));
    linear->bias.copy_(table.select(1, 0));
    tied = register_parameter("tied", table);
    wide = register_parameter("wide", torch::randn({width}, torch::kDouble));
  }
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::Tensor table, stacked, grid, own, own_too, tied, wide;
};
TORCH_MODULE(Mixed);

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

TEST_CASE("a deferred module gets the values of its constructor, bit for bit", "[fully_sharded]") {
  const auto make = [] { return Mixed(24); };
  torch::manual_seed(5);
  const auto plain = make();
  const auto next = torch::rand({3}), after = torch::rand({3});
  torch::manual_seed(5);
  ddp::DeferredInit deferred;
  const auto hollow = deferred.make(make);
  CHECK(torch::rand({3}).equal(next));
  const auto check = [&](const auto& tensors, const auto& expected) {
    REQUIRE(tensors.size() == expected.size());
    for (const auto& item : tensors) {
      INFO(item.key());
      CHECK((item.value().is_meta() || item.key() == "norm.num_batches_tracked"));
      auto values = torch::empty_like(expected[item.key()]);
      deferred(item.key(), values);
      CHECK(values.equal(expected[item.key()]));
    }
  };
  check(hollow->named_parameters(), plain->named_parameters());
  check(hollow->named_buffers(), plain->named_buffers());
  CHECK(torch::rand({3}).equal(after));
  auto none = torch::empty({1});
  CHECK_THROWS_AS(deferred("nothing", none), std::out_of_range);
}

TEST_CASE("a deferred Task trains as a plain one, and its model's memory is never whole", "[fully_sharded]") {
  constexpr std::int64_t kWidth = 512, kLayers = 16, kModelBytes = kWidth * kWidth * 4 * kLayers;
  constexpr std::size_t kLast = 4 * (kLayers - 1);  // the last linear layer's weight
  test::run_ranks(2, [](const ProcessGroup& group) {
    test::count_tensor_memory();
    const auto run = [&](bool defer) {
      train::Task task;
      torch::manual_seed(5);
      const auto make = [] {
        auto model = make_model(kWidth, kLayers);
        const torch::NoGradGuard no_grad;  // and a parameter that is sharded before it is needed again
        model->parameters()[kLast].copy_(model->parameters()[0]);
        return model;
      };
      ddp::DeferredInit deferred;
      auto model = defer ? deferred.make(make) : make();
      if (defer) task.initialise = deferred;
      task.module = model.ptr();
      task.train_set = std::make_shared<data::TensorDataset>(torch::zeros({4, 1}), torch::zeros({4, 1}));
      task.compute_loss = [=](const data::Batch& batch) mutable {
        return train::BatchResult{(model->forward(batch.input) - 1).square().mean(1)};
      };
      train::TrainerOptions options;
      options.parallel.fsdp = true;
      options.precision.channels_last = true;
      const train::Run of{task, options, group};
      train::ParallelModel parallel(of);
      const auto peak = static_cast<std::int64_t>(test::take_peak_tensor_bytes());
      const auto x = torch::arange(4 * kWidth).view({4, kWidth}) / (4.0 * kWidth) + group.rank();
      std::vector<double> losses;
      for (int step = 0; step < 3; ++step) {
        parallel.zero_grad();
        losses.push_back(parallel.train({x, x}, true).loss.item<double>());
      }
      return std::pair(losses, peak);
    };
    const auto [losses, peak] = run(true);
    ensure(peak < kModelBytes * 9 / 10 && peak > kModelBytes / 2, "half of it, and units that are made");
    test::take_peak_tensor_bytes();
    const auto [expected, whole] = run(false);
    ensure(whole > kModelBytes, "a plain start has it whole");
    ensure(losses == expected, "bit for bit");
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
                    test::ContainsSubstring("weight is on the meta device; set Options::initialise"));
}
