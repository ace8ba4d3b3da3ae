#include <ddprun/train/optim/clip_gradients.h>

#include <torch/types.h>

#include <cmath>
#include <stdexcept>

#include "tests/support/catch.h"
#include "tests/support/golden.h"
#include "tests/support/golden_number.h"

using namespace ddprun;
using nlohmann::json;
using test::number;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

namespace {

std::vector<double> flat(const json& value) {
  if (!value.is_array()) return {value.get<double>()};
  std::vector<double> result;
  for (const auto& item : value)
    for (const double each : flat(item)) result.push_back(each);
  return result;
}

/// With these gradients, and one without.
Tensors parameters_with(const json& gradients) {
  const std::vector<std::vector<std::int64_t>> shapes = {{3, 2}, {4}, {}};
  Tensors parameters;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    parameters.push_back(torch::zeros(shapes[i]).requires_grad_());
    parameters[i].mutable_grad() = torch::tensor(flat(gradients[i]), torch::kFloat32).reshape(shapes[i]);
  }
  parameters.push_back(torch::zeros(2).requires_grad_());
  return parameters;
}

void check_gradients(const Tensors& parameters, const json& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto values = flat(expected[i]);
    const auto gradient = parameters[i].grad().flatten();
    for (std::size_t j = 0; j < values.size(); ++j)
      CHECK(gradient[static_cast<std::int64_t>(j)].item<double>() == test::Approx(values[j]).epsilon(1e-6));
  }
}

}  // namespace

TEST_CASE("gradients are clipped as PyTorch clips them, by norm and by value", "[clip_gradients]") {
  for (const auto& golden : test::read_golden("clip_gradients/clipped.json")) {
    CAPTURE(golden["norm_type"], golden["max_norm"]);
    train::ClipNormOptions options;
    options.norm_type = number(golden["norm_type"]);
    auto parameters = parameters_with(golden["gradients"]);
    const auto norm = train::clip_grad_norm(parameters, golden["max_norm"], options);
    CHECK(norm.item<double>() == test::Approx(golden["norm"].get<double>()).epsilon(1e-6));
    check_gradients(parameters, golden["by_norm"]);
    parameters = parameters_with(golden["gradients"]);
    train::clip_grad_value(parameters, golden["max_norm"]);
    check_gradients(parameters, golden["by_value"]);
  }
}

TEST_CASE("parts of gradients on ranks are clipped by the norm of them all", "[clip_gradients]") {
  for (const auto& golden : test::read_golden("clip_gradients/clipped.json")) {
    CAPTURE(golden["norm_type"], golden["max_norm"]);
    const auto all = parameters_with(golden["gradients"]);
    const Tensors parts[] = {{all[0]}, {all[1], all[2]}};
    train::ClipNormOptions options;
    options.norm_type = number(golden["norm_type"]);
    const bool infinite = std::isinf(options.norm_type);
    std::vector<Tensor> powers;  // of each part, by itself
    for (const auto& part : parts) {
      auto quiet = options;
      quiet.reduce = [&](Tensor& power) { powers.push_back(power.clone()); };
      train::clip_grad_norm(part, INFINITY, quiet);
    }
    options.reduce = [&](Tensor& power) {
      power.copy_(infinite ? torch::maximum(powers[0], powers[1]) : powers[0] + powers[1]);
    };
    for (const auto& part : parts)
      CHECK(train::clip_grad_norm(part, golden["max_norm"], options).item<double>() ==
            test::Approx(golden["norm"].get<double>()).epsilon(1e-6));
    check_gradients(all, golden["by_norm"]);
  }
}

TEST_CASE("no gradients have the norm 0", "[clip_gradients]") {
  CHECK(train::clip_grad_norm({}, 1).item<double>() == 0);
  CHECK(train::clip_grad_norm({torch::zeros(2)}, 1).item<double>() == 0);
  train::clip_grad_value({torch::zeros(2)}, 1);
}

TEST_CASE("a norm that is not finite is an error where that is asked for", "[clip_gradients]") {
  const auto parameter = torch::zeros(1).requires_grad_();
  parameter.mutable_grad() = torch::full({1}, INFINITY);
  CHECK(std::isinf(train::clip_grad_norm({parameter}, 1).item<double>()));
  CHECK(std::isnan(parameter.grad().item<double>()));  // as PyTorch's
  CHECK_THROWS_WITH(train::clip_grad_norm({parameter}, 1, {.error_if_nonfinite = true}),
                    test::ContainsSubstring("expected a finite value, got nan"));
}
