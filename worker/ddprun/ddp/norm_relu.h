#pragma once

#include <ATen/core/Tensor.h>

namespace ddprun::ddp {

/// From here on, SyncBatchNorm::forward_relu() computes in one pass over the data each way, instead of three
/// and four, where this is done: in training, for bfloat16 in channels-last memory on the CPU with float
/// parameters, if the statistics are this rank's alone. The result is rounded once instead of twice.
///
/// Not thread-safe
void fuse_norm_relu();

namespace norm_relu {

/// What a normalisation in training reads and changes.
struct Parameters {
  at::Tensor weight, bias;               ///< float [C]
  at::Tensor running_mean, running_var;  ///< float [C], or undefined: not tracked
  double momentum, eps;
};

/// Whether forward() may be called with this input, and this residual with it.
bool fits(const at::Tensor& input, const Parameters& parameters);
bool fits(const at::Tensor& residual, const at::Tensor& input);

/// relu((x - mean) / sqrt(var + eps) * weight + bias + residual), mean and biased variance per channel.
///
/// input     bfloat16 [B, C, H, W], channels-last
/// residual  the same, or undefined
at::Tensor forward(const at::Tensor& input, const at::Tensor& residual, const Parameters& parameters);

}  // namespace norm_relu
}  // namespace ddprun::ddp
