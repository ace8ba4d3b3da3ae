#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace ddprun::ddp {
class ProcessGroup;
}

namespace ddprun::train {

/// Where a rank's random numbers stand, as the bytes (uint8 [n], on the CPU) that torch.set_rng_state and
/// torch.cuda.set_rng_state take.
struct GeneratorState {
  at::Tensor cpu;   ///< of the default generator; what dropout on the CPU draws from
  at::Tensor cuda;  ///< of the rank's GPU; undefined where it has none
};

/// The state of this process's default generators now: the CPU's and, if the device is a GPU, that GPU's.
GeneratorState generator_state(at::Device device);

/// Puts the default generators back to where they were. A state without the GPU's part leaves the GPU's
/// generator as it is, and the other way round.
/// throws  std::invalid_argument for bytes that are no generator's state
void set_generator_state(const GeneratorState& state, at::Device device);

/// Every rank's generator_state(), by rank, on every rank. All ranks call it.
std::vector<GeneratorState> gather_generator_states(const ddp::ProcessGroup& group);

}  // namespace ddprun::train
