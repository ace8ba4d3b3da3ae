#include <ddprun/sharding/fully_sharded.h>

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/ddp/distributed_data_parallel.h>
#include "tests/support/catch.h"
#include "tests/support/counted_memory.h"
#include "tests/support/fake_gpus.h"
#include "tests/support/run_ranks.h"
#include "worker/models/classifiers.h"

using namespace ddprun;
using ddp::DistributedDataParallel;
using ddp::FullyShardedDataParallel;
using ddp::ProcessGroup;

namespace {

constexpr int kSharesPerRank = 4, kWidth = 12, kClasses = 5;

/// A net of blocks, with what is hard about sharding as options.
struct NetOptions {
  int depth = 6;
  bool norm = false;           ///< BatchNorm after each block
  bool tied = false;           ///< after the last block comes the first one's weight again
  bool frozen = false;         ///< the second block has no gradients
  bool unused = false;         ///< a block that forward leaves out
  bool twice = false;          ///< all blocks run twice in one forward
  bool channels_last = false;  ///< begins with a convolution whose weight lies channels last
};

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const NetOptions& options) : options(options) {
    if (options.channels_last) {
      conv = register_module("conv", torch::nn::Conv2d(3, kWidth, 3));
      conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
    }
    for (int i = 0; i < options.depth; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
      if (options.norm)
        norms.push_back(register_module("norm" + std::to_string(i), torch::nn::BatchNorm1d(kWidth)));
    }
    if (options.unused) register_module("unused", torch::nn::Linear(kWidth, kWidth));
    head = register_module("head", torch::nn::Linear(kWidth, kClasses));
    if (options.tied) tied_weight = register_parameter("tied_weight", blocks.front()->weight);
    if (options.frozen)
      for (auto& parameter : blocks.at(1)->parameters()) parameter.requires_grad_(false);
  }

  torch::Tensor forward(torch::Tensor x) {
    if (options.channels_last) x = conv->forward(x).mean({2, 3});
    for (int round = 0; round < (options.twice ? 2 : 1); ++round)
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        x = torch::tanh(blocks[i]->forward(x));
        if (options.norm) x = norms[i]->forward(x);
      }
    if (options.tied) x = torch::tanh(torch::linear(x, tied_weight));
    return head->forward(x);
  }

  NetOptions options;
  torch::nn::Conv2d conv{nullptr};
  std::vector<torch::nn::Linear> blocks;
  std::vector<torch::nn::BatchNorm1d> norms;
  torch::nn::Linear head{nullptr};
  torch::Tensor tied_weight;
};
TORCH_MODULE(Net);

Net make_net(const NetOptions& options, std::uint64_t seed, torch::Dtype dtype = torch::kFloat64) {
  torch::manual_seed(seed);
  Net net(options);
  net->to(dtype);
  if (options.tied) net->tied_weight = net->named_parameters()["tied_weight"];
  return net;
}

/// Step `step`'s batch of a rank; the same on whoever asks.
struct ClassBatch {
  ClassBatch(const NetOptions& options, int step, int rank, torch::Dtype dtype) {
    torch::manual_seed(static_cast<std::uint64_t>(1000 * step + rank));
    input = (options.channels_last ? torch::randn({kSharesPerRank, 3, 6, 6})
                                   : torch::randn({kSharesPerRank, kWidth}))
                .to(dtype);
    labels = torch::randint(0, kClasses, {kSharesPerRank}, torch::kInt64);
  }
  torch::Tensor input, labels;
};

using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<torch::Tensor>&)>;

std::unique_ptr<torch::optim::Optimizer> make_adam(const std::vector<torch::Tensor>& parameters) {
  return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.01));
}

std::vector<torch::Tensor> trainable(torch::nn::Module& module) {
  std::vector<torch::Tensor> result;
  for (auto& parameter : module.parameters()) {
    const bool known = std::any_of(result.begin(), result.end(),
                                   [&](const torch::Tensor& other) { return other.is_same(parameter); });
    if (parameter.requires_grad() && !known) result.push_back(parameter);
  }
  return result;
}

void ensure_close(double value, double expected, double tolerance, const std::string& what) {
  const double difference = std::abs(value - expected) / std::max(1.0, std::abs(expected));
  ensure(difference <= tolerance,
         (what + ": expected " + std::to_string(expected) + ", got " + std::to_string(value) + ", off by " +
          std::to_string(difference * 1e9) + "e-9")
             .c_str());
}

