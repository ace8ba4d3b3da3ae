#include <ddprun/ddp/distributed_data_parallel.h>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <stdexcept>
#include <string>

#include <ddprun/common/errors.h>
#include "tests/support/catch.h"
#include "tests/support/golden.h"
#include "tests/support/run_ranks.h"
#include "worker/models/classifiers.h"

using namespace ddprun;
using ddp::DistributedDataParallel;
using ddp::ProcessGroup;
using models::MnistCnn;

namespace {

constexpr int kPerRank = 6;

/// The union batch of `size` ranks; rank r's part is rows r * kPerRank on.
struct Data {
  explicit Data(int size, torch::Dtype dtype = torch::kFloat32) {
    torch::manual_seed(3);
    images = torch::randn({size * kPerRank, 1, 28, 28}).to(dtype);
    labels = torch::randint(0, 10, {size * kPerRank}, torch::kInt64);
  }
  torch::Tensor part(const torch::Tensor& all, int rank, int begin = 0, int count = kPerRank) const {
    return all.slice(0, rank * kPerRank + begin, rank * kPerRank + begin + count);
  }
  torch::Tensor images, labels;
};

/// The same weights on whoever calls it.
MnistCnn make_model(std::uint64_t seed = 7, torch::Dtype dtype = torch::kFloat32) {
  torch::manual_seed(seed);
  MnistCnn model(0.0);
  model->to(dtype);
  return model;
}

void check_gradients_equal(MnistCnn& model, MnistCnn& reference, double tolerance) {
  for (const auto& item : model->named_parameters()) {
    const auto gradient = item.value().grad();
    const auto expected = reference->named_parameters()[item.key()].grad();
    const double difference = ((gradient - expected).norm() / expected.norm()).item<double>();
    ensure(difference <= tolerance,
           (item.key() + "'s relative difference is " + std::to_string(difference)).c_str());
    const double largest = (gradient - expected).abs().max().item<double>();
    ensure(largest < 1e-6, (item.key() + "'s largest difference is " + std::to_string(largest)).c_str());
  }
}

}  // namespace

TEST_CASE("gradients of N ranks equal those of one rank on the union batch", "[distributed_data_parallel]") {
  // In double precision what is left is the summation order; in single precision its rounding is larger.
  const auto [dtype, tolerance] =
      GENERATE(table<torch::Dtype, double>({{torch::kFloat64, 1e-12}, {torch::kFloat32, 5e-6}}));
  const int size = GENERATE(1, 2, 3);
  test::run_ranks(size, [size, dtype = dtype, tolerance = tolerance](const ProcessGroup& group) {
    const Data data(size, dtype);
    auto reference = make_model(7, dtype);
    torch::optim::SGD reference_optimizer(reference->parameters(), 0.05);
    auto model =
        make_model(7 + static_cast<std::uint64_t>(group.rank()), dtype);  // rank 0's weights must win
    DistributedDataParallel ddp(*model, group);
    torch::optim::SGD optimizer(model->parameters(), 0.05);
    // Three steps: the buckets are rebuilt after the first.
    for (int step = 0; step < 3; ++step) {
      reference_optimizer.zero_grad();
      torch::nll_loss(reference->forward(data.images), data.labels).backward();
      optimizer.zero_grad();
      auto loss = ddp.forward([&] {
        return torch::nll_loss(model->forward(data.part(data.images, group.rank())),
                               data.part(data.labels, group.rank()));
      });
      loss.backward();
      check_gradients_equal(model, reference, tolerance);
      reference_optimizer.step();
      optimizer.step();
    }
    ensure(ddp.statistics().buckets_rebuilt == (size > 1), "buckets rebuilt after the first backward");
  });
}

TEST_CASE("buckets after the rebuild are PyTorch's", "[distributed_data_parallel]") {
  const auto golden =
      test::read_golden("mnist_ddp/losses.json")["rebuilt_bucket_bytes"].get<std::vector<std::int64_t>>();
  test::run_ranks(2, [&](const ProcessGroup& group) {
    const Data data(2);
    auto model = make_model();
    DistributedDataParallel ddp(*model, group);
    for (int step = 0; step < 3; ++step)
      ddp.forward([&] {
           return torch::nll_loss(model->forward(data.part(data.images, group.rank())),
                                  data.part(data.labels, group.rank()));
         })
          .backward();
    const auto statistics = ddp.statistics();
    ensure(statistics.bucket_bytes == golden, "the bucket sizes that Python's DDP reports");
    ensure(statistics.communication_ns > 0 && statistics.overlap_ns > 0,
           "the first bucket is reduced while backward still runs");
  });
}

TEST_CASE("no_sync keeps gradients local, and the next backward reduces the sum",
          "[distributed_data_parallel]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    const Data data(2);
    auto reference = make_model();
    (torch::nll_loss(reference->forward(data.images), data.labels)).backward();
    auto model = make_model();
    DistributedDataParallel ddp(*model, group);
    const auto half = [&](int begin) {
      return ddp.forward([&] {
        return torch::nll_loss(model->forward(data.part(data.images, group.rank(), begin, kPerRank / 2)),
                               data.part(data.labels, group.rank(), begin, kPerRank / 2)) /
               2;
      });
    };
    {
      const auto guard = ddp.no_sync();
      half(0).backward();
    }
    auto alone = make_model();
    (torch::nll_loss(alone->forward(data.part(data.images, group.rank(), 0, kPerRank / 2)),
                     data.part(data.labels, group.rank(), 0, kPerRank / 2)) /
     2)
        .backward();
    check_gradients_equal(model, alone, 1e-6);  // this rank's own so far
    half(kPerRank / 2).backward();
    check_gradients_equal(model, reference, 5e-6);
  });
}

