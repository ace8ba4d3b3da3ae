#include <ddprun/ddp/pass_through.h>

#include <torch/csrc/autograd/custom_function.h>

namespace ddprun::ddp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct PassThrough : torch::autograd::Function<PassThrough> {
  static variable_list forward(AutogradContext* context, double scale, const at::TensorList& inputs) {
    context->set_materialize_grads(false);
    context->saved_data["scale"] = scale;
    variable_list copies;
    // Copies, because a loss that is then changed in place must not be a view of an input.
    for (const auto& input : inputs) copies.push_back(input.clone());
    return copies;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const double scale = context->saved_data["scale"].toDouble();
    if (scale != 1)
      for (auto& gradient : gradients)
        if (gradient.defined()) gradient = gradient * scale;
    gradients.insert(gradients.begin(), at::Tensor());  // of scale
    return gradients;
  }
};

}  // namespace

void pass_through(const std::vector<at::Tensor*>& tensors, double scale) {
  variable_list inputs;
  for (const auto* tensor : tensors) inputs.push_back(*tensor);
  auto outputs = PassThrough::apply(scale, at::TensorList(inputs));
  for (std::size_t i = 0; i < tensors.size(); ++i) *tensors[i] = outputs[i];
}

}  // namespace ddprun::ddp