/// Copies of all parameters and buffers, by name.
std::map<std::string, torch::Tensor> state_of(torch::nn::Module& module) {
  std::map<std::string, torch::Tensor> result;
  for (const auto& item : module.named_parameters()) result[item.key()] = item.value().detach().clone();
  for (const auto& item : module.named_buffers()) result[item.key()] = item.value().detach().clone();
  return result;
}

void ensure_same_state(const std::map<std::string, torch::Tensor>& state,
                       const std::map<std::string, torch::Tensor>& expected, double tolerance) {
  ensure(state.size() == expected.size(), "as many tensors");
  for (const auto& [name, tensor] : expected) {
    const double difference =
        (state.at(name).to(torch::kFloat64) - tensor.to(torch::kFloat64)).abs().max().item<double>();
    ensure(difference <= tolerance,
           (name + " differs by " + std::to_string(difference * 1e9) + "e-9").c_str());
  }
}

/// Trains the same net under both for 50 steps, with clipping, and compares losses, norms and the weights in
/// the end.
void compare_with_ddp(const ProcessGroup& group, const NetOptions& net_options,
                      const FullyShardedDataParallel::Options& options, const MakeOptimizer& make_optimizer,
                      torch::Dtype dtype = torch::kFloat64, double tolerance = 1e-6) {
  auto reference = make_net(net_options, 7, dtype);
  auto net = make_net(net_options, 7 + static_cast<std::uint64_t>(group.rank()), dtype);  // rank 0's must win
  std::unique_ptr<DistributedDataParallel> ddp;
  if (!net_options.tied && !net_options.unused)
    ddp = std::make_unique<DistributedDataParallel>(*reference, group);
  const auto reference_optimizer = make_optimizer(trainable(*reference));
  FullyShardedDataParallel fsdp(*net, group, options);
  const auto optimizer = make_optimizer(fsdp.shards());
  for (int step = 0; step < 50; ++step) {
    const ClassBatch batch(net_options, step, group.rank(), dtype);
    const auto loss_of = [&](Net& model) {
      return torch::cross_entropy_loss(model->forward(batch.input), batch.labels);
    };
    reference_optimizer->zero_grad();
    optimizer->zero_grad();
    torch::Tensor expected;
    if (ddp) {
      expected = ddp->forward([&] { return loss_of(reference); });
      expected.backward();
    } else {  // what one rank does with everybody's batches
      torch::Tensor all = torch::zeros({}, dtype);
      for (int rank = 0; rank < group.size(); ++rank) {
        const ClassBatch other(net_options, step, rank, dtype);
        const auto part = torch::cross_entropy_loss(reference->forward(other.input), other.labels);
        if (rank == group.rank()) expected = part;
        all = all + part / group.size();
      }
      all.backward();
    }
    auto loss = fsdp.forward([&] { return loss_of(net); });
    loss.backward();
    const std::string at = "step " + std::to_string(step);
    ensure_close(loss.item<double>(), expected.item<double>(), tolerance, at + " loss");
    const double norm = torch::nn::utils::clip_grad_norm_(trainable(*reference), 0.5);
    ensure_close(fsdp.clip_grad_norm(0.5).item<double>(), norm, 10 * tolerance, at + " norm");
    reference_optimizer->step();
    optimizer->step();
  }
  const auto scope = fsdp.full_parameters();
  ensure_same_state(state_of(*net), state_of(*reference), 1e3 * tolerance);
}

FullyShardedDataParallel::Options small_units(std::int64_t bytes = 2000, bool prefetch = true) {
  FullyShardedDataParallel::Options options;
  options.unit_bytes = bytes;
  options.prefetch = prefetch;
  return options;
}

}  // namespace

TEST_CASE("fully sharded training has DDP's losses, norms and weights", "[fully_sharded]") {
  const int size = GENERATE(1, 2, 3);
  const int kind = GENERATE(0, 1, 2, 3, 4, 5, 6);
  test::run_ranks(size, [kind](const ProcessGroup& group) {
    NetOptions net;
    net.norm = kind == 1;
    net.tied = kind == 2;
    net.frozen = kind == 3;
    net.twice = kind == 4;
    net.channels_last = kind == 5;
    net.unused = kind == 6;
    compare_with_ddp(group, net, small_units(), make_adam, torch::kFloat64, 1e-9);
  });
}

