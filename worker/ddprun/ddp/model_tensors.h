#pragma once

#include <functional>
#include <ranges>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/TensorBody.h>

#include <ddprun/group/process_group.h>

namespace torch::nn {
class Module;
}
namespace torch::jit {
struct Module;
}
namespace c10 {
struct IValue;
}

namespace ddprun::ddp {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// What the ranks share of a model: its parameters and buffers by name, read at each call. Converts
/// implicitly from a torch::nn::Module, which must outlive it, and from a torch::jit::Module (TorchScript).
struct ModelTensors {
  using List = std::function<std::vector<NamedTensor>()>;

  ModelTensors(const torch::nn::Module& module);   // NOLINT(google-explicit-constructor)
  ModelTensors(const torch::jit::Module& module);  // NOLINT(google-explicit-constructor)
  ModelTensors(std::string name, List parameters, List buffers)
      : name(std::move(name)), parameters(std::move(parameters)), buffers(std::move(buffers)) {}

  std::string name;
  List parameters, buffers;
  std::vector<at::Tensor> sparse = {};  ///< parameters whose gradients are sparse
};

using TensorVisitor = std::function<void(at::Tensor&)>;

/// The tensors in what a TorchScript model returned.
void visit_script_output(c10::IValue& value, const TensorVisitor& visit);

/// Calls visit for every tensor in a forward pass's result: a tensor, or tuples, pairs, arrays, vectors, maps
/// and optionals of them; ignores everything else. For your own types define, in their namespace:
///
///   void visit_tensors(MyOutput& output, const ddprun::ddp::TensorVisitor& visit) {
///     visit(output.loss);
///     visit(output.logits);
///   }
template <typename Value>
void visit_output(Value& value, const TensorVisitor& visit) {
  if constexpr (std::is_same_v<Value, at::Tensor>) {
    visit(value);
  } else if constexpr (std::is_same_v<Value, c10::IValue>) {
    visit_script_output(value, visit);
  } else if constexpr (requires { visit_tensors(value, visit); }) {
    visit_tensors(value, visit);
  } else if constexpr (requires { std::tuple_size<Value>::value; }) {
    std::apply([&](auto&... elements) { (visit_output(elements, visit), ...); }, value);
  } else if constexpr (std::ranges::range<Value>) {
    for (auto&& element : value) visit_output(element, visit);
  } else if constexpr (requires { value.has_value() ? &*value : nullptr; }) {
    if (value.has_value()) visit_output(*value, visit);
  }
}

/// Replaces tensors, which all require a gradient, with copies that pass scale times their gradients to all
/// originals together. Once one copy contributes to the loss, backward reaches the graph of every original,
/// with an undefined gradient if its copy does not contribute. So parameters behind an unused output count as
/// unused, and nothing waits for them.
void scale_gradients(const std::vector<at::Tensor*>& tensors, const at::Tensor& scale);

/// A module's parameters and buffers except ignored ones. A tensor with several names appears once, under the
/// first that is not ignored.
struct ReplicatedState {
  std::vector<NamedTensor> parameters, buffers;

  bool has_trainable() const;                                ///< whether a parameter requires a gradient
  std::vector<at::Tensor> tensors(bool with_buffers) const;  ///< parameters without autograd, then buffers
};

/// ignore  names as in named_parameters() and named_buffers()
/// throws  std::invalid_argument if the module has no such name
ReplicatedState replicated_state(const ModelTensors& model, const std::vector<std::string>& ignore);

/// Only the buffers, as they are now: a module may replace them.
std::vector<at::Tensor> replicated_buffers(const ModelTensors& model, const std::vector<std::string>& ignore);

/// For each of the parameters, whether its gradient is sparse, as an Embedding's may be.
std::vector<bool> expect_sparse_gradients(const ModelTensors& model,
                                          const std::vector<at::Tensor>& parameters);

/// Checks that every rank's module has rank 0's parameters and buffers: names, order, shapes, types, strides,
/// layout, kind of device, and requires_grad. Every rank calls it.
/// throws  std::invalid_argument, on all ranks, naming the first parameter that differs and the ranks where
///         it does
void check_same_module(const ProcessGroup& group, const ReplicatedState& state);

/// Checks that a parameter requires a gradient, and all are dense and on one kind of device.
/// throws  std::invalid_argument naming the parameter
void check_suitable(const ReplicatedState& state);

}  // namespace ddprun::ddp
