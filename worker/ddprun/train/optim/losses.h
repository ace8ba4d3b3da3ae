#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>

namespace ddprun::train {

// The loss of each of B samples, of K classes: the mean is the training loss, the sum an exact metric.

/// scores float [B, K]; target int64 [B], class numbers, or float [B, K], a distribution over the classes:
/// -sum_k target_k log_softmax(scores)_k. With one class, loss and gradient are 0. returns float [B]
/// label_smoothing  in [0, 1]: the part of the target spread evenly over all classes
inline at::Tensor cross_entropy(const at::Tensor& scores, const at::Tensor& target,
                                double label_smoothing = 0) {
  return at::cross_entropy_loss(scores, target, {}, at::Reduction::None, /*ignore_index=*/-100,
                                label_smoothing);
}

/// float [B, ...]; returns float [B].
inline at::Tensor mean_of_sample(const at::Tensor& elements) {
  return elements.dim() > 1 ? elements.flatten(1).mean(1) : elements;
}

/// Logistic loss, the mean over a sample's elements. logits, target float [B, ...]; returns float [B].
inline at::Tensor binary_cross_entropy_with_logits(const at::Tensor& logits, const at::Tensor& target) {
  return mean_of_sample(at::binary_cross_entropy_with_logits(logits, target, {}, {}, at::Reduction::None));
}

/// (output - target)^2, the mean over a sample's elements. float [B, ...]; returns float [B].
inline at::Tensor squared_error(const at::Tensor& output, const at::Tensor& target) {
  TORCH_CHECK(output.sizes() == target.sizes(), "squared error: expected a target of shape ", output.sizes(),
              ", got ", target.sizes());
  return mean_of_sample(at::mse_loss(output, target, at::Reduction::None));
}

}  // namespace ddprun::train
