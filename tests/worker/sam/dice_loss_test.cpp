#include "worker/sam/mask_loss.h"

#include <torch/types.h>

#include <algorithm>

#include <ddprun/common/errors.h>
#include "tests/support/catch.h"
#include "tests/support/golden.h"

using namespace ddprun;
using nlohmann::json;
using sam::DiceOptions;
using sam::DiceReduction;
using sam::MaskLoss;
using torch::Tensor;

namespace {

Tensor to_doubles(const json& value) {
  if (!value.is_array()) return torch::scalar_tensor(value.get<double>(), torch::kDouble);
  std::vector<Tensor> rows;
  for (const auto& row : value) rows.push_back(to_doubles(row));
  return torch::stack(rows);
}

bool equal_within(const Tensor& a, const Tensor& b, double tolerance = 1e-8) {
  return a.numel() == b.numel() && (a.flatten() - b.flatten()).abs().max().item<double>() < tolerance;
}

DiceOptions dice_options_of(const json& names, const std::string& activation) {
  const auto has = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  return {.include_background = has("include_background"),
          .to_onehot_y = has("to_onehot_y"),
          .sigmoid = activation == "sigmoid",
          .softmax = activation == "softmax",
          .squared_pred = has("squared_pred"),
          .jaccard = has("jaccard"),
          .batch = has("batch")};
}

DiceReduction reduction_of(const std::string& name) {
  return name == "mean" ? DiceReduction::kMean : name == "sum" ? DiceReduction::kSum : DiceReduction::kNone;
}

}  // namespace

TEST_CASE("Dice loss and its gradient are MONAI's in every combination of options", "[dice_loss]") {
  const auto file = GENERATE(as<std::string>(), "mean", "mean_default", "sum", "none", "planes");
  const auto golden = test::read_golden("dice_loss/" + file + ".json");
  REQUIRE(golden["cases"].size() == golden["inputs"].size() * 3 * 32);
  for (const auto& test_case : golden["cases"]) {
    INFO(file << ' ' << test_case.dump());
    auto options = dice_options_of(test_case[3], test_case[2]);
    options.reduction = reduction_of(golden["reduction"]);
    options.smooth_nr = golden["smooth"][0];
    options.smooth_dr = golden["smooth"][1];
    const auto& inputs = golden["inputs"][test_case[0].get<std::string>()];
    const auto& expected = golden["results"][test_case[4].get<std::size_t>()];
    const auto input = to_doubles(inputs["input"]).requires_grad_();
    const auto loss = sam::dice_loss(input, to_doubles(inputs[test_case[1].get<std::string>()]), options);
    CHECK(loss.sizes().vec() == expected["shape"].get<std::vector<std::int64_t>>());
    const double tolerance = test_case[1] == "numbers" ? 1e-6 : 1e-7;  // MONAI's one_hot() is in float32
    CHECK(equal_within(loss, to_doubles(expected["values"]), tolerance));
    const auto weights = 1 + torch::arange(loss.numel(), torch::kDouble);
    (loss.flatten() * weights).sum().backward();
    CHECK(equal_within(input.grad(), to_doubles(expected["gradient"]), tolerance));
  }
}

TEST_CASE("the loss of each mask and its gradient are those of MONAI's parts", "[dice_loss]") {
  const auto golden = test::read_golden("dice_loss/mask_losses.json");
  REQUIRE(golden["losses"].size() == 3);
  for (const auto& [name, expected] : golden["losses"].items()) {
    INFO(name);
    const auto logits = to_doubles(golden["logits"]).requires_grad_();
    const auto losses = sam::mask_loss(sam::parse_mask_loss(name), logits, to_doubles(golden["target"]));
    CHECK(losses.sizes().vec() == std::vector<std::int64_t>{3});
    CHECK(equal_within(losses, to_doubles(expected["values"])));
    losses.mean().backward();
    CHECK(equal_within(logits.grad(), to_doubles(expected["gradient"])));
  }
}

