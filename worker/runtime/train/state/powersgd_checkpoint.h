#pragma once

#include <ATen/core/ivalue.h>

#include <filesystem>

#include <ddprun/ddp/powersgd_hook.h>
#include <ddprun/group/process_group.h>

namespace ddprun::train {

/// What PowerSGD remembers on all ranks, for a checkpoint: {"iteration": int, "random_state": str,
/// "qs": {name: tensor}, "errors": [{name: tensor}, ...] by rank}. None on other ranks than 0. Every rank
/// calls it.
c10::IValue gather_powersgd_state(const ddp::PowerSgd& power_sgd, const torch::nn::Module& module,
                                  const ddp::ProcessGroup& group);

/// The inverse, on every rank. The errors belong to ranks: another number of ranks begins without.
/// throws  IoError naming source and what does not fit
void load_powersgd_state(ddp::PowerSgd& power_sgd, const torch::nn::Module& module,
                         const ddp::ProcessGroup& group, const c10::IValue& state,
                         const std::filesystem::path& source);

}  // namespace ddprun::train
