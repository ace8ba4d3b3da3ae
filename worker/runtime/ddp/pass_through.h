#pragma once

#include <vector>

#include <ATen/core/TensorBody.h>

namespace ddprun::ddp {

/// Replaces tensors by copies whose gradients, times scale, flow on to all the originals together: as soon as
/// one of the copies is part of the loss, backward reaches the graph of every original, with an undefined
/// gradient where its copy is not. So the parameters behind an output that nobody used are found unused
/// instead of being waited for.
///
/// tensors  all require a gradient
void pass_through(const std::vector<at::Tensor*>& tensors, double scale);

}  // namespace ddprun::ddp
