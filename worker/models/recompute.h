#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace ddprun::models {

/// Runs a part of a model without keeping what its backward needs, which then runs it a second time: memory
/// for time (Chen et al. 2016). Gradients are the same to the last bit. Every parameter gets its gradient
/// once, from the outer backward, so that what waits for gradients (DistributedDataParallel) sees no
/// difference. Autocast is in the second run as it was in the first. For parts that draw nothing at random.
///
/// part        must do the same both times; it and what it refers to must live until backward has run
/// input       what it takes
/// parameters  all tensors beside the input through which gradients flow in it
/// returns     what it returns
at::Tensor recomputed(std::function<at::Tensor(const at::Tensor&)> part, const at::Tensor& input,
                      const std::vector<at::Tensor>& parameters);

}  // namespace ddprun::models
