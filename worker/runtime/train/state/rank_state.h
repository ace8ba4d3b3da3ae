#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <filesystem>
#include <vector>

#include <ddprun/ddp/comm_hooks.h>
#include <ddprun/group/process_group.h>

namespace ddprun::train {

/// The state of a rank's random number generators, as the bytes (uint8 [n], on the CPU) that
/// torch.set_rng_state and torch.cuda.set_rng_state take.
struct GeneratorState {
  at::Tensor cpu;   ///< of the default generator, which dropout uses
  at::Tensor cuda;  ///< of the rank's GPU; undefined without one
};

/// Of this process: the CPU's generator and, if the device is a GPU, that GPU's.
GeneratorState generator_state(at::Device device);

/// Restores the generators; leaves one whose state is undefined unchanged.
/// throws  std::invalid_argument for bytes that are not a generator's state
void set_generator_state(const GeneratorState& state, at::Device device);

/// Every rank's generator_state(), by rank, on every rank. All ranks call it.
std::vector<GeneratorState> gather_generator_states(const ddp::ProcessGroup& group);

/// PowerSGD's state on all ranks, for a checkpoint: {"iteration": int, "random_state": str, "qs": {name:
/// tensor}, "errors": [{name: tensor}, ...] by rank}. Every rank calls it; all but rank 0 get None.
///
/// alone  on this rank, whichever it is, with only its errors
c10::IValue powersgd_state(const ddp::PowerSgd& power_sgd, const torch::nn::Module& module,
                           const ddp::ProcessGroup& group, bool alone = false);

/// The inverse, on every rank. On another number of ranks, errors start at 0.
/// throws  IoError naming source and what does not fit
void load_powersgd_state(ddp::PowerSgd& power_sgd, const torch::nn::Module& module,
                         const ddp::ProcessGroup& group, const c10::IValue& state,
                         const std::filesystem::path& source);

}  // namespace ddprun::train
