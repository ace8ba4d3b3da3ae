#pragma once

#include "worker/ddp/process_group.h"

namespace torch::nn {
class Module;
}

namespace ddprun::ddp {

/// Checks that every rank's module has rank 0's parameters and buffers: names, order, shapes, types, and
/// which parameters want a gradient. Every rank calls it, and every rank learns the same. throws
/// std::invalid_argument, on all ranks, naming the first parameter that differs and the ranks where
void check_same_module(const ProcessGroup& group, const torch::nn::Module& module);

}  // namespace ddprun::ddp
