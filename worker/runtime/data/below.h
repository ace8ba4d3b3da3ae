#pragma once

#include <cstdint>

namespace ddprun::data {

/// 32 random bits to one of 0 .. count - 1, each with probability 1 / count to within 2^-32.
template <typename Integer>
Integer below(Integer count, std::uint32_t random) {
  return static_cast<Integer>((std::uint64_t{random} * static_cast<std::uint64_t>(count)) >> 32);
}

}  // namespace ddprun::data
