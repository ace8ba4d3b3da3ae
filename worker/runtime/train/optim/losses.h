#pragma once

#include <ATen/core/Tensor.h>

namespace ddprun::train {

// The loss of each of B samples, of K classes: the mean is the training loss, the sum an exact metric.

/// scores float [B, K]; target int64 [B], class numbers; returns float [B].
/// label_smoothing  in [0, 1]: the part of the target spread evenly over all classes
at::Tensor cross_entropy(const at::Tensor& scores, const at::Tensor& target, double label_smoothing = 0);

/// Cross-entropy with a distribution over the classes as target: -sum_k target_k log_softmax(scores)_k.
/// With one class, softmax is always 1: loss and gradient are 0.
/// scores, target float [B, K]; returns float [B].
at::Tensor soft_cross_entropy(const at::Tensor& scores, const at::Tensor& target);

/// Logistic loss, the mean over a sample's elements. logits, target float [B, ...]; returns float [B].
at::Tensor binary_cross_entropy_with_logits(const at::Tensor& logits, const at::Tensor& target);

/// (output - target)^2, the mean over a sample's elements. float [B, ...]; returns float [B].
at::Tensor squared_error(const at::Tensor& output, const at::Tensor& target);

}  // namespace ddprun::train
