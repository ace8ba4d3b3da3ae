#pragma once

#include <filesystem>

#include <ATen/core/ivalue.h>

namespace torch::optim {
class Optimizer;
}

namespace ddprun::train {

/// The state of an optimizer in the layout of Python's optimizer.state_dict(), which Python's
/// load_state_dict() accepts:
///
///   {"state": {0: {"step": float32 [], "exp_avg": ..., "exp_avg_sq": ..., ["max_exp_avg_sq": ...]}, ...},
///    "param_groups": [{"lr": ..., "betas": (..., ...), ..., "params": [0, 1, ...]}]}
///
/// optimizer  SGD, Adam, AdamW, Adadelta, Adagrad or RMSprop, or a ddp::ZeroOptimizer of these. A
///            ZeroOptimizer's state is brought together on rank 0: every rank must call this, and on the
///            other ranks the result is None
/// returns    a GenericDict whose tensors share memory with the optimizer's where they are this rank's own
/// throws     std::invalid_argument for another optimizer
c10::IValue optimizer_state_dict(torch::optim::Optimizer& optimizer);

/// Gives an optimizer the state and the options of a state dict as optimizer_state_dict() and Python's
/// state_dict() make it: all of it or, when something does not fit, nothing. Tensors are copied and get their
/// parameter's type and device. A ZeroOptimizer, of any number of ranks, takes what its rank owns; every rank
/// loads the whole dict.
///
/// source  the file to name
/// throws  IoError if the dict is of another kind of optimizer, has another number of groups or parameters,
///         lacks a key or has a tensor of another shape;
///         std::invalid_argument for an optimizer that optimizer_state_dict() does not know
void load_optimizer_state(torch::optim::Optimizer& optimizer, const c10::IValue& state_dict,
                          const std::filesystem::path& source);

}  // namespace ddprun::train
