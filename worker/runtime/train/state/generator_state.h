#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace ddprun::ddp {
class ProcessGroup;
}

namespace ddprun::train {

/// The state of a rank's random number generators, as the bytes (uint8 [n], on the CPU) that
/// torch.set_rng_state and torch.cuda.set_rng_state take.
struct GeneratorState {
  at::Tensor cpu;   ///< of the default generator, which dropout uses
  at::Tensor cuda;  ///< of the rank's GPU; undefined without one
};

/// Of this process: the CPU's generator and, if the device is a GPU, that GPU's.
GeneratorState generator_state(at::Device device);

/// Restores the generators; one whose state is undefined stays as it is.
/// throws  std::invalid_argument for bytes that are not a generator's state
void set_generator_state(const GeneratorState& state, at::Device device);

/// Every rank's generator_state(), by rank, on every rank. All ranks call it.
std::vector<GeneratorState> gather_generator_states(const ddp::ProcessGroup& group);

}  // namespace ddprun::train
