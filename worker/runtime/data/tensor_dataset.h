#pragma once

#include <ATen/core/Generator.h>
#include <torch/types.h>

#include <optional>

#include <ddprun/data/dataset.h>

namespace ddprun::data {

/// Examples in memory, ready for a model: row i of both tensors is example i.
class TensorDataset : public Dataset {
 public:
  /// throws  std::invalid_argument unless both have the same number of rows, at least one
  TensorDataset(torch::Tensor input, torch::Tensor target);

  std::int64_t size() const override { return input_.size(0); }
  Batch get_batch(const std::vector<std::int64_t>& indices) const override;

  const torch::Tensor& input() const { return input_; }
  const torch::Tensor& target() const { return target_; }

 private:
  torch::Tensor input_, target_;
};

// Without a generator both draw from the default one, as Python does: after torch::manual_seed(0), the data
// and then the model's weights equal those of a Python script that draws in the same order.

/// The pairs of the tutorial's MyTrainDataset: torch.rand(size, 20), then torch.rand(size, 1).
TensorDataset make_toy_dataset(std::optional<at::Generator> generator = std::nullopt,
                               std::int64_t size = 2048);

/// torch.randn(size, 10), then labels torch.randint(0, 2, (size, 1)) as floats: nothing to learn.
TensorDataset make_linear_dataset(std::optional<at::Generator> generator = std::nullopt,
                                  std::int64_t size = 1000);

}  // namespace ddprun::data
