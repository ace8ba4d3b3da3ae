// SyncBatchNorm and ZeroOptimizer on CUDA: two ranks share one GPU over Gloo (ctest -L gpu); skipped without
// a GPU. All that touches CUDA runs in forked ranks: a process that has used CUDA cannot fork.
#include <torch/optim/adam.h>

#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <vector>

#include "common/errors.h"
#include "tests/support/catch.h"
#include "tests/support/gpu.h"
#include "tests/worker/sync_batch_norm_check.h"
#include "worker/ddp/cuda_backend.h"
#include "worker/ddp/spawn.h"
#include "worker/ddp/zero_optimizer.h"
#include "worker/train/optimizer_state.h"

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
