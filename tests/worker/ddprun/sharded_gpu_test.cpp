// What ranks do together, on CUDA: two ranks share one GPU over Gloo (ctest -L gpu); skipped without a GPU.
// All that touches CUDA runs in forked ranks: a process that has used CUDA cannot fork.
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/ddp/checks.h>
#include <ddprun/ddp/comm_hooks.h>
#include <ddprun/ddp/distributed_data_parallel.h>
#include <ddprun/group/cuda_backend.h>
#include <ddprun/group/spawn.h>
#include <ddprun/sharding/fully_sharded.h>
#include <ddprun/sharding/zero_optimizer.h>
#include <ddprun/train/state/optimizer_state.h>
#include "tests/support/catch.h"
#include "tests/support/gpu.h"
#include "tests/worker/ddprun/ddp/layer_stack.h"
#include "tests/worker/ddprun/ddp/sync_batch_norm_check.h"

using namespace ddprun;
using namespace ddprun::test::sync_batch_norm;
using ddprun::test::skip_without_a_gpu;

namespace {

void run_on_one_gpu(int size, const std::function<void(const ProcessGroup&)>& body) {
  ::setenv("CUDA_VISIBLE_DEVICES", "0", 1);
  spawn(size, [&](const WorkerEnv& env) {
    auto group =
        ProcessGroup::connect(env, {.timeout = std::chrono::minutes(2), .device = ddp::DeviceChoice::kCuda});
    body(group);
    group.close();
  });
}

/// Of three layers, and one that its forward leaves out.
test::LayerStack make_stack(at::Device device) {
  test::LayerStack stack({{6, 40, torch::kFloat32},
                          {40, 40, torch::kFloat32},
                          {40, 40, torch::kFloat32, /*uses=*/0},
                          {40, 3, torch::kFloat32}});
  stack.to(device);
  return stack;
}

Tensor loss_of(test::LayerStack& stack, int step, int rank) {
  torch::manual_seed(static_cast<std::uint64_t>(10 * step + rank));
  return stack.forward(torch::randn({4, 6}).to(stack.parameters()[0].device())).square().sum(1).mean();
}

void expect_same_weights(const test::LayerStack& got, const test::LayerStack& expected, double tolerance) {
  const auto wanted = expected.named_parameters();
  for (const auto& item : got.named_parameters())
    check_close(item.value().detach().cpu(), wanted[item.key()].detach().cpu(), tolerance, item.key());
}

ddp::CommHook make_hook(const std::string& name, const ProcessGroup& group) {
  if (name != "powersgd") return ddp::make_comm_hook(name, group);
  // From the third step on, and of all matrices but the first, which would not shrink enough.
  return ddp::powersgd_hook(
      std::make_shared<ddp::PowerSgd>(group, ddp::PowerSgd::Options{.rank = 2, .start_iteration = 2}));
}

/// The weights after five steps of SGD in which that hook reduces the gradients.
test::LayerStack train_with_hook(const std::string& name, at::Device device, const ProcessGroup& group) {
  auto stack = make_stack(device);
  ddp::DistributedDataParallel parallel(
      stack, group, {.bucket_bytes = 4000, .find_unused_parameters = true, .gradient_as_bucket_view = true});
  if (auto hook = make_hook(name, group)) parallel.register_comm_hook(std::move(hook));
  torch::optim::SGD optimizer(stack.parameters(), 0.1);
  for (int step = 0; step < 5; ++step) {
    parallel.zero_grad();
    parallel.forward([&] { return loss_of(stack, step, group.rank()); }).backward();
    optimizer.step();
  }
  return stack;
}

}  // namespace

TEST_CASE("SyncBatchNorm on CUDA equals BatchNorm on the union batch", "[gpu][sync_batch_norm]") {
  skip_without_a_gpu();
  const auto check = [](Case c) {
    run_on_one_gpu(static_cast<int>(c.counts.size()), [c](const ProcessGroup& group) mutable {
      c.device = group.device();
      check_equals_union<torch::nn::BatchNorm2d>(group, c);
    });
  };
  Case c{{4, 4}};
  c.tolerance = 1e-10;
  SECTION("even batches") {}
  SECTION("uneven batches") { c.counts = {5, 2}; }
  SECTION("an empty batch") { c.counts = {0, 3, 2}; }
  SECTION("channels_last") { c.channels_last = true; }
  SECTION("without parameters") { c.options.affine(false); }
  SECTION("cumulative average") { c.options.momentum(std::nullopt); }
  SECTION("half with float parameters") {
    c.dtype = torch::kHalf;
    c.parameters = torch::kFloat32;
    c.tolerance = 2e-3;
  }
  check(c);
}

