#pragma once

#include <cstddef>

namespace ddprun::test {

/// From now on, counts what this process's CPU tensors take.
void count_tensor_memory();

/// Bytes that CPU tensors made since count_tensor_memory() hold now.
std::size_t tensor_bytes();

/// The most that tensor_bytes() has been since the last call.
std::size_t take_peak_tensor_bytes();

}  // namespace ddprun::test
