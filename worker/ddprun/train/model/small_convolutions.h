#pragma once

namespace ddprun::train {

/// From here on, this process computes bfloat16 convolutions of small images (at most 8 x 8 after it, such as
/// in a ResNet's last layers) on the CPU as products of matrices: im2col and one at::mm. There oneDNN 3.10
/// takes up to 10 times as long, above all for the gradient of the weights. Applies to channels-last tensors
/// without groups and dilation; all others are computed as before.
///
/// Not thread-safe; calls after the first do nothing.
void compute_small_convolutions_as_products();

}  // namespace ddprun::train
