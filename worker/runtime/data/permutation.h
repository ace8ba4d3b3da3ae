#pragma once

#include <cstdint>
#include <vector>

namespace ddprun::data {

/// torch.randperm(size, generator=torch.Generator().manual_seed(seed)), bit for bit.
std::vector<std::int64_t> permutation(std::int64_t size, std::uint64_t seed);

}  // namespace ddprun::data
