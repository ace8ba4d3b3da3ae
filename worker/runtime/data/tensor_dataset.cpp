#include <ddprun/data/tensor_dataset.h>

#include <stdexcept>

namespace ddprun::data {

TensorDataset::TensorDataset(torch::Tensor input, torch::Tensor target)
    : input_(std::move(input)), target_(std::move(target)) {
  if (input_.dim() < 1 || target_.dim() < 1 || input_.size(0) != target_.size(0) || input_.size(0) < 1)
    throw std::invalid_argument("TensorDataset: expected as many inputs as targets, one at least");
}

Batch TensorDataset::get_batch(const std::vector<std::int64_t>& indices) const {
  const auto index_B = torch::tensor(indices, torch::kInt64);
  return {input_.index_select(0, index_B), target_.index_select(0, index_B)};
}

TensorDataset make_toy_dataset(std::optional<at::Generator> generator, std::int64_t size) {
  const auto rows = torch::rand({size, 21}, generator);  // each example's 20 inputs, then its target
  return {rows.narrow(1, 0, 20).contiguous(), rows.narrow(1, 20, 1).contiguous()};
}

TensorDataset make_linear_dataset(std::optional<at::Generator> generator, std::int64_t size) {
  auto input = torch::randn({size, 10}, generator);
  return {std::move(input), torch::randint(0, 2, {size, 1}, generator).to(torch::kFloat32)};
}

}  // namespace ddprun::data
