#include "worker/train/optimizer_state.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/full.h>
#include <torch/optim/adam.h>

#include <stdexcept>
#include <unordered_map>

namespace ddprun::train {
namespace {

c10::impl::GenericDict make_dict(const c10::TypePtr& key_type) {
  return c10::impl::GenericDict(key_type, c10::AnyType::get());
}

c10::IValue adam_param_state(const torch::optim::AdamParamState& state) {
  auto dict = make_dict(c10::StringType::get());
  dict.insert("step", at::full({}, static_cast<double>(state.step()), at::kFloat));
  dict.insert("exp_avg", state.exp_avg());
  dict.insert("exp_avg_sq", state.exp_avg_sq());
  if (state.max_exp_avg_sq().defined()) dict.insert("max_exp_avg_sq", state.max_exp_avg_sq());
  return dict;
}

/// A group's options under the names, and in the order, that Python's Adam of torch 2.11 has.
c10::impl::GenericDict adam_param_group(const torch::optim::AdamOptions& options) {
  auto group = make_dict(c10::StringType::get());
  const auto [beta1, beta2] = options.betas();
  group.insert("lr", options.lr());
  group.insert("betas", c10::ivalue::Tuple::create({beta1, beta2}));
  group.insert("eps", options.eps());
  group.insert("weight_decay", options.weight_decay());
  group.insert("amsgrad", options.amsgrad());
  group.insert("maximize", false);
  group.insert("foreach", c10::IValue());
  group.insert("capturable", false);
  group.insert("differentiable", false);
  group.insert("fused", c10::IValue());
  group.insert("decoupled_weight_decay", false);
  return group;
}

}  // namespace

c10::IValue optimizer_state_dict(torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<torch::optim::Adam*>(&optimizer) == nullptr)
    throw std::invalid_argument("the state of this optimizer cannot be saved, expected Adam");
  auto state = make_dict(c10::IntType::get());
  c10::impl::GenericList groups(c10::AnyType::get());
  std::int64_t next_index = 0;
  for (auto& group : optimizer.param_groups()) {
    c10::impl::GenericList indices(c10::AnyType::get());
    for (const auto& parameter : group.params()) {
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found != optimizer.state().end())
        state.insert(next_index,
                     adam_param_state(static_cast<torch::optim::AdamParamState&>(*found->second)));
      indices.push_back(next_index++);
    }
    auto dict = adam_param_group(static_cast<torch::optim::AdamOptions&>(group.options()));
    dict.insert("params", indices);
    groups.push_back(dict);
  }
  auto root = make_dict(c10::StringType::get());
  root.insert("state", state);
  root.insert("param_groups", groups);
  return root;
}

}  // namespace ddprun::train
