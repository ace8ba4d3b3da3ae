#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>

#include <cstdint>
#include <vector>

namespace ddprun::data {

/// Maps 32 random bits to 0 .. count - 1, each with probability 1 / count to within 2^-32.
template <typename Integer>
Integer uniform_below(Integer count, std::uint32_t random) {
  return static_cast<Integer>((std::uint64_t{random} * static_cast<std::uint64_t>(count)) >> 32);
}

/// torch.randperm(size, generator=torch.Generator().manual_seed(seed)), bit for bit.
inline std::vector<std::int64_t> randperm(std::int64_t size, std::uint64_t seed) {
  const auto order =
      torch::randperm(size, at::detail::createCPUGenerator(seed), torch::TensorOptions(torch::kInt64));
  const auto* begin = order.const_data_ptr<std::int64_t>();
  return {begin, begin + size};
}

}  // namespace ddprun::data
