#pragma once

#include <cstddef>

namespace ddprun::test {

/// Starts counting the memory of this process's CPU tensors.
void count_tensor_memory();

/// Bytes now held by CPU tensors made since count_tensor_memory().
std::size_t tensor_bytes();

/// The maximum of tensor_bytes() since the last call.
std::size_t take_peak_tensor_bytes();

}  // namespace ddprun::test