TEST_CASE("fully sharded training keeps to DDP with any elementwise optimizer, in single precision too",
          "[fully_sharded]") {
  const int size = GENERATE(2, 3);
  const int kind = GENERATE(0, 1, 2);
  test::run_ranks(size, [kind](const ProcessGroup& group) {
    NetOptions net;
    net.norm = kind != 0;  // in single precision, BatchNorm of four samples makes much of rounding
    const MakeOptimizer sgd = [](const std::vector<torch::Tensor>& parameters) {
      return std::make_unique<torch::optim::SGD>(
          parameters, torch::optim::SGDOptions(0.02).momentum(0.9).weight_decay(1e-3));
    };
    const MakeOptimizer adamw = [](const std::vector<torch::Tensor>& parameters) {
      return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.01));
    };
    if (kind == 0) compare_with_ddp(group, net, small_units(), sgd, torch::kFloat32, 1e-5);
    if (kind == 1) compare_with_ddp(group, net, small_units(), adamw, torch::kFloat64, 1e-9);
    if (kind == 2) compare_with_ddp(group, net, small_units(1, false), make_adam, torch::kFloat64, 1e-9);
  });
}

TEST_CASE("the mean of bfloat16 gradients over three ranks is as near as the type allows",
          "[fully_sharded]") {
  test::run_ranks(3, [](const ProcessGroup& group) {
    torch::nn::Linear model(torch::nn::LinearOptions(129, 1).bias(false));
    model->to(torch::kBFloat16);
    FullyShardedDataParallel fsdp(*model, group);
    const auto input = torch::arange(128, 257).div(128).to(torch::kBFloat16).unsqueeze(0);
    fsdp.forward([&] { return model->forward(input).sum(); }).backward();
    const auto third = (input.to(torch::kFloat64) / 3).to(torch::kBFloat16);
    const auto expected =
        (third + third + third).flatten().slice(0, 43 * group.rank(), 43 * (group.rank() + 1));
    ensure(torch::equal(fsdp.shards()[0].grad(), expected), "the sum of the rounded thirds");
  });
}

TEST_CASE("the MNIST CNN trains fully sharded as under DDP", "[fully_sharded]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    const auto make = [&] {
      torch::manual_seed(7);
      return models::MnistCnn(0.0);
    };
    auto reference = make(), model = make();
    DistributedDataParallel ddp(*reference, group);
    FullyShardedDataParallel fsdp(*model, group);
    torch::optim::SGD reference_optimizer(reference->parameters(), 0.02), optimizer(fsdp.shards(), 0.02);
    for (int step = 0; step < 50; ++step) {
      torch::manual_seed(static_cast<std::uint64_t>(100 * step + group.rank()));
      const auto images = torch::randn({2, 1, 28, 28});
      const auto labels = torch::randint(0, 10, {2}, torch::kInt64);
      reference_optimizer.zero_grad();
      optimizer.zero_grad();
      auto expected = ddp.forward([&] { return torch::nll_loss(reference->forward(images), labels); });
      expected.backward();
      auto loss = fsdp.forward([&] { return torch::nll_loss(model->forward(images), labels); });
      loss.backward();
      ensure_close(loss.item<double>(), expected.item<double>(), 1e-5, "step " + std::to_string(step));
      reference_optimizer.step();
      optimizer.step();
    }
  });
}

TEST_CASE("random nets train fully sharded as under DDP", "[fully_sharded]") {
  const int seed = GENERATE(range(0, 6));
  const auto draw = [state = static_cast<unsigned>(seed) * 2654435761U + 12345U](unsigned below) mutable {
    state = state * 1664525U + 1013904223U;
    return (state >> 16) % below;
  };
  auto next = draw;
  const int size = 2 + static_cast<int>(next(2));
  NetOptions net;
  net.depth = 2 + static_cast<int>(next(8));
  net.norm = next(2) == 0;
  net.tied = next(3) == 0;
  net.frozen = next(3) == 0;
  net.twice = next(3) == 0;
  net.channels_last = next(3) == 0;
  net.unused = next(3) == 0;
  // A group runs BatchNorm on its own batches, as DDP does; one rank on all of them gives the same.
  const auto options = small_units(1 << (next(14)), next(2) == 0);
  INFO("seed " << seed);
  test::run_ranks(size, [&](const ProcessGroup& group) {
    auto plain = net;
    if (plain.tied || plain.unused) plain.norm = false;  // whose statistics would see all ranks' batches
    compare_with_ddp(group, plain, options, make_adam, torch::kFloat64, 1e-9);
  });
}

