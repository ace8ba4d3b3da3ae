#include <ddprun/train/optim/gradients.h>

#include <ATen/core/Dict.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cmath>
#include <memory>
#include <stdexcept>
#include <utility>

#include <ddprun/train/optim/optimization.h>
#include <ddprun/train/state/optimizer_state.h>
#include "tests/support/catch.h"
#include "tests/support/golden.h"
#include "tests/support/golden_number.h"

using namespace ddprun;
using nlohmann::json;
using test::ContainsSubstring;
using test::number;
using train::GradScaler;

namespace {

struct Trained {
  torch::Tensor parameter = torch::zeros(2).requires_grad_();
  torch::optim::SGD optimizer{{parameter}, torch::optim::SGDOptions(1.0)};

  void set_gradient(double first, double second, double scale) {
    parameter.mutable_grad() = torch::tensor({first, second}, torch::kFloat32) * scale;
  }
};

GradScaler make_scaler(const GradScaler::Options& options = {}) { return GradScaler(at::kCPU, options); }

}  // namespace

TEST_CASE("the gradient scaler goes through PyTorch's states, also saved and loaded", "[grad_scaler]") {
  for (const auto& golden : test::read_golden("grad_scaler/steps.json")) {
    const auto& o = golden["options"];
    CAPTURE(o.dump());
    const GradScaler::Options options = {o["init_scale"], o["growth_factor"], o["backoff_factor"],
                                         o["growth_interval"]};
    auto scaler = make_scaler(options);
    Trained trained;
    std::int64_t skipped = 0;
    for (const auto& step : golden["steps"]) {
      CAPTURE(step.dump());
      trained.set_gradient(number(step["gradient"][0]), number(step["gradient"][1]), scaler.get_scale());
      if (step["unscales"]) scaler.unscale(trained.optimizer);
      const bool stepped = scaler.step(trained.optimizer);
      scaler.update();
      skipped += stepped ? 0 : 1;
      CHECK(stepped == step["stepped"].get<bool>());
      CHECK(scaler.skipped_steps() == skipped);
      CHECK(scaler.get_scale() == number(step["scale"]));
      for (int i = 0; i < 2; ++i)
        CHECK(trained.parameter[i].item<double>() == step["parameter"][static_cast<std::size_t>(i)]);
      const auto state = scaler.state_dict();
      CHECK(state.at("_growth_tracker").toInt() == step["tracker"]);
      REQUIRE(state.size() == golden["keys"].size());
      for (const auto& key : golden["keys"]) CHECK(state.contains(key.get<std::string>()));
      auto fresh = make_scaler();
      fresh.load_state_dict(state);
      std::swap(scaler, fresh);
      skipped = 0;
    }
  }
}

TEST_CASE("the scaled loss has scaled gradients, which a step takes the scale from", "[grad_scaler]") {
  auto scaler = make_scaler({.init_scale = 8});
  Trained trained;
  scaler.scale((trained.parameter * 3).sum()).backward();
  CHECK(trained.parameter.grad()[0].item<double>() == 24);
  CHECK(scaler.step(trained.optimizer));
  CHECK(trained.parameter[1].item<double>() == -3);
}

TEST_CASE("a rank skips the step if another found an infinite gradient", "[grad_scaler]") {
  auto scaler = make_scaler({.init_scale = 8});
  Trained trained;
  trained.set_gradient(1, 1, 8);
  CHECK_FALSE(scaler.step(trained.optimizer, [](at::Tensor& found) { found += 1; }));
  scaler.update();
  CHECK(scaler.get_scale() == 4);
}

TEST_CASE("a resumed run's skipped steps are counted on", "[grad_scaler]") {
  const auto make = [](Trained& trained) {
    train::Optimization::Parts parts;
    parts.optimizer = std::make_unique<torch::optim::SGD>(std::vector<torch::Tensor>{trained.parameter},
                                                          torch::optim::SGDOptions(1.0));
    return train::Optimization(std::move(parts), {}, train::Precision::k16Mixed, at::kCPU, {});
  };
  Trained trained;
  auto before = make(trained);
  trained.set_gradient(INFINITY, 1, 1);
  before.optimizer_step();
  REQUIRE(before.skipped_steps() == 1);
  const auto state = before.scaler_state().toGenericDict();
  auto resumed = make(trained);
  resumed.load_scaler_state(state);
  CHECK(resumed.loss_scale() == before.loss_scale());
  trained.set_gradient(INFINITY, 1, 1);
  resumed.optimizer_step();
  CHECK(resumed.skipped_steps() == 2);

  CHECK(state.erase("skipped_steps") == 1);  // as in older checkpoints
  auto of_older = make(trained);
  of_older.load_scaler_state(state);
  CHECK(of_older.skipped_steps() == 0);
}

