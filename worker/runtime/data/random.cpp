#include <ddprun/data/random.h>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>

namespace ddprun::data {

std::vector<std::int64_t> randperm(std::int64_t size, std::uint64_t seed) {
  const auto order =
      torch::randperm(size, at::detail::createCPUGenerator(seed), torch::TensorOptions(torch::kInt64));
  const auto* begin = order.const_data_ptr<std::int64_t>();
  return {begin, begin + size};
}

}  // namespace ddprun::data
