#pragma once

#include <functional>
#include <utility>

#include <torch/optim/optimizer.h>

namespace ddprun {

/// An optimizer that says when a step begins and when it is done.
struct ObservedSteps {
  std::function<void(bool done)> on_step;  ///< null: nobody listens
};

/// One of LibTorch's optimizers, or your own, used like it. Its Checkpoint sees each step, and so knows what
/// the weights include when another rank is lost:
///
///   ddprun::Optimizer<torch::optim::Adam> optimizer(model->parameters(), 1e-2);
///
/// train::make_optimizer() returns such optimizers, too.
template <typename Base>
class Optimizer : public Base, public ObservedSteps {
 public:
  using Base::Base;

  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) override {
    if (!on_step) return Base::step(std::move(closure));
    if (!closure) on_step(false);
    // LibTorch's optimizers write nothing before their closure has computed the gradients.
    auto loss = Base::step(closure ? torch::optim::Optimizer::LossClosure([&] {
      auto computed = closure();
      on_step(false);
      return computed;
    })
                                   : nullptr);
    on_step(true);
    return loss;
  }
};

}  // namespace ddprun