TEST_CASE("a step that the device holds back changes nothing, like one that is not taken", "[grad_scaler]") {
  using train::OptimizerKind;
  struct Training {
    torch::Tensor parameter = torch::tensor({0.5F, -2.0F}).requires_grad_();
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    GradScaler scaler = make_scaler({.init_scale = 8, .growth_interval = 3});
    train::Ema ema{{{"p", parameter}}, {{"count", torch::zeros({}, torch::kInt64)}}, {.decay = 0.9}};
  };
  for (const auto kind :
       {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW, OptimizerKind::kAdadelta})
    for (const double dampening : {0.0, 0.5}) {
      CAPTURE(static_cast<int>(kind), dampening);
      Training waits, on_device;
      const auto step = [&](Training& training, double first) {
        training.parameter.mutable_grad() =
            torch::tensor({first, -1.0}, torch::kFloat32) * training.scaler.get_scale();
        if (&training == &waits) {
          if (training.scaler.step(*training.optimizer)) training.ema.update();
        } else {
          auto& held = dynamic_cast<train::HeldBack&>(*training.optimizer);
          training.ema.update(training.scaler.step_on_device(*training.optimizer, held));
        }
        training.scaler.update();
      };
      for (auto* training : {&waits, &on_device})
        training->optimizer =
            train::make_optimizer({.kind = kind, .lr = 0.1, .momentum = 0.9, .dampening = dampening},
                                  {torch::optim::OptimizerParamGroup({training->parameter})});
      for (const double first : {static_cast<double>(INFINITY), 1.0, -0.25, static_cast<double>(NAN),
                                 static_cast<double>(INFINITY), 3.0})
        for (auto* training : {&waits, &on_device}) step(*training, first);
      dynamic_cast<train::HeldBack&>(*on_device.optimizer).settle();
      CHECK(torch::equal(on_device.parameter, waits.parameter));
      CHECK(on_device.scaler.skipped_steps() == 3);
      CHECK(on_device.scaler.get_scale() == waits.scaler.get_scale());
      CHECK(on_device.ema.updates() == 3);
      CHECK(torch::allclose(on_device.ema.averages()[0].second, waits.ema.averages()[0].second, 1e-6, 1e-7));
      const auto steps_of = [](const Training& training) {
        const auto state = train::optimizer_state_dict(*training.optimizer).toGenericDict().at("state");
        const auto first = state.toGenericDict().begin()->value().toGenericDict();
        return first.contains("step") ? first.at("step").toTensor().item<double>() : 3;
      };
      CHECK(steps_of(on_device) == 3);
      CHECK(steps_of(waits) == 3);
      step(waits, 2);  // and goes on from there
      step(on_device, 2);
      CHECK(torch::equal(on_device.parameter, waits.parameter));
    }
}

TEST_CASE("a scaler that is not enabled leaves everything as it is", "[grad_scaler]") {
  auto scaler = make_scaler({.enabled = false});
  Trained trained;
  trained.set_gradient(1, 2, 1);
  const auto loss = torch::ones({});
  CHECK(scaler.scale(loss).is_same(loss));
  scaler.unscale(trained.optimizer);
  CHECK(scaler.step(trained.optimizer));
  scaler.update();
  CHECK(trained.parameter[1].item<double>() == -2);
  CHECK(scaler.state_dict().empty());
  CHECK(scaler.get_scale() == 1);
}

TEST_CASE("the gradient scaler refuses calls out of order and options out of range", "[grad_scaler]") {
  auto scaler = make_scaler();
  Trained trained;
  trained.set_gradient(1, 1, 1);
  CHECK_THROWS_AS(scaler.update(), std::logic_error);
  scaler.unscale(trained.optimizer);
  CHECK_THROWS_AS(scaler.unscale(trained.optimizer), std::logic_error);
  scaler.step(trained.optimizer);
  CHECK_THROWS_AS(scaler.step(trained.optimizer), std::logic_error);
  CHECK_THROWS_AS(scaler.unscale(trained.optimizer), std::logic_error);
  scaler.update();
  trained.parameter = torch::zeros(2, torch::kFloat16).requires_grad_();
  torch::optim::SGD half({trained.parameter}, torch::optim::SGDOptions(1));
  trained.parameter.mutable_grad() = torch::ones(2, torch::kFloat16);
  CHECK_THROWS_WITH(scaler.unscale(half), ContainsSubstring("expected float32 gradients, got float16"));
  CHECK_THROWS_AS(make_scaler({.growth_factor = 1}), std::invalid_argument);
  CHECK_THROWS_AS(make_scaler({.backoff_factor = 1}), std::invalid_argument);
  CHECK_THROWS_WITH(scaler.load_state_dict(make_scaler({.enabled = false}).state_dict()),
                    ContainsSubstring("the gradient scaler: expected 'scale', got none"));
}

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