TEST_CASE("rank 0's parameters and buffers reach every rank", "[distributed_data_parallel]") {
  test::run_ranks(3, [](const ProcessGroup& group) {
    torch::nn::BatchNorm1d norm(4);
    torch::NoGradGuard no_grad;
    norm->weight.fill_(group.rank() + 1);
    norm->running_mean.fill_(group.rank() + 10);
    DistributedDataParallel ddp(*norm, group);
    ensure(norm->weight.eq(1).all().item<bool>(), "parameters are rank 0's");
    ensure(norm->running_mean.eq(10).all().item<bool>(), "buffers are rank 0's");
    ensure(norm->weight.requires_grad(), "parameters still want gradients");

    norm->running_mean.fill_(group.rank() + 20);
    norm->eval();
    ddp.forward([&] { return norm->forward(torch::ones({2, 4})); });
    ensure(norm->running_mean.eq(20).all().item<bool>(), "buffers are rank 0's before every forward");
    norm->running_mean.fill_(group.rank() + 30);
    ddp.synchronize_buffers();
    ensure(norm->running_mean.eq(30).all().item<bool>(), "buffers are rank 0's on demand");
  });
}

TEST_CASE("buffers are broadcast once an accumulation, or never", "[distributed_data_parallel]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    const auto make = [&] {
      torch::nn::BatchNorm1d norm(3);
      torch::NoGradGuard no_grad;
      norm->running_mean.fill_(group.rank() + 1);
      norm->eval();
      return norm;
    };
    auto norm = make();
    DistributedDataParallel::Options options;
    options.broadcast_buffers = false;
    DistributedDataParallel own(*norm, group, options);
    const auto step = [&](DistributedDataParallel& ddp) {
      ddp.forward([&] { return norm(torch::ones({2, 3})).sum(); }).backward();
    };
    step(own);
    ensure(norm->running_mean.eq(group.rank() + 1).all().item<bool>(), "not broadcast");

    norm = make();
    DistributedDataParallel ddp(*norm, group);
    step(ddp);
    const auto set = [&] {
      torch::NoGradGuard no_grad;
      norm->running_mean.fill_(group.rank() + 10);
    };
    set();
    {
      const auto guard = ddp.no_sync();
      step(ddp);  // the first after a step that was reduced
      ensure(norm->running_mean.eq(10).all().item<bool>(), "broadcast before the first micro-batch");
      set();
      step(ddp);
    }
    step(ddp);
    ensure(norm->running_mean.eq(group.rank() + 10).all().item<bool>(), "not before the further ones");
    step(ddp);
    ensure(norm->running_mean.eq(10).all().item<bool>(), "but before the next step's first");
  });
}

TEST_CASE("ranks whose modules differ are refused on every rank, naming parameter and ranks",
          "[distributed_data_parallel]") {
  const auto check_refused = [](const ProcessGroup& group, torch::nn::Module& module,
                                const std::string& expected) {
    std::string message = "no error";
    try {
      DistributedDataParallel ddp(module, group);
    } catch (const std::invalid_argument& error) {
      message = error.what();
    }
    ensure(message.find(expected) != std::string::npos,
           ("expected '" + expected + "', got: " + message).c_str());
  };
  SECTION("another shape") {
    test::run_ranks(3, [&](const ProcessGroup& group) {
      torch::nn::Linear model(4, group.rank() == 1 ? 5 : 3);
      check_refused(group, *model, "rank 0 has parameter weight [3, 4] float, unlike rank 1");
    });
  }
  SECTION("one parameter more") {
    test::run_ranks(3, [&](const ProcessGroup& group) {
      torch::nn::Linear model(torch::nn::LinearOptions(4, 3).bias(group.rank() == 1));
      check_refused(group, *model, "rank 0 has no further parameter or buffer, unlike rank 1");
    });
  }
  SECTION("a frozen parameter") {
    test::run_ranks(3, [&](const ProcessGroup& group) {
      torch::nn::Linear model(4, 3);
      model->bias.requires_grad_(group.rank() == 0);
      check_refused(group, *model, "rank 0 has parameter bias [3] float, unlike ranks 1 and 2");
    });
  }
}

TEST_CASE("a module without trainable parameters is refused", "[distributed_data_parallel]") {
  test::run_ranks(1, [](const ProcessGroup& group) {
    torch::nn::Linear model(2, 2);
    for (auto& parameter : model->parameters()) parameter.requires_grad_(false);
    bool thrown = false;
    try {
      DistributedDataParallel ddp(*model, group);
    } catch (const std::invalid_argument&) {
      thrown = true;
    }
    ensure(thrown, "std::invalid_argument");
  });
}
