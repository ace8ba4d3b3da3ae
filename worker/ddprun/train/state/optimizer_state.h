#pragma once

#include <filesystem>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace ddprun::train {

/// An optimizer's state in the layout of Python's optimizer.state_dict(); Python's load_state_dict() takes
/// it:
///
///   {"state": {0: {"step": float32 [], "exp_avg": ..., "exp_avg_sq": ..., ["max_exp_avg_sq": ...]}, ...},
///    "param_groups": [{"lr": ..., "betas": (..., ...), ..., "params": [0, 1, ...]}]}
///
/// optimizer  SGD, Adam, AdamW, Adadelta, Adagrad or RMSprop, or a ddp::ZeroOptimizer of these. A
///            ZeroOptimizer gathers its state on rank 0: every rank must call this, and all but rank 0 get
///            None
/// returns    a GenericDict; this rank's own tensors share memory with the optimizer's
/// throws     std::invalid_argument for another optimizer
///
/// own  a ZeroOptimizer gathers nothing: returns only the state this rank owns, to load on this rank again
c10::IValue optimizer_state_dict(torch::optim::Optimizer& optimizer, bool own = false);

/// Loads state and options from a state dict of optimizer_state_dict() or Python: all of it or, if anything
/// does not fit, nothing. Copies tensors to their parameter's type and device. With a ZeroOptimizer, on any
/// number of ranks, every rank passes the whole dict and keeps what it owns.
///
/// source  the file named in errors
/// throws  IoError if the dict is for another kind of optimizer, has another number of groups or parameters,
///         lacks a key or has a tensor of another shape; std::invalid_argument for an optimizer that
///         optimizer_state_dict() does not support
void load_optimizer_state(torch::optim::Optimizer& optimizer, const c10::IValue& state_dict,
                          const std::filesystem::path& source);

/// What each replica of a training has, for ddp::check_replicas(): the parameters and the optimizer's state.
/// Shares memory. Without the state of a ZeroOptimizer, of which each rank has a part, or of an optimizer
/// that optimizer_state_dict() does not support.
std::vector<at::Tensor> replicated_tensors(const torch::nn::Module& module,
                                           torch::optim::Optimizer& optimizer);

}  // namespace ddprun::train
