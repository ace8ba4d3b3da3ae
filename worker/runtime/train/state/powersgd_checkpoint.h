#pragma once

#include <ATen/core/ivalue.h>

#include <filesystem>

#include <ddprun/ddp/powersgd_hook.h>
#include <ddprun/group/process_group.h>

namespace ddprun::train {

/// PowerSGD's state on all ranks, for a checkpoint: {"iteration": int, "random_state": str,
/// "qs": {name: tensor}, "errors": [{name: tensor}, ...] by rank}. Every rank calls it; all but rank 0 get
/// None.
c10::IValue gather_powersgd_state(const ddp::PowerSgd& power_sgd, const torch::nn::Module& module,
                                  const ddp::ProcessGroup& group);

/// The inverse, on every rank. On another number of ranks, errors start at 0.
/// throws  IoError naming source and what does not fit
void load_powersgd_state(ddp::PowerSgd& power_sgd, const torch::nn::Module& module,
                         const ddp::ProcessGroup& group, const c10::IValue& state,
                         const std::filesystem::path& source);

}  // namespace ddprun::train
