#include <ddprun/ddp/scale_gradients.h>

#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>

namespace ddprun::ddp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct ScaleGradients : torch::autograd::Function<ScaleGradients> {
  static variable_list forward(AutogradContext* context, const std::optional<at::Tensor>& scale,
                               const at::TensorList& inputs) {
    context->set_materialize_grads(false);
    if (scale) context->saved_data["scale"] = *scale;
    variable_list copies;
    // Copies: a loss that is later changed in place must not be a view of an input.
    for (const auto& input : inputs) copies.push_back(input.clone());
    return copies;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto scale = context->saved_data.find("scale");
    if (scale != context->saved_data.end())
      for (auto& gradient : gradients)
        if (gradient.defined()) gradient = gradient * scale->second.toTensor();
    gradients.insert(gradients.begin(), at::Tensor());  // for scale
    return gradients;
  }
};

}  // namespace

void scale_gradients(const std::vector<at::Tensor*>& tensors, const at::Tensor& scale) {
  variable_list inputs;
  for (const auto* tensor : tensors) inputs.push_back(*tensor);
  auto outputs =
      ScaleGradients::apply(scale.defined() ? std::optional(scale) : std::nullopt, at::TensorList(inputs));
  for (std::size_t i = 0; i < tensors.size(); ++i) *tensors[i] = outputs[i];
}

void take_gradient(const at::Tensor& parameter, const at::Tensor& mean) {
  parameter.mutable_grad() =
      parameter.is_non_overlapping_and_dense()
          ? mean.as_strided(parameter.sizes(), parameter.strides(), mean.storage_offset())
          : mean;
}

}  // namespace ddprun::ddp
