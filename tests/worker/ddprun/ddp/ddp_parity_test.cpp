#include <algorithm>
#include <stdexcept>
#include <string>
#include <tuple>

#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <ddprun/ddp/distributed_data_parallel.h>
#include <ddprun/ddp/sync_batch_norm.h>
#include "tests/support/catch.h"
#include "tests/support/golden.h"
#include "tests/support/run_ranks.h"
#include "tests/worker/ddprun/ddp/parity_case.h"
#include "tests/worker/ddprun/ddp/parity_models.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

void check_buckets(const nlohmann::json& plan, const char* which,
                   const ddp::DistributedDataParallel::Statistics& statistics) {
  if (nlohmann::json(statistics.bucket_bytes) == plan[which]) return;
  throw std::runtime_error(plan.dump() + ": " + which + " buckets are " +
                           nlohmann::json(statistics.bucket_bytes).dump());
}

/// Gradients of all parameters, and the buffers, to 1e-9 of their norm.
void check_same(const torch::nn::Module& module, const torch::nn::Module& reference) {
  const auto check = [&](const std::string& name, const torch::Tensor& ours, const torch::Tensor& expected) {
    const auto as_double = expected.to(torch::kFloat64);
    const double norm = std::max(as_double.norm().item<double>(), 1e-12);
    const double difference = (ours.to(torch::kFloat64) - as_double).norm().item<double>() / norm;
    if (!(difference <= 1e-9))
      throw std::runtime_error(name + ": relative difference is " + std::to_string(difference));
  };
  for (const auto& item : module.named_parameters())
    check(item.key(), item.value().grad(), reference.named_parameters()[item.key()].grad());
  for (const auto& item : module.named_buffers())
    check(item.key(), item.value(), reference.named_buffers()[item.key()]);
}

bool all(const ParityCase&) { return true; }
bool in_single(const ParityCase& one) { return one.entry["dtype"] == "float32"; }
bool default_in_single(const ParityCase& one) { return one.entry["option"] == "default" && in_single(one); }

}  // namespace

TEST_CASE("losses of a model with an unused branch are Python's with every option", "[ddp_parity]") {
  const auto how = GENERATE(table<int, bool>({{2, true}, {3, true}, {3, false}}));
  const SumsInMemory sums(std::get<1>(how));
  check_parity("branched", std::get<0>(how), all);
}

TEST_CASE("losses of the MNIST CNN are Python's with every option", "[ddp_parity]") {
  check_parity("cnn", 3, in_single);
}

TEST_CASE("losses of the MNIST CNN are Python's in double precision", "[ddp_parity]") {
  check_parity("cnn", 2, all);
}

TEST_CASE("losses of ResNet-18 are Python's on three ranks in single precision", "[ddp_parity]") {
  check_parity("resnet18", 3, default_in_single);
}

TEST_CASE("bucket plans are Python's", "[ddp_parity]") {
  const auto plans = read_golden("ddp_parity/bucket_plans.json");
  run_ranks(2, [&](const ddp::ProcessGroup& group) {
    for (const auto& plan : plans) {
      const auto model = make_parity_model(plan["model"]);
      ddp::DistributedDataParallel::Options options;
      if (!plan["bucket_bytes"].is_null()) options.bucket_bytes = plan["bucket_bytes"];
      options.find_unused_parameters = plan["find_unused_parameters"];
      ddp::DistributedDataParallel ddp(*model.module, group, options);
      check_buckets(plan, "initial", ddp.statistics());
      if (plan["rebuilt"].empty()) continue;
      const auto images =
          plan["model"] == "cnn" ? torch::zeros({2, 1, 28, 28}) : torch::zeros({2, 3, 32, 32});
      for (int step = 0; step < 2; ++step)
        ddp.forward([&] { return model.loss(images, formula_labels(0, 2), "ab"); }).backward();
      check_buckets(plan, "rebuilt", ddp.statistics());
    }
  });
}

TEST_CASE("ResNet-18 with SyncBatchNorm: gradients of N ranks are those of one rank on the union batch",
          "[ddp_parity]") {
  run_ranks(2, [](const ddp::ProcessGroup& group) {
    constexpr int kPerRank = 3;
    const auto images = 4 * formula("image", {2 * kPerRank, 3, 32, 32});
    const auto labels = formula_labels(0, 2 * kPerRank);
    const auto part = [&](const torch::Tensor& all) {
      return all.slice(0, group.rank() * kPerRank, (group.rank() + 1) * kPerRank);
    };
    const auto reference = make_parity_model("resnet18"), model = make_parity_model("resnet18");
    for (const auto* one : {&reference, &model}) one->module->to(torch::kFloat64);
    ddp::convert_sync_batchnorm(*model.module, group);
    ddp::DistributedDataParallel ddp(*model.module, group);
    torch::optim::SGD reference_optimizer(reference.module->parameters(), 1e-6);
    torch::optim::SGD optimizer(model.module->parameters(), 1e-6);
    for (int step = 0; step < 2; ++step) {
      reference_optimizer.zero_grad();
      reference.loss(images, labels, "").backward();
      optimizer.zero_grad();
      ddp.forward([&] { return model.loss(part(images), part(labels), ""); }).backward();
      check_same(*model.module, *reference.module);
      reference_optimizer.step();
      optimizer.step();
    }
  });
}