namespace {

torch::Tensor loss_on(Net& net, const ClassBatch& batch) {
  return torch::cross_entropy_loss(net->forward(batch.input), batch.labels);
}

std::vector<torch::Tensor> gradients_of(FullyShardedDataParallel& fsdp) {
  std::vector<torch::Tensor> result;
  for (const auto& shard : fsdp.shards()) result.push_back(shard.grad().clone());
  fsdp.clip_grad_norm(1e9);
  for (const auto& shard : fsdp.shards()) shard.mutable_grad().reset();
  return result;
}

void ensure_equal(const std::vector<torch::Tensor>& values, const std::vector<torch::Tensor>& expected,
                  const char* what) {
  ensure(values.size() == expected.size(), what);
  for (std::size_t i = 0; i < values.size(); ++i)
    ensure(torch::allclose(values[i], expected[i], 1e-12, 1e-14), what);
}

}  // namespace

TEST_CASE("gradients of several backwards add up, with and without no_sync", "[fully_sharded]") {
  test::run_ranks(GENERATE(1, 2), [](const ProcessGroup& group) {
    const NetOptions options;
    auto net = make_net(options, 7);
    FullyShardedDataParallel fsdp(*net, group, small_units());
    const auto backward = [&](int step) {
      fsdp.forward([&] { return loss_on(net, ClassBatch(options, step, group.rank(), torch::kFloat64)); })
          .backward();
    };
    backward(0);
    const auto first = gradients_of(fsdp);
    backward(1);
    auto expected = gradients_of(fsdp);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += first[i];
    backward(0);
    backward(1);
    ensure_equal(gradients_of(fsdp), expected, "two backwards add up");
    {
      const auto guard = fsdp.no_sync();
      backward(0);
      for (const auto& shard : fsdp.shards())
        ensure(!shard.grad().defined(), "nothing is reduced in no_sync");
    }
    backward(1);
    ensure_equal(gradients_of(fsdp), expected, "no_sync, then reduced");
  });
}

TEST_CASE("a step that throws leaves fully sharded training usable", "[fully_sharded]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    const NetOptions options;
    auto net = make_net(options, 7);
    FullyShardedDataParallel fsdp(*net, group, small_units());
    const ClassBatch batch(options, 0, group.rank(), torch::kFloat64);
    const auto backward = [&] { fsdp.forward([&] { return loss_on(net, batch); }).backward(); };
    backward();
    const auto expected = gradients_of(fsdp);
    bool thrown = false;
    try {
      fsdp.forward([&] {
        const auto half = net->blocks[0]->forward(batch.input);
        if (half.defined()) throw std::runtime_error("in forward");
        return half;
      });
    } catch (const std::runtime_error&) {
      thrown = true;
    }
    ensure(std::exchange(thrown, false), "forward's error arrives");
    try {
      fsdp.forward([&] {
            auto middle = batch.input;
            for (std::size_t i = 0; i < 4; ++i) middle = net->blocks[i]->forward(middle);
            middle.register_hook([](const torch::Tensor&) { throw std::runtime_error("in backward"); });
            for (std::size_t i = 4; i < net->blocks.size(); ++i) middle = net->blocks[i]->forward(middle);
            return torch::cross_entropy_loss(net->head->forward(middle), batch.labels);
          })
          .backward();
    } catch (const std::runtime_error&) {
      thrown = true;
    }
    ensure(thrown, "backward's error arrives");
    for (const auto& shard : fsdp.shards()) shard.mutable_grad().reset();
    backward();
    ensure_equal(gradients_of(fsdp), expected, "the next step is a step like any other");
  });
}

TEST_CASE("evaluation and changes of parameters work while sharded", "[fully_sharded]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    const NetOptions options;
    auto net = make_net(options, 7);
    auto reference = make_net(options, 7);
    FullyShardedDataParallel fsdp(*net, group, small_units());
    const ClassBatch batch(options, 0, 0, torch::kFloat64);
    torch::NoGradGuard no_grad;
    const auto same = [&] {
      return torch::equal(net->forward(batch.input), reference->forward(batch.input));
    };
    ensure(same(), "outside forward()");
    ensure(fsdp.forward([&] { return same(); }), "inside forward()");
    ensure(net->parameters()[0].storage().nbytes() == 0, "freed after an evaluation");
    net->head->weight.mul_(2);
    reference->head->weight.mul_(2);
    ensure(fsdp.forward([&] { return same(); }), "a change in place is kept");
    {
      const auto scope = fsdp.full_parameters();
      if (group.rank() == 0) ensure(same(), "one rank alone evaluates");
      net->blocks[3]->weight.data().fill_(0.5);
    }
    reference->blocks[3]->weight.fill_(0.5);
    ensure(fsdp.forward([&] { return same(); }), "what is written while whole is kept");
    // The optimizer's way: a gathered unit must not outlive a change of its shard.
    net->forward(batch.input);
    for (const auto& shard : fsdp.shards()) shard.data().mul_(0.5);
    for (auto& parameter : reference->parameters()) parameter.mul_(0.5);
    ensure(same(), "a change of the shard shows");
  });
}

