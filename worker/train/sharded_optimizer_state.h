#pragma once

#include <ATen/core/ivalue.h>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace ddprun::ddp {
class FullyShardedDataParallel;
}

namespace ddprun::train {

/// The state of an optimizer over sharded.shards(), as optimizer_state_dict() would have it of one over all
/// of the module's parameters. Every rank must call it. On rank 0; the other ranks' is None.
/// throws  as optimizer_state_dict()
c10::IValue sharded_optimizer_state_dict(torch::optim::Optimizer& optimizer,
                                         const ddp::FullyShardedDataParallel& sharded,
                                         const torch::nn::Module& module, int rank);

}  // namespace ddprun::train
