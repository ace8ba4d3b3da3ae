
#include <torch/nn/modules/batchnorm.h>
#include <torch/optim/sgd.h>

#include <algorithm>

#include <ddprun/ddp/distributed_data_parallel.h>
#include "tests/support/catch.h"
#include "tests/support/run_ranks.h"
#include "tests/worker/ddprun/ddp/layer_stack.h"

using namespace ddprun;
using ddp::DistributedDataParallel;
using ddp::JoinOptions;
using ddp::ProcessGroup;
using test::LayerStack;

namespace {

torch::Tensor batch(int step, int rank) {
  torch::manual_seed(static_cast<std::uint64_t>(step * 10 + rank));
  return torch::randn({2 + rank, 3}, torch::kFloat64);
}

struct Setup {
  DistributedDataParallel::Options options;
  JoinOptions join;
  std::vector<int> steps;  ///< of each rank
  bool samples = false;    ///< exact mean over samples
  int accumulate = 1;
  bool follows = false;  ///< ranks without input take the others' optimizer steps
};

/// The step that all ranks together should make, in one process.
void reference_step(LayerStack& reference, torch::optim::SGD& optimizer, const Setup& setup, int step) {
  reference.zero_grad();
  for (int micro = 0; micro < setup.accumulate; ++micro) {
    double active = 0, samples = 0;
    torch::Tensor sum;
    for (std::size_t r = 0; r < setup.steps.size(); ++r) {
      if (setup.steps[r] <= step) continue;
      const auto x = batch(step * setup.accumulate + micro, static_cast<int>(r));
      auto loss = reference.forward(x).pow(2).sum(1).mean();
      if (setup.samples) loss = loss * x.size(0);
      sum = sum.defined() ? sum + loss : loss;
      ++active;
      samples += static_cast<double>(x.size(0));
    }
    const double divisor = setup.samples                             ? samples
                           : setup.join.divide_by_initial_world_size ? static_cast<double>(setup.steps.size())
                                                                     : active;
    (sum / divisor).backward();
  }
  optimizer.step();
}

void check_join(const Setup& setup, const ProcessGroup& group) {
  LayerStack model({{3, 4}, {4, 4, torch::kFloat64, setup.options.find_unused_parameters ? 0 : 1}, {4, 2}});
  LayerStack reference(model.layers());
  const auto with = torch::optim::SGDOptions(0.1).momentum(setup.follows ? 0.5 : 0);
  torch::optim::SGD optimizer(model.parameters(), with), reference_optimizer(reference.parameters(), with);
  DistributedDataParallel ddp(model, group, setup.options);
  const auto train_step = [&](int step) {
    ddp.zero_grad();
    for (int micro = 0; micro < setup.accumulate; ++micro) {
      const auto x = batch(step * setup.accumulate + micro, group.rank());
      const auto forward_backward = [&] {
        ddp.forward([&] { return model.forward(x).pow(2).sum(1).mean(); },
                    setup.samples ? std::optional(x.size(0)) : std::nullopt)
            .backward();
      };
      if (micro + 1 == setup.accumulate) {
        forward_backward();
      } else {
        const auto no_sync = ddp.no_sync();
        forward_backward();
      }
    }
    optimizer.step();
  };
  for (int epoch = 0; epoch < 2; ++epoch) {
    auto join = ddp.join(setup.join);
    const int own = setup.steps[static_cast<std::size_t>(group.rank())];
    for (int step = 0; step < own; ++step) train_step(step);
    setup.follows ? join.finish([&] { optimizer.step(); }) : join.finish();
    const int most = *std::max_element(setup.steps.begin(), setup.steps.end());
    for (int step = 0; step < most; ++step) reference_step(reference, reference_optimizer, setup, step);
    for (const auto& item : model.named_parameters())
      ensure(item.value().allclose(reference.named_parameters()[item.key()], 1e-10, 1e-12),
             (item.key() + " is the reference's after epoch " + std::to_string(epoch)).c_str());
  }
  // Outside a join again: all ranks count.
  Setup even = setup;
  even.join = {};
  std::fill(even.steps.begin(), even.steps.end(), 1);
  train_step(0);
  reference_step(reference, reference_optimizer, even, 0);
  for (const auto& item : model.named_parameters())
    ensure(item.value().allclose(reference.named_parameters()[item.key()], 1e-10, 1e-12),
           (item.key() + " is the reference's after the join").c_str());
}

}  // namespace

