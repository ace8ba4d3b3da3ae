#pragma once

#include <stdexcept>

#include <ATen/core/ivalue.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <ddprun/train/optim/adadelta.h>

namespace ddprun::train {

// Each kind of optimizer that has a state dict: its options and its state under the names, and in the order,
// that Python's class of torch 2.11 has. One description serves writing and reading:
//
//   visit(key, reference)            a value that both have
//   visit.fixed(key, value)          an option that only Python has
//   visit(key, tensor, required)     a tensor of the state; not required: may be undefined

template <typename AdamOptions, typename AdamState, bool kDecoupled>
struct AdamKind {
  using Options = AdamOptions;
  using State = AdamState;
  static constexpr const char* kName = kDecoupled ? "AdamW" : "Adam";

  template <typename Visit>
  static void options(Options& options, Visit& visit) {
    visit("lr", options.lr());
    visit("betas", options.betas());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("amsgrad", options.amsgrad());
    visit.fixed("maximize", false);
    visit.fixed("foreach", c10::IValue());
    visit.fixed("capturable", false);
    visit.fixed("differentiable", false);
    visit.fixed("fused", c10::IValue());
    visit.fixed("decoupled_weight_decay", kDecoupled);
  }
  template <typename Visit>
  static void state(State& state, const Options& options, Visit& visit) {
    visit("step", state.step());
    visit("exp_avg", state.exp_avg(), true);
    visit("exp_avg_sq", state.exp_avg_sq(), true);
    visit("max_exp_avg_sq", state.max_exp_avg_sq(), options.amsgrad());
  }
};
using Adam = AdamKind<torch::optim::AdamOptions, torch::optim::AdamParamState, false>;
using AdamW = AdamKind<torch::optim::AdamWOptions, torch::optim::AdamWParamState, true>;

struct Sgd {
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;
  static constexpr const char* kName = "SGD";

  template <typename Visit>
  static void options(Options& options, Visit& visit) {
    visit("lr", options.lr());
    visit("momentum", options.momentum());
    visit("dampening", options.dampening());
    visit("weight_decay", options.weight_decay());
    visit("nesterov", options.nesterov());
    visit.fixed("maximize", false);
    visit.fixed("foreach", c10::IValue());
    visit.fixed("differentiable", false);
    visit.fixed("fused", c10::IValue());
  }
  template <typename Visit>
  static void state(State& state, const Options&, Visit& visit) {
    visit("momentum_buffer", state.momentum_buffer(), true);
  }
};

struct AdadeltaKind {
  using Options = AdadeltaOptions;
  using State = AdadeltaParamState;
  static constexpr const char* kName = "Adadelta";

  template <typename Visit>
  static void options(Options& options, Visit& visit) {
    visit("lr", options.lr());
    visit("rho", options.rho());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit.fixed("maximize", false);
    visit.fixed("capturable", false);
    visit.fixed("foreach", c10::IValue());
    visit.fixed("differentiable", false);
  }
  template <typename Visit>
  static void state(State& state, const Options&, Visit& visit) {
    visit("step", state.step());
    visit("square_avg", state.square_avg(), true);
    visit("acc_delta", state.acc_delta(), true);
  }
};

struct Adagrad {
  using Options = torch::optim::AdagradOptions;
  using State = torch::optim::AdagradParamState;
  static constexpr const char* kName = "Adagrad";

  template <typename Visit>
  static void options(Options& options, Visit& visit) {
    visit("lr", options.lr());
    visit("lr_decay", options.lr_decay());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("initial_accumulator_value", options.initial_accumulator_value());
    visit.fixed("foreach", c10::IValue());
    visit.fixed("maximize", false);
    visit.fixed("differentiable", false);
    visit.fixed("fused", c10::IValue());
  }
  template <typename Visit>
  static void state(State& state, const Options&, Visit& visit) {
    visit("step", state.step());
    visit("sum", state.sum(), true);
  }
};

struct RmsProp {
  using Options = torch::optim::RMSpropOptions;
  using State = torch::optim::RMSpropParamState;
  static constexpr const char* kName = "RMSprop";

  template <typename Visit>
  static void options(Options& options, Visit& visit) {
    visit("lr", options.lr());
    visit("momentum", options.momentum());
    visit("alpha", options.alpha());
    visit("eps", options.eps());
    visit("centered", options.centered());
    visit("weight_decay", options.weight_decay());
    visit.fixed("capturable", false);
    visit.fixed("foreach", c10::IValue());
    visit.fixed("maximize", false);
    visit.fixed("differentiable", false);
  }
  template <typename Visit>
  static void state(State& state, const Options& options, Visit& visit) {
    visit("step", state.step());
    visit("square_avg", state.square_avg(), true);
    visit("momentum_buffer", state.momentum_buffer(), options.momentum() > 0);
    visit("grad_avg", state.grad_avg(), options.centered());
  }
};

/// Calls use(kind) with the kind whose options these are; another optimizer is std::invalid_argument.
template <typename Use>
auto with_kind(const torch::optim::OptimizerOptions& options, Use use) {
  if (dynamic_cast<const Sgd::Options*>(&options) != nullptr) return use(Sgd{});
  if (dynamic_cast<const Adam::Options*>(&options) != nullptr) return use(Adam{});
  if (dynamic_cast<const AdamW::Options*>(&options) != nullptr) return use(AdamW{});
  if (dynamic_cast<const AdadeltaKind::Options*>(&options) != nullptr) return use(AdadeltaKind{});
  if (dynamic_cast<const Adagrad::Options*>(&options) != nullptr) return use(Adagrad{});
  if (dynamic_cast<const RmsProp::Options*>(&options) != nullptr) return use(RmsProp{});
  throw std::invalid_argument(
      "the state of this optimizer has no state dict, expected SGD, Adam, AdamW, Adadelta, Adagrad or "
      "RMSprop");
}

}  // namespace ddprun::train
