#include <ddprun/train/optim/losses.h>

#include <torch/types.h>

#include <functional>
#include <map>

#include "tests/support/catch.h"
#include "tests/support/golden.h"

using namespace ddprun;
using nlohmann::json;
using torch::Tensor;

namespace {

Tensor to_tensor(const json& value) {
  if (!value[0].is_array()) {
    if (value[0].is_number_integer()) return torch::tensor(value.get<std::vector<std::int64_t>>());
    return torch::tensor(value.get<std::vector<float>>());
  }
  std::vector<Tensor> rows;
  for (const auto& row : value) rows.push_back(to_tensor(row));
  return torch::stack(rows);
}

bool same_losses(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() && (a - b).abs().max().item<double>() < 1e-6;
}

}  // namespace

TEST_CASE("each sample's loss and its gradient are PyTorch's", "[losses]") {
  const auto cross_entropy = [](auto& o, auto& t) { return train::cross_entropy(o, t); };
  const std::map<std::string, std::function<Tensor(const Tensor&, const Tensor&)>> functions = {
      {"cross_entropy", cross_entropy},
      {"smoothed", [](auto& o, auto& t) { return train::cross_entropy(o, t, 0.1); }},
      {"soft", cross_entropy},
      {"soft_one_class", cross_entropy},
      {"binary", train::binary_cross_entropy_with_logits},
      {"squared", train::squared_error}};
  const auto golden = test::read_golden("losses_and_metrics/values.json")["losses"];
  REQUIRE(golden.size() == functions.size());
  for (const auto& loss : golden) {
    CAPTURE(loss["name"].get<std::string>());
    const auto output = to_tensor(loss["output"]).requires_grad_();
    const auto values = functions.at(loss["name"])(output, to_tensor(loss["target"]));
    CHECK(same_losses(values, to_tensor(loss["values"])));
    values.mean().backward();
    CHECK(same_losses(output.grad(), to_tensor(loss["gradient"])));
  }
}

TEST_CASE("soft cross-entropy over one class is zero, and so is its gradient", "[losses]") {
  const auto output = torch::randn({5, 1}).requires_grad_();
  const auto losses = train::cross_entropy(output, torch::rand({5, 1}));
  CHECK(losses.abs().max().item<double>() == 0);
  losses.sum().backward();
  CHECK(output.grad().abs().max().item<double>() == 0);
}

TEST_CASE("a target of another shape is refused, not spread", "[losses]") {
  CHECK_THROWS_AS(train::squared_error(torch::zeros({4, 1}), torch::zeros({4})), c10::Error);
  CHECK_THROWS_AS(train::binary_cross_entropy_with_logits(torch::zeros({4, 1}), torch::zeros({4})),
                  c10::Error);
}
