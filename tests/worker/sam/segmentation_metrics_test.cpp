#include "worker/sam/mask_loss.h"

#include <torch/types.h>

#include <stdexcept>

#include "tests/support/catch.h"

using namespace ddprun;
using ddprun::test::Approx;
using torch::Tensor;

namespace {

struct MetricsCase {
  Tensor predicted, truth;
  double dice, iou, accuracy;
};

Tensor mask(std::initializer_list<int> pixels) {
  return torch::tensor(std::vector<std::int64_t>(pixels.begin(), pixels.end()), torch::kInt64);
}

std::vector<MetricsCase> cases() {
  const double e = 1e-6;
  return {{mask({1, 1, 0, 0}), mask({1, 1, 0, 0}), 1, 1, 1},
          {mask({1, 1, 1, 0}), mask({0, 1, 1, 1}), (4 + e) / (6 + e), 2. / 4, 2. / 4},
          {mask({1, 0, 0, 0}), mask({1, 1, 1, 0}), (2 + e) / (4 + e), 1. / 3, 2. / 4},
          {mask({1, 1, 0, 0}), mask({0, 0, 1, 1}), e / (4 + e), 0, 0},
          {mask({0, 0, 0, 0}), mask({0, 1, 0, 0}), e / (1 + e), 0, 3. / 4},
          {mask({0, 0, 0, 0}), mask({0, 0, 0, 0}), 1, 0, 1},
          {mask({}), mask({}), 1, 0, 0}};
}

}  // namespace

TEST_CASE("mask metrics are what their formulas say, for masks of any dtype", "[segmentation_metrics]") {
  for (const auto type : {torch::kFloat, torch::kUInt8, torch::kInt64, torch::kBool, torch::kHalf}) {
    for (const auto& [predicted, truth, dice, iou, accuracy] : cases()) {
      CAPTURE(type, dice, iou, accuracy);
      const auto p = predicted.to(type), t = truth.to(type);
      CHECK(sam::dice_score(p, t).item<double>() == Approx(dice));
      CHECK(sam::iou_score(p, t).item<double>() == Approx(iou));
      CHECK(sam::pixel_accuracy(p, t).item<double>() == Approx(accuracy));
      CHECK(sam::dice_score(p, t).scalar_type() == torch::kFloat);
      CHECK(sam::iou_score(p, t).dim() == 0);
    }
  }
}

TEST_CASE("a soft prediction has a soft Dice", "[segmentation_metrics]") {
  const auto soft = torch::tensor({0.25f, 0.75f}), truth = torch::tensor({0.f, 1.f});
  CHECK(sam::dice_score(soft, truth).item<double>() == Approx(1.5 / 2));
}

TEST_CASE("each image has its own scores, whatever the sizes", "[segmentation_metrics]") {
  std::vector<Tensor> predicted, truth;
  for (const auto& test_case : cases()) {
    predicted.push_back(test_case.predicted.view({1, -1}).to(torch::kUInt8));
    truth.push_back(test_case.truth.view({1, -1}).to(torch::kUInt8));
  }
  const auto scores = sam::mask_scores(predicted, truth);
  REQUIRE(scores.dice.sizes().vec() == std::vector<std::int64_t>{7});
  for (std::int64_t i = 0; i < 7; ++i) {
    const auto& expected = cases()[static_cast<std::size_t>(i)];
    CHECK(scores.dice[i].item<double>() == Approx(expected.dice));
    CHECK(scores.iou[i].item<double>() == Approx(expected.iou));
    CHECK(scores.pixel_accuracy[i].item<double>() == Approx(expected.accuracy));
  }
}

TEST_CASE("pixels are counted exactly beyond what a float holds", "[segmentation_metrics]") {
  const auto truth = torch::ones({4100, 4100}, torch::kUInt8);  // more than 2^24
  auto predicted = truth.clone();
  predicted[0][0] = 0;
  CHECK(sam::dice_score(truth, truth).item<double>() == 1);
  CHECK(sam::pixel_accuracy(predicted, truth).item<double>() < 1);
}

TEST_CASE("masks that do not fit each other are refused", "[segmentation_metrics]") {
  CHECK_THROWS_AS(sam::dice_score(torch::ones({2, 2}), torch::ones({2, 1})), c10::Error);
  CHECK_THROWS_AS(sam::iou_score(torch::ones({2, 2}), torch::ones({4})), c10::Error);
  CHECK_THROWS_AS(sam::pixel_accuracy(torch::ones({2, 2}), torch::ones({2})), c10::Error);
  CHECK_THROWS_AS(sam::mask_scores({}, {}), std::invalid_argument);
  CHECK_THROWS_AS(sam::mask_scores({torch::ones({1})}, {}), std::invalid_argument);
}
