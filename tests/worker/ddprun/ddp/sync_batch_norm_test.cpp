#include <ddprun/ddp/sync_batch_norm.h>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <stdexcept>
#include <string>

#include <ddprun/common/errors.h>
#include <ddprun/ddp/distributed_data_parallel.h>
#include <ddprun/group/collectives.h>
#include "tests/support/catch.h"
#include "tests/support/refused.h"
#include "tests/support/run_ranks.h"
#include "tests/worker/ddprun/ddp/sync_batch_norm_check.h"

using namespace ddprun;
using ddp::ProcessGroup;
using ddp::SyncBatchNorm;
using namespace ddprun::test::sync_batch_norm;

namespace {

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

TEST_CASE("what cannot be converted to SyncBatchNorm is named", "[sync_batch_norm]") {
  test::run_ranks(1, [](const ProcessGroup& group) {
    torch::nn::Sequential plain(SyncBatchNorm(3), torch::nn::BatchNorm2d(3)), none(torch::nn::Linear(3, 3));
    test::ensure_refused(
        [&] { ddp::convert_sync_batchnorm(*plain, group); },
        "convert_sync_batchnorm: 1 is a BatchNorm; declare it as a ddprun::ddp::SyncBatchNorm");
    test::ensure_refused(
        [&] { ddp::convert_sync_batchnorm(*none, group); },
        "convert_sync_batchnorm: expected a ddprun::ddp::SyncBatchNorm in the module, found none");
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
    SyncBatchNorm norm(3);
    ddp::convert_sync_batchnorm(*norm, group);
    test::ensure_refused(
        [&] {
          norm->forward(torch::ones({4, 2, 5, 5}));
        },
        "3 channels in the second, got shape [4, 2, 5, 5]");
    test::ensure_refused([&] { norm->forward(torch::ones({3})); }, "got shape [3]");
    test::ensure_refused(
        [&] {
          norm->forward(torch::ones({group.rank(), 3}));
        },
        "over all ranks when training, got 1");
    test::ensure_refused(
        [&] {
          norm->forward(torch::ones({0, 3, 2}));
        },
        "over all ranks when training, got 0");
    const auto x = torch::randn({2, 3}).requires_grad_();
    const auto y = norm->forward(x).square().sum();
    test::ensure_refused([&] { y.backward({}, std::nullopt, /*create_graph=*/true); }, "second derivative");
  });
}