TEST_CASE("a fully sharded checkpoint of three ranks is DDP's, and goes on on two", "[fully_sharded]") {
  // Every group of ranks makes the same weights and trains on the same two batches.
  const auto train = [](const ProcessGroup& group,
                        const std::function<void(Net&, FullyShardedDataParallel&, torch::optim::Adam&)>&
                            then) {
    const NetOptions options;
    auto net = make_net(options, 7);
    FullyShardedDataParallel fsdp(*net, group, small_units());
    torch::optim::Adam optimizer(fsdp.shards(), torch::optim::AdamOptions(0.01));
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      fsdp.forward([&] { return loss_on(net, ClassBatch(options, step, 0, torch::kFloat64)); }).backward();
      optimizer.step();
    }
    then(net, fsdp, optimizer);
  };
  for (const int size : {3, 2})
    test::run_ranks(size, [&](const ProcessGroup& group) {
      const NetOptions options;
      auto reference = make_net(options, 7);
      torch::optim::Adam reference_optimizer(reference->parameters(), torch::optim::AdamOptions(0.01));
      for (int step = 0; step < 2; ++step) {
        reference_optimizer.zero_grad();
        loss_on(reference, ClassBatch(options, step, 0, torch::kFloat64)).backward();
        reference_optimizer.step();
      }
      train(group, [&](Net& net, FullyShardedDataParallel& fsdp, torch::optim::Adam& optimizer) {
        {
          const auto scope = fsdp.full_parameters();
          ensure_same_state(state_of(*net), state_of(*reference), 1e-12);
        }
        std::vector<torch::Tensor> averages;
        for (const auto& shard : fsdp.shards())
          averages.push_back(
              static_cast<torch::optim::AdamParamState&>(*optimizer.state().at(shard.unsafeGetTensorImpl()))
                  .exp_avg());
        const auto whole = fsdp.consolidate(averages);
        std::map<std::string, torch::Tensor> expected;
        for (const auto& item : reference->named_parameters())
          expected[item.key()] = static_cast<torch::optim::AdamParamState&>(
                                     *reference_optimizer.state().at(item.value().unsafeGetTensorImpl()))
                                     .exp_avg();
        ensure_same_state(whole, expected, 1e-12);
        const auto shared = fsdp.share_out(whole);
        for (std::size_t i = 0; i < shared.size(); ++i)
          ensure(torch::equal(shared[i], averages[i]), "sharing out undoes consolidating");
      });
    });
}

TEST_CASE("parameters, gradients and optimizer state take 1/N of their memory", "[fully_sharded]") {
  const int size = GENERATE(2, 4);
  test::run_ranks(size, [](const ProcessGroup& group) {
    test::count_tensor_memory();
    const std::int64_t width = 256, depth = 24;
    torch::nn::Sequential net;
    for (int i = 0; i < depth; ++i) net->push_back(torch::nn::Linear(width, width));
    const std::size_t parameter_bytes = static_cast<std::size_t>(depth * width * (width + 1) * 4);
    FullyShardedDataParallel fsdp(*net, group, small_units(1));  // a layer a unit
    torch::optim::Adam optimizer(fsdp.shards());
    const auto unit_bytes = static_cast<std::size_t>(fsdp.shards()[0].numel() * group.size() * 4);
    const auto ranks = static_cast<std::size_t>(group.size());
    ensure(test::tensor_bytes() < parameter_bytes / ranks + parameter_bytes / 50, "parameters are sharded");
    const auto input = torch::randn({1, width});
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      test::take_peak_tensor_bytes();
      fsdp.forward([&] { return net->forward(input).sum(); }).backward();
      optimizer.step();
    }
    // Parameters, gradients, two averages; two units of parameters, two of gradients, one received, one
    // arriving; the optimizer's own temporary tensors are of a unit's shard.
    const std::size_t expected = 4 * parameter_bytes / ranks + 6 * unit_bytes + parameter_bytes / 50;
    const std::size_t peak = test::take_peak_tensor_bytes();
    ensure(peak < expected,
           ("peak of " + std::to_string(peak) + " bytes, expected less than " + std::to_string(expected))
               .c_str());
  });
}