TEST_CASE("focal loss is MONAI's for any gamma and alpha", "[dice_loss]") {
  const auto golden = test::read_golden("dice_loss/mask_losses.json");
  for (const auto& [name, expected] : golden["focal"].items()) {
    INFO(name);
    CHECK(equal_within(sam::sigmoid_focal_loss(to_doubles(golden["logits"]), to_doubles(golden["target"]),
                                               expected["gamma"], expected["alpha"]),
                       to_doubles(expected["values"])));
  }
}

TEST_CASE("a mask's loss is its own, whatever else is in the batch", "[dice_loss]") {
  const auto logits = torch::randn({4, 1, 8, 8}),
             target = (torch::rand({4, 1, 8, 8}) > 0.5).to(torch::kFloat);
  for (const auto loss : {MaskLoss::kDice, MaskLoss::kDiceFocal, MaskLoss::kDiceBce}) {
    const auto all = sam::mask_loss(loss, logits, target);
    for (std::int64_t i = 0; i < 4; ++i)
      CHECK(equal_within(all[i], sam::mask_loss(loss, logits.slice(0, i, i + 1), target.slice(0, i, i + 1)),
                         1e-6));
  }
}

TEST_CASE("logits in half precision are summed in float", "[dice_loss]") {
  const auto logits = torch::full({1, 1, 512, 512}, 4.f), target = torch::ones({1, 1, 512, 512});
  for (const auto type : {torch::kHalf, torch::kBFloat16})
    for (const auto loss : {MaskLoss::kDice, MaskLoss::kDiceFocal, MaskLoss::kDiceBce}) {
      const auto value = sam::mask_loss(loss, logits.to(type), target);
      CHECK(value.scalar_type() == torch::kFloat);
      CHECK(equal_within(value, sam::mask_loss(loss, logits, target), 1e-6));
    }
}

TEST_CASE("losses of extreme logits are finite", "[dice_loss]") {
  const auto logits = torch::tensor({-1e4f, 1e4f, -90.f, 90.f}).view({1, 1, 2, 2}).requires_grad_();
  for (const auto loss : {MaskLoss::kDice, MaskLoss::kDiceFocal, MaskLoss::kDiceBce})
    for (const auto value : {0.f, 1.f}) {
      const auto losses = sam::mask_loss(loss, logits, torch::full({1, 1, 2, 2}, value));
      CHECK(losses.isfinite().all().item<bool>());
      logits.mutable_grad() = Tensor();
      losses.sum().backward();
      CHECK(logits.grad().isfinite().all().item<bool>());
    }
}

TEST_CASE("what does not fit a Dice loss is refused", "[dice_loss]") {
  const auto x = torch::rand({2, 3, 4});
  CHECK_THROWS_WITH(sam::dice_loss(x, x, {.sigmoid = true, .softmax = true}),
                    "Dice loss: expected sigmoid or softmax, got both");
  CHECK_THROWS_AS(sam::dice_loss(x, torch::rand({2, 1, 4}), {}), c10::Error);
  CHECK_THROWS_AS(sam::dice_loss(x, x, {.to_onehot_y = true}), c10::Error);
  CHECK_THROWS_AS(sam::dice_loss(x, torch::full({2, 1, 4}, 3), {.to_onehot_y = true}), c10::Error);
  CHECK_THROWS_AS(sam::mask_loss(MaskLoss::kDice, x, torch::rand({2, 1, 4})), c10::Error);
  CHECK_THROWS_AS(sam::sigmoid_focal_loss(x, torch::rand({2, 1, 4})), c10::Error);
  CHECK_THROWS_WITH(sam::parse_mask_loss("focal"),
                    "--loss: expected dice, dice_focal or dice_bce, got 'focal'");
  CHECK_THROWS_AS(sam::parse_mask_loss(""), UsageError);
}
