#pragma once

#include <ATen/core/ivalue.h>

namespace torch::optim {
class Optimizer;
}

namespace ddprun::train {

/// The state of an Adam optimizer in the layout of Python's torch.optim.Adam.state_dict(), which its
/// load_state_dict() accepts:
///
///   {"state": {0: {"step": float32 [], "exp_avg": ..., "exp_avg_sq": ..., ["max_exp_avg_sq": ...]}, ...},
///    "param_groups": [{"lr": ..., "betas": (..., ...), ..., "params": [0, 1, ...]}]}
///
/// returns  a GenericDict whose tensors share memory with the optimizer's
/// throws   std::invalid_argument for another optimizer than torch::optim::Adam
c10::IValue optimizer_state_dict(torch::optim::Optimizer& optimizer);

}  // namespace ddprun::train