namespace {

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const c10::Error& error) {
    return std::string("c10::Error: ") + error.what_without_backtrace();
  } catch (const std::invalid_argument& error) {
    return std::string("invalid_argument: ") + error.what();
  }
  return "no error";
}

void ensure_says(const std::string& message, const std::string& expected) {
  ensure(message.find(expected) != std::string::npos,
         ("expected '" + expected + "', got: " + message).c_str());
}

}  // namespace

TEST_CASE("what cannot be sharded is refused on every rank", "[fully_sharded]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    auto net = make_net({}, 7);
    const auto make = [&](const FullyShardedDataParallel::Options& options) {
      return message_of([&] { FullyShardedDataParallel fsdp(*net, group, options); });
    };
    ensure_says(make(small_units(group.rank() == 0 ? 1 : 4000)), "differ between ranks");
    FullyShardedDataParallel::Options options;
    torch::nn::Linear stranger(2, 2);
    options.units = {stranger.get()};
    ensure_says(make(options), "is not a part of the module");
    options.units = {net->blocks[0].get(), nullptr};
    ensure_says(make(options), "unit 1: expected a module, got nullptr");
    {
      auto other = make_net({}, 7);
      FullyShardedDataParallel fsdp(*other, group, small_units());
      const auto shards = fsdp.shards();
      const auto count = std::to_string(shards.size());
      for (const std::size_t wrong : {shards.size() - 1, shards.size() + 1})
        ensure_says(message_of([&] { fsdp.consolidate(std::vector<torch::Tensor>(wrong)); }),
                    "a tensor for each of " + count + " shards, got " + std::to_string(wrong));
    }
    net->blocks[1]->weight.set_data(net->blocks[0]->weight.data());
    ensure_says(make({}), "block0.weight and block1.weight overlap");
    for (auto& parameter : net->parameters()) parameter.requires_grad_(false);
    ensure_says(make({}), "expected a module with a parameter that requires a gradient");
  });
}

TEST_CASE("parameters of a fully sharded module that has ended say so", "[fully_sharded]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    auto net = make_net({}, 7);
    { FullyShardedDataParallel fsdp(*net, group, small_units()); }
    ensure_says(message_of([&] {
                  net->forward(torch::ones({1, kWidth}, torch::kFloat64));
                }),
                "their FullyShardedDataParallel has ended");
  });
}

TEST_CASE("a rank that has died shows as an error that names the parameters", "[fully_sharded]") {
  const std::string message = [] {
    try {
      test::run_ranks(2, [](const ProcessGroup& group) {
        auto net = make_net({}, 7);
        FullyShardedDataParallel fsdp(*net, group, small_units());
        if (group.rank() == 1) std::_Exit(3);
        net->forward(torch::ones({1, kWidth}, torch::kFloat64));
      });
    } catch (const std::runtime_error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  }();
  ensure_says(message, "rank 0: parameters block0.weight to ");
  ensure_says(message, "could not be gathered; all ranks must use the parameters in the same order");
}

TEST_CASE("named modules become units, and the rest is packed", "[fully_sharded]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    NetOptions net_options;
    auto net = make_net(net_options, 7);
    FullyShardedDataParallel::Options options;
    options.units = {net->blocks[0].get(), net->head.get()};
    FullyShardedDataParallel fsdp(*net, group, options);
    ensure(fsdp.units().size() == 3, "two named units and one for the rest");
  });
}

TEST_CASE("a unit is of up to 4 MiB on a CPU, and of up to 64 on a GPU", "[fully_sharded]") {
  const auto count_units = [](std::size_t expected) {
    return [expected](const ProcessGroup& group) {
      torch::nn::Sequential model;
      for (int i = 0; i < 5; ++i)  // 16 MiB and a little
        model->push_back(torch::nn::Linear(torch::nn::LinearOptions(2048, 2049).bias(false)));
      model->to(group.device());
      ensure(FullyShardedDataParallel(*model, group).units().size() == expected, "so many units");
    };
  };
  test::run_ranks(1, count_units(5));
  test::on_fake_gpus(1, count_units(2));
}
