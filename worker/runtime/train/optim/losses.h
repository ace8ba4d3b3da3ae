#pragma once

#include <ATen/core/Tensor.h>

namespace ddprun::train {

// The loss of each of B samples, so that its mean is the loss and its sum an exact metric. B samples, K
// classes.

/// scores float [B, K]; target int64 [B], class numbers; returns float [B].
/// label_smoothing  in [0, 1]: this part of the target is spread evenly over all classes
at::Tensor cross_entropy(const at::Tensor& scores, const at::Tensor& target, double label_smoothing = 0);

/// Cross-entropy with a distribution over the classes as target: -sum_k target_k log_softmax(scores)_k.
/// Over one class the softmax is 1 whatever the score: loss and gradient are 0, and nothing is learnt.
/// scores, target float [B, K]; returns float [B].
at::Tensor soft_cross_entropy(const at::Tensor& scores, const at::Tensor& target);

/// Logistic loss, the mean over a sample's elements. logits, target float [B, ...]; returns float [B].
at::Tensor binary_cross_entropy_with_logits(const at::Tensor& logits, const at::Tensor& target);

/// (output - target)^2, the mean over a sample's elements. float [B, ...]; returns float [B].
at::Tensor squared_error(const at::Tensor& output, const at::Tensor& target);

}  // namespace ddprun::train