TEST_CASE("ranks with fewer batches join the others' steps with gradients of zero", "[join]") {
  Setup setup;
  setup.join.divide_by_initial_world_size = GENERATE(true, false);
  setup.steps = GENERATE(std::vector{2, 5, 3}, std::vector{4, 1, 4});
  setup.follows = GENERATE(false, true);
  test::run_ranks(3, [&](const ProcessGroup& group) {
    for (const int mode : {0, 1, 2, 3, 4, 5}) {
      Setup with = setup;
      with.options.bucket_bytes = 50;
      with.options.gradient_as_bucket_view = mode == 1;
      with.options.find_unused_parameters = mode == 2;
      with.options.static_graph = mode == 3;
      with.samples = mode == 4;
      with.accumulate = mode == 5 ? 2 : 1;
      try {
        check_join(with, group);
      } catch (const std::exception& error) {
        throw std::runtime_error("mode " + std::to_string(mode) + ": " + error.what());
      }
    }
  });
}

TEST_CASE("a rank without any batch joins all steps", "[join]") {
  const test::SumsInMemory sums(GENERATE(true, false));
  test::run_ranks(2, [&](const ProcessGroup& group) {
    Setup setup;
    setup.steps = {0, 3};
    setup.options.bucket_bytes = 50;
    check_join(setup, group);
    setup.options.find_unused_parameters = true;
    check_join(setup, group);
  });
}

TEST_CASE("in a join buffers come from the highest rank that has input, at last from one with most steps",
          "[join]") {
  test::run_ranks(3, [](const ProcessGroup& group) {
    torch::nn::BatchNorm1d norm(3);
    norm->eval();
    DistributedDataParallel ddp(*norm, group);
    const std::vector<int> steps = {3, 2, 1};
    auto join = ddp.join({});
    for (int step = 0; step < steps[static_cast<std::size_t>(group.rank())]; ++step) {
      {
        torch::NoGradGuard no_grad;
        norm->running_mean.fill_(10 * group.rank() + step);
      }
      ddp.forward([&] { return norm(torch::ones({2, 3})).sum(); }).backward();
      const int source = 2 - step;
      ensure(norm->running_mean.eq(10 * source + step).all().item<bool>(), "the highest active rank's");
    }
    join.finish();
    ensure(norm->running_mean.eq(2).all().item<bool>(), "rank 0's, which made the most steps");
  });
}

TEST_CASE("with throw_on_early_termination every rank hears which one has no more input", "[join]") {
  test::run_ranks(3, [](const ProcessGroup& group) {
    LayerStack model({{3, 4}, {4, 2}});
    DistributedDataParallel ddp(model, group);
    std::string message;
    int steps = 0;
    try {
      auto join = ddp.join({.throw_on_early_termination = true});
      for (; steps < (group.rank() == 1 ? 2 : 4); ++steps)
        ddp.forward([&] { return model.forward(batch(steps, group.rank())).sum(); }).backward();
      join.finish();
    } catch (const ddp::UnevenInputs& error) {
      message = error.what();
    }
    ensure(message.find("rank 1") != std::string::npos && steps == 2,
           ("UnevenInputs, got " + message).c_str());
    // And goes on without the join.
    ddp.zero_grad();
    ddp.forward([&] { return model.forward(batch(9, group.rank())).sum(); }).backward();
  });
}

TEST_CASE("a join that cannot be is refused", "[join]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    LayerStack model({{3, 4}, {4, 2}});
    DistributedDataParallel ddp(model, group);
    auto join = ddp.join({});
    const auto check_refused = [](const auto& body) {
      bool thrown = false;
      try {
        body();
      } catch (const std::invalid_argument&) {
        thrown = true;
      }
      ensure(thrown, "std::invalid_argument");
    };
    check_refused([&] { auto second = ddp.join({}); });
    join.finish();
    check_refused([&] { join.finish(); });
  });
}
