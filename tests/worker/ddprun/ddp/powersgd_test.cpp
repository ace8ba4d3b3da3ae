#include <ddprun/ddp/comm_hooks.h>

#include <torch/nn/modules/linear.h>

#include <stdexcept>
#include <string>

#include <ddprun/common/errors.h>
#include "tests/support/catch.h"
#include "tests/support/run_ranks.h"
#include "tests/worker/ddprun/ddp/hook_training.h"

using namespace ddprun;
using ddp::PowerSgd;
using ddp::ProcessGroup;
using test::Training;

namespace {

constexpr PowerSgd::Options kFromThirdStep = {.rank = 2, .start_iteration = 2};

std::shared_ptr<PowerSgd> compress(Training& training, const PowerSgd::Options& options = kFromThirdStep) {
  auto power_sgd = std::make_shared<PowerSgd>(training.group, options);
  training.ddp.register_comm_hook(ddp::powersgd_hook(power_sgd));
  return power_sgd;
}

void copy_weights(const Training& from, Training& to) {
  const torch::NoGradGuard no_grad;
  const auto source = from.net->parameters(), target = to.net->parameters();
  for (std::size_t i = 0; i < source.size(); ++i) target[i].copy_(source[i]);
}

}  // namespace

TEST_CASE("PowerSGD goes on from a saved state as if it had not stopped", "[powersgd]") {
  const bool batched = GENERATE(false, true);
  test::run_ranks(2, [&](const ProcessGroup& group) {
    auto options = kFromThirdStep;
    options.batch_tensors_with_same_shape = batched;
    Training whole(group);
    const auto whole_sgd = compress(whole, options);
    for (int i = 0; i < 6; ++i) whole.step(i);
    whole.optimizer.state().clear();  // momentum is not what this is about

    // In one bucket until its first step is over, where the other has several by now.
    Training resumed(group), forgetful(group);
    copy_weights(whole, resumed);
    copy_weights(whole, forgetful);
    const auto state = whole_sgd->state(*whole.net);
    ensure(state.iteration == 6, "six iterations");
    ensure(state.errors.size() == 11 && state.qs.size() == 6,
           "errors of all parameters, Q of the compressed");
    compress(resumed, options)->load_state(*resumed.net, state);
    auto only_iteration = state;
    only_iteration.errors.clear();
    compress(forgetful, options)->load_state(*forgetful.net, only_iteration);

    bool differs = false;
    for (int i = 6; i < 12; ++i) {
      const double loss = whole.step(i);
      ensure(loss == resumed.step(i), "the same loss");
      differs |= loss != forgetful.step(i);
    }
    ensure(differs, "without the errors it is another");
  });
}

TEST_CASE("PowerSGD draws the same numbers after a saved state is loaded", "[powersgd]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    const PowerSgd::Options options = {
        .start_iteration = 0, .use_error_feedback = false, .warm_start = false, .random_seed = 9};
    Training whole(group), resumed(group);
    const auto whole_sgd = compress(whole, options);
    for (int i = 0; i < 3; ++i) whole.step(i);
    whole.optimizer.state().clear();
    copy_weights(whole, resumed);
    const auto state = whole_sgd->state(*whole.net);
    compress(resumed, options)->load_state(*resumed.net, state);
    ensure(whole_sgd->state(*whole.net).random_state == state.random_state, "looking changes nothing");
    whole.step(3);
    ensure(whole_sgd->state(*whole.net).random_state != state.random_state, "a step draws");
  });
}

TEST_CASE("PowerSGD refuses a state of another module or rank, and keeps its own", "[powersgd]") {
  test::run_ranks(2, [](const ProcessGroup& group) {
    Training training(group);
    const auto power_sgd = compress(training);
    for (int i = 0; i < 4; ++i) training.step(i);
    const auto state = power_sgd->state(*training.net);
    const auto check_refused = [&](PowerSgd::State wrong, const std::string& expected) {
      wrong.iteration = 99;
      std::string message = "no error";
      try {
        power_sgd->load_state(*training.net, wrong);
      } catch (const std::invalid_argument& error) {
        message = error.what();
      }
      ensure(message.find(expected) != std::string::npos, (expected + " in: " + message).c_str());
      ensure(power_sgd->state(*training.net).iteration == 4, "nothing has changed");
    };
    auto wrong = state;
    wrong.errors["fc9.weight"] = torch::zeros({1});
    check_refused(wrong, "the state has fc9.weight, which is not a parameter of the module");
    wrong = state;
    wrong.errors["fc4.weight"] = torch::zeros({64, 10});
    check_refused(wrong, "error of fc4.weight: expected the shape [10, 64], got [64, 10]");
    wrong = state;
    wrong.qs["fc2.weight"] = torch::zeros({64, 3});
    check_refused(wrong, "q of fc2.weight: expected the shape [64, 2], got [64, 3]");
    wrong = state;
    wrong.random_state = "1 2 3";
    check_refused(wrong, "random_state");
  });
}

TEST_CASE("a layer whose gradients are zero for a step goes on learning under PowerSGD", "[powersgd]") {
  const double epsilon = GENERATE(0.0, 1e-8);
  test::run_ranks(2, [&](const ProcessGroup& group) {
    torch::nn::Linear model(8, 6);
    ddp::DistributedDataParallel ddp(*model, group);
    ddp.register_comm_hook(ddp::powersgd_hook(
        std::make_shared<PowerSgd>(group, PowerSgd::Options{.start_iteration = 0,
                                                            .min_compression_rate = 1,
                                                            .use_error_feedback = false,
                                                            .orthogonalization_epsilon = epsilon})));
    for (const float scale : {1, 0, 0, 2}) {
      model->zero_grad();
      const auto x = torch::ones({1, 8}) * (1.0F + static_cast<float>(group.rank()));
      ddp.forward([&] { return scale * model->forward(x).sum(); }).backward();
      // The gradient has rank 1, so nothing is lost: it is the mean of both ranks', 1 and 2.
      ensure(torch::allclose(model->weight.grad(), torch::full({6, 8}, 1.5F * scale)),
             ("gradients at scale " + std::to_string(scale)).c_str());
    }
  });
}
