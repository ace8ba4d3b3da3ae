#pragma once

#include <torch/types.h>

#include <ddprun/data/dataset.h>

namespace ddprun::data {

/// Examples that are in memory as a model takes them: row i of both tensors is example i.
class TensorDataset : public Dataset {
 public:
  /// throws  std::invalid_argument unless both have the same number of rows, one at least
  TensorDataset(torch::Tensor input, torch::Tensor target);

  std::int64_t size() const override { return input_.size(0); }
  Batch get_batch(const std::vector<std::int64_t>& indices) const override;

  const torch::Tensor& input() const { return input_; }
  const torch::Tensor& target() const { return target_; }

 private:
  torch::Tensor input_, target_;
};

}  // namespace ddprun::data