TEST_CASE("ZeroOptimizer's weights on CUDA are the plain optimizer's", "[gpu][zero_optimizer]") {
  skip_without_a_gpu();
  run_on_one_gpu(2, [](const ProcessGroup& group) {
    torch::manual_seed(1);
    std::vector<Tensor> ours, plains;
    for (const auto size : {30, 7, 64}) {
      ours.push_back(torch::randn({size}).to(group.device()).requires_grad_());
      plains.push_back(ours.back().detach().clone().requires_grad_());
    }
    ddp::ZeroOptimizer optimizer(
        {ours}, [](auto groups) { return std::make_unique<torch::optim::Adam>(std::move(groups)); }, group);
    torch::optim::Adam plain(plains);
    for (int step = 0; step < 3; ++step) {
      for (std::size_t i = 0; i < ours.size(); ++i) {
        ours[i].mutable_grad() = torch::randn(ours[i].sizes()).to(group.device());
        plains[i].mutable_grad() = ours[i].grad().clone();
      }
      optimizer.step();
      plain.step();
      for (std::size_t i = 0; i < ours.size(); ++i) ensure(ours[i].equal(plains[i]), "the weights are equal");
    }
    const auto state = train::optimizer_state_dict(optimizer);
    if (group.rank() == 0) train::load_optimizer_state(plain, state, "state");
  });
}

TEST_CASE("fully sharded training on CUDA has DDP's weights", "[gpu][fully_sharded]") {
  skip_without_a_gpu();
  run_on_one_gpu(2, [](const ProcessGroup& group) {
    auto plain = make_stack(group.device()), sharded = make_stack(group.device());
    {
      ddp::DistributedDataParallel parallel(plain, group, {.find_unused_parameters = true});
      ddp::FullyShardedDataParallel fsdp(sharded, group, {.unit_bytes = 4000});
      ensure(fsdp.units().size() > 1, "several units");
      torch::optim::Adam optimizer(plain.parameters(), 0.01), sharded_optimizer(fsdp.shards(), 0.01);
      for (int step = 0; step < 4; ++step) {
        parallel.zero_grad();
        parallel.forward([&] { return loss_of(plain, step, group.rank()); }).backward();
        optimizer.step();
        sharded_optimizer.zero_grad();
        fsdp.forward([&] { return loss_of(sharded, step, group.rank()); }).backward();
        sharded_optimizer.step();
      }
      const auto whole = fsdp.full_parameters();
      expect_same_weights(sharded, plain, 1e-5);
    }
  });
}

TEST_CASE("with each gradient compression the weights on CUDA are the CPU's", "[gpu][comm_hooks]") {
  skip_without_a_gpu();
  run_on_one_gpu(2, [](const ProcessGroup& group) {
    const auto exact = train_with_hook("none", group.device(), group);
    for (const char* name : {"none", "fp16", "bf16", "powersgd"}) {
      const auto here = train_with_hook(name, at::kCPU, group);
      const auto there = train_with_hook(name, group.device(), group);
      expect_same_weights(there, here, std::string(name) == "none" ? 1e-5 : 1e-2);
      const auto weight = there.parameters()[2];
      ensure(std::string(name) == "none" || !weight.equal(exact.parameters()[2]), "the hook was run");
    }
  });
}

TEST_CASE("NaN gradients on CUDA are named with parameter and rank", "[gpu][nan_check]") {
  skip_without_a_gpu();
  run_on_one_gpu(2, [](const ProcessGroup& group) {
    torch::nn::Linear model(3, 2);
    model->to(group.device());
    ddp::DistributedDataParallel parallel(*model, group);
    ddp::NanCheck check(*model, group);
    const auto failure_of_step = [&](double on_rank_1) -> std::string {
      const auto input = torch::full({1, 3}, group.rank() == 1 ? on_rank_1 : 0.5, group.device());
      parallel.forward([&] { return model->forward(input).sum(); }).backward();
      try {
        check.check();
        return "";
      } catch (const ddp::NonFiniteGradient& error) {
        return error.what();
      }
    };
    ensure(failure_of_step(0.5).empty(), "finite gradients do not fail");
    ensure(failure_of_step(NAN) == "gradient of weight on rank 1: 6 NaN and 0 infinite of 6 values", "NaN");
    ensure(failure_of_step(0.5).empty(), "the step after");
  });
}

TEST_CASE("ranks with fewer batches join the others' steps on CUDA", "[gpu][join]") {
  skip_without_a_gpu();
  run_on_one_gpu(2, [](const ProcessGroup& group) {
    const std::vector<int> steps = {1, 3};
    auto stack = make_stack(group.device()), reference = make_stack(at::kCPU);
    ddp::DistributedDataParallel parallel(
        stack, group,
        {.bucket_bytes = 4000, .find_unused_parameters = true, .gradient_as_bucket_view = true});
    torch::optim::SGD optimizer(stack.parameters(), 0.1), reference_optimizer(reference.parameters(), 0.1);
    auto join = parallel.join({});
    for (int step = 0; step < steps[static_cast<std::size_t>(group.rank())]; ++step) {
      parallel.zero_grad();
      parallel.forward([&] { return loss_of(stack, step, group.rank()); }).backward();
      optimizer.step();
    }
    join.finish();
    for (int step = 0; step < 3; ++step) {  // the same in one process, a sum over ranks that have input
      reference.zero_grad();
      for (int rank = 0; rank < 2; ++rank)
        if (step < steps[static_cast<std::size_t>(rank)]) (loss_of(reference, step, rank) / 2).backward();
      reference_optimizer.step();
    }
    expect_same_weights(stack, reference, 1e-5);
  });
}
