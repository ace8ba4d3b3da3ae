#pragma once

#include <functional>
#include <ranges>
#include <tuple>
#include <type_traits>

namespace at {
class Tensor;
}
namespace c10 {
struct IValue;
}

namespace ddprun::ddp {

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

}  // namespace ddprun::ddp
