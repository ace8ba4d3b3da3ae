#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace ddprun::train {

struct ClipNormOptions {
  double norm_type = 2;             ///< may be infinity
  bool error_if_nonfinite = false;  ///< throws instead of scaling by infinity or NaN; waits for the device
  /// If ranks hold parts of the gradients: sums over ranks, in place, this rank's partial norm to the power
  /// of norm_type (for infinity: takes the maximum).
  std::function<void(at::Tensor&)> reduce = {};
};

/// Scales the parameters' gradients, in place, so that their total norm is at most max_norm:
/// torch.nn.utils.clip_grad_norm_, without waiting for the device.
///
///   g <- g min(1, max_norm / (norm + 1e-6))
///
/// returns  the norm before scaling, a scalar on the first gradient's device; 0 without gradients
/// throws   std::runtime_error if the norm is not finite and error_if_nonfinite
at::Tensor clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm,
                          const ClipNormOptions& options = {});

/// Clamps the gradients, in place, to [-limit, limit]: torch.nn.utils.clip_grad_value_.
void clip_grad_value(const std::vector<at::Tensor>& parameters, double limit);

}  // namespace ddprun::train
