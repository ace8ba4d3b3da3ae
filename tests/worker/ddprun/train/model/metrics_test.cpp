#include <ddprun/train/model/metrics.h>

#include <torch/types.h>

#include <cmath>
#include <stdexcept>

#include "tests/support/catch.h"
#include "tests/support/golden.h"

using namespace ddprun;
using nlohmann::json;
using torch::Tensor;
using train::ConfusionMatrix;
using train::Mean;

namespace {

struct Metrics {
  Mean mean, accuracy;
  ConfusionMatrix confusion{5};

  void add(const json& batch) {
    std::vector<Tensor> rows;
    for (const auto& row : batch["scores"]) rows.push_back(torch::tensor(row.get<std::vector<float>>()));
    const auto scores = torch::stack(rows);
    const auto target = torch::tensor(batch["target"].get<std::vector<std::int64_t>>());
    const auto values = torch::tensor(batch["values"].get<std::vector<float>>());
    // Padding at the end, which does not count.
    const auto size = target.size(0);
    mean.add(torch::cat({values, torch::full({1}, 1e9)}), size);
    accuracy.add(torch::cat({scores.argmax(1) == target, torch::ones({1}, torch::kBool)}), size);
    confusion.add(torch::cat({scores, scores.slice(0, 0, 1)}), torch::cat({target, target.slice(0, 0, 1)}),
                  size);
  }
};

void check(const Metrics& metrics, const json& golden) {
  CHECK(metrics.mean.value() == test::Approx(golden["mean"].get<double>()).epsilon(1e-6));
  CHECK(metrics.accuracy.value() == test::Approx(golden["accuracy"].get<double>()).epsilon(1e-6));
  const auto counts = metrics.confusion.counts();
  for (std::size_t i = 0; i < 5; ++i)
    for (std::size_t j = 0; j < 5; ++j)
      CHECK(counts[static_cast<std::int64_t>(i)][static_cast<std::int64_t>(j)].item<std::int64_t>() ==
            golden["confusion"][i][j]);
}

}  // namespace

TEST_CASE("metrics of batches together are torchmetrics'", "[metrics]") {
  const auto golden = test::read_golden("losses_and_metrics/values.json");
  Metrics metrics;
  for (const auto& batch : golden["batches"]) metrics.add(batch);
  check(metrics, golden);
}

TEST_CASE("ranks with batches of any sizes have the metrics of all samples", "[metrics]") {
  const auto golden = test::read_golden("losses_and_metrics/values.json");
  Metrics ranks[3];  // one of them without samples
  for (std::size_t i = 0; i < golden["batches"].size(); ++i) ranks[i == 0 ? 0 : 1].add(golden["batches"][i]);
  std::vector<std::vector<double>> sums;
  for (auto& rank : ranks)
    train::sum_over_ranks(
        [&](std::vector<double> own) {
          sums.push_back(own);
          return own;
        },
        rank.mean, rank.accuracy, rank.confusion);
  for (auto& rank : ranks) {
    train::sum_over_ranks(
        [&](std::vector<double> total) {
          for (std::size_t i = 0; i < total.size(); ++i) total[i] = sums[0][i] + sums[1][i] + sums[2][i];
          return total;
        },
        rank.mean, rank.accuracy, rank.confusion);
    check(rank, golden);
  }
}

TEST_CASE("metrics without samples have no value, and wrong inputs are refused", "[metrics]") {
  CHECK(std::isnan(Mean().value()));
  CHECK(ConfusionMatrix(2).counts().sum().item<std::int64_t>() == 0);
  CHECK_THROWS_AS(ConfusionMatrix(0), std::invalid_argument);
  CHECK_THROWS_AS(Mean().set_sums({1}), std::invalid_argument);
  CHECK_THROWS_AS(ConfusionMatrix(2).set_sums({1}), std::invalid_argument);
  CHECK_THROWS(ConfusionMatrix(2).add(torch::zeros({1, 2}), torch::tensor({2})));
  CHECK_THROWS(ConfusionMatrix(2).add(torch::zeros({1, 2}), torch::tensor({-1})));
}
