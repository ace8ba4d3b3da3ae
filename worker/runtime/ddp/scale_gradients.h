#pragma once

#include <vector>

#include <ATen/core/TensorBody.h>

namespace ddprun::ddp {

/// Replaces tensors, which all require a gradient, with copies that pass scale times their gradients to all
/// originals together. Once one copy contributes to the loss, backward reaches the graph of every original,
/// with an undefined gradient if its copy does not contribute. So parameters behind an unused output count as
/// unused, and nothing waits for them.
void scale_gradients(const std::vector<at::Tensor*>& tensors, const at::Tensor& scale);

/// Makes a mean gradient in a bucket the parameter's own.
///
/// mean  of the parameter's shape, but laid out in memory as the parameter
void take_gradient(const at::Tensor& parameter, const at::Tensor& mean);

}  // namespace ddprun::ddp
