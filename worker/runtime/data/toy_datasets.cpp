#include <ddprun/data/toy_datasets.h>

namespace ddprun::data {

TensorDataset make_toy_dataset(std::optional<at::Generator> generator, std::int64_t size) {
  auto input = torch::rand({size, 20}, generator);
  return {std::move(input), torch::rand({size, 1}, generator)};
}

TensorDataset make_linear_dataset(std::optional<at::Generator> generator, std::int64_t size) {
  auto input = torch::randn({size, 10}, generator);
  return {std::move(input), torch::randint(0, 2, {size, 1}, generator).to(torch::kFloat32)};
}

}  // namespace ddprun::data
