#pragma once

#include <ATen/core/Generator.h>

#include <optional>

#include <ddprun/data/tensor_dataset.h>

namespace ddprun::data {

// Without a generator both draw from the default one and leave it where Python's would be: after
// torch::manual_seed(0), these data and then the model's weights are those of a Python script that does the
// same in this order.

/// The pairs of the tutorial's MyTrainDataset: torch.rand(size, 20), then torch.rand(size, 1).
TensorDataset make_toy_dataset(std::optional<at::Generator> generator = std::nullopt,
                               std::int64_t size = 2048);

/// torch.randn(size, 10), then labels torch.randint(0, 2, (size, 1)) as floats: nothing that could be learnt.
TensorDataset make_linear_dataset(std::optional<at::Generator> generator = std::nullopt,
                                  std::int64_t size = 1000);

}  // namespace ddprun::data
