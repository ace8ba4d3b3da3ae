#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace ddprun::models {

/// Runs part of a model without storing what backward needs; backward runs the part again. Trades time for
/// memory (Chen et al. 2016). Gradients are bit for bit the same. Every parameter gets its gradient once,
/// from the outer backward, so DistributedDataParallel works as usual. The second run uses the first one's
/// autocast state. Not for parts that draw random numbers.
///
/// part        must do the same both times; it and everything it refers to must outlive backward
/// parameters  all tensors except the input through which gradients flow in the part
/// returns     part(input)
at::Tensor recomputed(std::function<at::Tensor(const at::Tensor&)> part, const at::Tensor& input,
                      const std::vector<at::Tensor>& parameters);

}  // namespace ddprun::models
